"""Which runs fill a table, with which settings, under which name, and in which order."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eigenshot.config import Config, flatten
from eigenshot.configfile import load_config
from eigenshot.errors import UserError
from eigenshot.reproduction.results import result_name
from eigenshot.reproduction.table import Part, Row, Table, plain_name
from eigenshot.training.setup import check_parts

_LONGEST = 60  # characters of changed settings in a name
# What has an option of its own, or is what a row is about.
_TAKEN = {
    "training.epochs": "use --epochs",
    "training.seed": "use --seeds",
    "method.name": "a table of your own can have such a row",
}
# These decide what is recorded and how fast: results of other ones are the same.
_NEUTRAL_SECTIONS = ("checkpoint", "probe", "logging")
_NEUTRAL_KEYS = ("engine.compile", "engine.capture")
_MEASURED_WHEN_EMPTY = ("data.mean", "data.std", "data.window")


@dataclass(frozen=True)
class Choices:
    """What is asked for beyond the table itself; no epochs: those of the recipes."""

    epochs: int | None = None
    seeds: tuple[int, ...] = (0,)
    rows: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.epochs is not None and self.epochs < 1:
            raise UserError(f"--epochs must be at least 1, found {self.epochs}")
        if not self.seeds or min(self.seeds) < 0:
            raise UserError(f"--seeds are whole numbers from 0 on, found {list(self.seeds)}")
        for key in self.settings:
            if key in _TAKEN:
                raise UserError(f"--set {key} cannot be used here: {_TAKEN[key]}")

    @property
    def changes(self) -> dict[str, Any]:
        """Those of the settings that make another result."""
        return {
            key: value
            for key, value in self.settings.items()
            if key.partition(".")[0] not in _NEUTRAL_SECTIONS and key not in _NEUTRAL_KEYS
        }

    @property
    def options(self) -> list[str]:
        """The words of a command line that ask for these epochs and settings."""
        words = [] if self.epochs is None else ["--epochs", str(self.epochs)]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={_shown(value)}"]
        return words

    @property
    def suffix(self) -> str:
        """What a file of the whole table has in its name; empty for the table as it is."""
        parts = [f"{self.epochs}ep"] if self.epochs else []
        parts += [_changes_name(self.changes)] if self.changes else []
        return "".join(f"-{part}" for part in parts)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a table: a row on a part, with a seed."""

    table: str
    row: Row
    part: Part
    seed: int
    config: Config
    variant: str
    command: str

    @property
    def name(self) -> str:
        """Of the run's folder and of its result files."""
        epochs = self.config.training.epochs
        return result_name(self.row.method, self.variant, epochs, self.seed)


@dataclass(frozen=True)
class Plan:
    """Runs, the most valuable first, and why others cannot be, by row and title of the part."""

    runs: tuple[PlannedRun, ...]
    impossible: dict[tuple[str, str], str]


def make_plan(table: Table, choices: Choices, *, given: str | None = None) -> Plan:
    """All runs that the table wants, whether or not their results are there.

    The first seed of every row comes before the second of any. ``given`` is how the user called
    the table, for the command that repeats a run.
    """
    chosen = [table.row(name) for name in choices.rows] or list(table.rows)
    runs: list[tuple[tuple[int, int, int], PlannedRun]] = []
    impossible = {(r.name, p.title): r.cannot for r in table.rows if r.cannot for p in table.parts}
    for row in (row for row in table.rows if row.method):
        for position, part in enumerate(table.parts):
            try:
                variant = variant_of(row, part, choices)
                configs = [settled(table, row, part, choices, seed) for seed in choices.seeds]
                if configs[0].backbone.name != "auto":  # which is settled by the device
                    check_parts(configs[0], own_backbone=False)
            except UserError as error:
                impossible[row.name, part.title] = str(error)
                continue
            if row not in chosen:
                continue
            for number, config in enumerate(configs):
                seed = config.training.seed
                command = _command(given or table.name, row, choices, seed)
                run = PlannedRun(table.name, row, part, seed, config, variant, command)
                runs.append(((number, row.order, position), run))
    runs.sort(key=lambda entry: entry[0])
    return Plan(tuple(run for _, run in runs), impossible)


def settled(
    table: Table, row: Row, part: Part, choices: Choices, seed: int, epochs: int | None = None
) -> Config:
    """The settings of a run; ``epochs`` over those that were chosen."""
    overrides: dict[str, Any] = {
        **table.settings,
        **part.settings,
        "method.name": row.method,
        **row.settings,
        **choices.settings,
        "training.seed": seed,
    }
    length = epochs or choices.epochs
    if length is not None:
        overrides["training.epochs"] = length
    return load_config(row.recipe or part.recipe, overrides)


def variant_of(row: Row, part: Part, choices: Choices) -> str:
    """The recipe's name, with the row's where that changes it, and what was set for all."""
    recipe = row.recipe or part.recipe
    name = plain_name(os.path.basename(recipe).removesuffix(".toml"))
    if row.settings:
        name += f"-{row.name}"
    return f"{name}-{_changes_name(choices.changes)}" if choices.changes else name


def _changes_name(changes: Mapping[str, Any]) -> str:
    texts = [f"{key}={_shown(value)}" for key, value in sorted(changes.items())]
    name = plain_name("_".join(texts))
    if len(name) <= _LONGEST:
        return name
    digest = hashlib.blake2b("\n".join(texts).encode(), digest_size=4).hexdigest()
    return f"{name[:_LONGEST]}-{digest}"


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _command(given: str, row: Row, choices: Choices, seed: int) -> str:
    """The command line that makes this run alone."""
    words = ["eigenshot", "reproduce", given, "--rows", row.name, "--seeds", str(seed)]
    return shlex.join([*words, *choices.options])


def other_settings(
    stored: Mapping[str, Any], config: Config, *, evaluation: bool = True
) -> list[str]:
    """What differs between settings that were used and those of a run now, a text each.

    ``stored`` is nested plain values. What is recorded and how fast does not count; how the
    encoder is measured does, unless ``evaluation`` is False.
    """
    asked = config.lasting()
    if evaluation:
        asked["evaluation"] = config.to_dict()["evaluation"]
    then, now = _deciding(stored), _deciding(asked)
    found = []
    for key in sorted(set(then) | set(now)):
        if key.partition(".")[0] not in stored:  # a section that was not recorded says nothing
            continue
        optional = ".options." in key or ".view_" in key
        if _settles_later(key, now) or (not optional and (key not in then or key not in now)):
            continue
        if then.get(key) != now.get(key):
            found.append(f"{key} was {_value(then, key)}, is {_value(now, key)}")
    return found


def _settles_later(key: str, now: Mapping[str, Any]) -> bool:
    """Whether a run itself decides a setting."""
    if key.startswith("backbone.") and now.get("backbone.name") == "auto":
        return True
    return now.get(key) == "auto" or (key in _MEASURED_WHEN_EMPTY and not now.get(key))


def _deciding(table: Mapping[str, Any]) -> dict[str, Any]:
    flat = flatten({key: value for key, value in table.items() if key not in _NEUTRAL_SECTIONS})
    plain: dict[str, Any] = json.loads(json.dumps(flat))  # no tuples, as in a result file
    return plain


def _value(table: Mapping[str, Any], key: str) -> str:
    return json.dumps(table[key]) if key in table else "not set"
