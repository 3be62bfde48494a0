"""Which runs fill a table, with which settings, under which name, and in which order."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from eigenshot.config import Config
from eigenshot.configfile import layered, load_config
from eigenshot.errors import UserError
from eigenshot.evaluation.classifiers import get_classifier
from eigenshot.reproduction.names import plain_name
from eigenshot.reproduction.results import Result, differences, result_name
from eigenshot.reproduction.table import NO_SETTINGS, Part, Row, Table
from eigenshot.reproduction.versions import (
    as_texts,
    is_version,
    lasting,
    short_digest,
    shown,
)
from eigenshot.training.setup import check_parts, of_no_use

_LONGEST = 60  # characters of changed settings in a name
# What has an option of its own, or is what a row is about.
_TAKEN = {"training.epochs": "use --epochs", **NO_SETTINGS}


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
        return lasting(self.settings)

    @property
    def options(self) -> list[str]:
        """The words of a command line that ask for these epochs and settings."""
        words = [] if self.epochs is None else ["--epochs", str(self.epochs)]
        for key, value in self.settings.items():
            words += ["--set", f"{key}={shown(value)}"]
        return words

    @property
    def suffix(self) -> str:
        """What a file of the whole table has in its name; empty for the table as it is."""
        parts = [f"{self.epochs}ep"] if self.epochs else []
        parts += [_changes_name(self.changes)] if self.changes else []
        return "".join(f"-{part}" for part in parts)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a table: a row on a part, with a seed.

    ``variant`` names its settings, ``trained`` those of the training alone.
    """

    table: str
    row: Row
    part: Part
    seed: int
    config: Config
    variant: str
    trained: str
    command: str
    later_seed: bool = False  # whether the row was asked for with another seed before

    @property
    def seed_is_told(self) -> bool:
        """Whether what is said of the run names its seed: unless that is 0, asked for first."""
        return self.later_seed or self.seed != 0

    @property
    def name(self) -> str:
        """Of the run's result files."""
        return self.named(self.variant)

    def named(self, variant: str) -> str:
        """The name of a run like this one with the settings of ``variant``."""
        return result_name(self.row.method, variant, self.config.training.epochs, self.seed)

    def is_named_alike(self, name: str) -> bool:
        """Whether ``name`` is that of a training like this one's, of any number of epochs."""
        method = re.escape(plain_name(self.row.method))
        parts = re.fullmatch(rf"{method}-(.+)-\d+ep-seed{self.seed}", name)
        return parts is not None and is_version(parts[1], self.trained)


@dataclass(frozen=True)
class Plan:
    """Runs, the most valuable first, and why others cannot be, by row and title of the part.

    ``mistakes`` has a sentence for each chosen row that cannot be run whatever was set for all.
    """

    runs: tuple[PlannedRun, ...]
    impossible: dict[tuple[str, str], str]
    mistakes: tuple[str, ...] = ()


def make_plan(table: Table, choices: Choices, *, given: str | None = None) -> Plan:
    """All runs that the table wants, whether or not their results are there.

    The first seed of every row comes before the second of any. ``given`` is how the user called
    the table, for the command that repeats a run.
    """
    chosen = [table.row(name) for name in choices.rows] or list(table.rows)
    runs: list[tuple[tuple[int, int, int], PlannedRun]] = []
    failed: list[tuple[Row, Part]] = []
    impossible = {(r.name, p.title): r.cannot for r in table.rows if r.cannot for p in table.parts}
    for row in (row for row in table.rows if row.method):
        for position, part in enumerate(table.parts):
            try:
                variant = variant_of(table, row, part, choices)
                trained = variant_of(table, row, part, choices, evaluation=False)
                configs = _checked(table, row, part, choices)
            except UserError as error:
                impossible[row.name, part.title] = str(error)
                failed += [(row, part)] if row in chosen else []
                continue
            if row not in chosen:
                continue
            for number, config in enumerate(configs):
                seed = config.training.seed
                command = _command(given or table.name, row, choices, seed)
                run = PlannedRun(
                    table.name,
                    row,
                    part,
                    seed,
                    config,
                    variant=variant,
                    trained=trained,
                    command=command,
                    later_seed=number > 0,
                )
                runs.append(((number, row.order, position), run))
    mistakes, spoiled = [], []
    for row, part in sorted(failed, key=lambda entry: entry[0].order):
        try:
            _checked(table, row, part, replace(choices, settings={}))
        except UserError as error:  # the row is at fault itself
            mistakes.append(f"row '{row.name}': {error}")
        else:
            spoiled.append(impossible[row.name, part.title])
    if spoiled and not runs:  # a setting that only some rows do not know is a remark on those
        raise UserError(spoiled[0])
    runs.sort(key=lambda entry: entry[0])
    return Plan(tuple(run for _, run in runs), impossible, tuple(dict.fromkeys(mistakes)))


def _checked(table: Table, row: Row, part: Part, choices: Choices) -> list[Config]:
    """The settings of a row's runs, one for each seed; a UserError where they cannot be."""
    configs = [settled(table, row, part, choices, seed) for seed in choices.seeds]
    config = configs[0]
    if config.backbone.name == "auto":  # which the device settles; the head is tried on another
        config = replace(config, backbone=replace(config.backbone, name="conv4", options={}))
    check_parts(config, own_backbone=False)
    if sentence := of_no_use(config, part.data):  # the table would say that every run has it
        raise UserError(sentence)
    get_classifier(config.evaluation.classifier, {})
    return configs


def settled(
    table: Table, row: Row, part: Part, choices: Choices, seed: int, epochs: int | None = None
) -> Config:
    """The settings of a run; ``epochs`` over those that were chosen."""
    asked = {**choices.settings, "training.seed": seed}
    length = epochs or epochs_asked(row, choices)
    if length is not None:
        asked["training.epochs"] = length
    row_settings = {"method.name": row.method, **row.settings}
    overrides = layered(row.method, table.settings, part.settings, row_settings, asked)
    return load_config(table.recipe(row, part), overrides)


def made_otherwise(
    table: Table,
    row: Row,
    part: Part,
    choices: Choices,
    result: Result,
    shots: tuple[int, ...] | None = None,
) -> tuple[str, ...]:
    """How ``result`` was made otherwise than ``row`` would be now, a sentence for each thing.

    Where only some columns matter, they are those of ``shots``.
    """
    try:
        config = settled(table, row, part, choices, result.seed, result.epochs)
    except UserError:  # the row cannot be run now, which is no fault of the result
        return ()
    wanted = part if shots is None else replace(part, shots=shots)
    return tuple(differences(result, config, wanted))


def epochs_asked(row: Row, choices: Choices) -> int | None:
    """The epochs that a row is asked for, at most those it names; None for its own."""
    own = row.settings.get("training.epochs")
    if choices.epochs is None or not isinstance(own, int):
        return choices.epochs
    return min(choices.epochs, own)


def variant_of(
    table: Table, row: Row, part: Part, choices: Choices, *, evaluation: bool = True
) -> str:
    """The recipe's name, with the row's where that changes it, and what was set for all.

    What table and part set is there as a digest, for as far as it reaches this row and decides its
    result. Without ``evaluation`` it names the training alone, which rows share that set nothing
    but how the encoder is measured.
    """

    def counted(settings: Mapping[str, Any]) -> dict[str, Any]:
        """Those of ``settings`` that the name tells apart."""
        if evaluation:
            return dict(settings)
        kept = lasting(settings).items()
        return {key: value for key, value in kept if not key.startswith("evaluation.")}

    name = plain_name(os.path.basename(table.recipe(row, part)).removesuffix(".toml"))
    elsewhere = {*_TAKEN, *row.settings, *choices.settings}
    shared = counted(lasting({**table.settings, **part.settings}))
    reaching = {key: value for key, value in shared.items() if key not in elsewhere}
    if reaching:
        name += f"-{short_digest(as_texts(reaching))}"
    if counted(row.settings):
        name += f"-{row.name}"
    changes = counted(choices.changes)
    return f"{name}-{_changes_name(changes)}" if changes else name


def _changes_name(changes: Mapping[str, Any]) -> str:
    texts = as_texts(changes)
    name = plain_name("_".join(texts))
    return name if len(name) <= _LONGEST else f"{name[:_LONGEST]}-{short_digest(texts)}"


def _command(given: str, row: Row, choices: Choices, seed: int) -> str:
    """The command line that makes this run alone."""
    words = ["eigenshot", "reproduce", given, "--rows", row.name, "--seeds", str(seed)]
    return shlex.join([*words, *choices.options])
