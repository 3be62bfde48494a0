"""Result files: what a run reached, and all that is needed to trust or repeat it."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eigenshot.config import Config
from eigenshot.errors import CorruptFileError, UserError, check_at_least
from eigenshot.files import write_json
from eigenshot.options import coerce
from eigenshot.reproduction.names import plain_name
from eigenshot.reproduction.table import Part
from eigenshot.reproduction.versions import other_settings

_FEWSHOT_KEYS = ("accuracy", "ci95", "episodes")
_OPTIONAL = (
    "fewshot",
    "linear",
    "selected",
    "images",
    "evaluation_hardware",
    "side_by_side",
    "lengthened",
    "sessions",
)
_SECTIONS = {name for name, value in Config().to_dict().items() if isinstance(value, dict)}


def result_name(method: str, variant: str, epochs: int, seed: int) -> str:
    """The name of a result's files, without the ending."""
    return f"{plain_name(method)}-{variant}-{epochs}ep-seed{seed}"


@dataclass(frozen=True)
class Result:
    """One run, trained and measured; accuracies are in percent.

    ``variant`` is the recipe, with what a row or the command line changed in it; ``row`` is the
    ``table/row`` it was made for, though any row of equal settings shows it. ``images`` has the
    names of what it learned from and was measured on, as `Part.images`. ``evaluation_hardware`` is
    what it was measured with; empty in older files: that of the training. ``side_by_side`` is how
    many runs of one command shared the device when this one was trained, 0 where that is not known.
    ``lengthened`` has an entry for each shorter run that it went on from, with why (``otherwise``)
    it is not quite what it would have been from a first step of its own; ``seconds`` counts both.
    ``sessions`` has commit, hardware and versions of each in which it was trained, where they
    differ; those of the result are the last ones.
    ``fewshot`` maps the number of shots to ``accuracy``, ``ci95`` and ``episodes``; ``linear`` has
    ``accuracy`` and ``protocol``. A result has one of the two.
    """

    benchmark: str
    method: str
    backbone: str
    epochs: int
    seed: int
    commit: str | None
    hardware: str
    seconds: float
    split: str
    classifier: str
    transductive: bool
    config: dict[str, Any]
    recipe: str
    variant: str
    row: str
    effective_rank: float
    collapsed: bool
    images_per_second: float
    evaluation_seconds: float
    command: str
    versions: dict[str, Any]
    fewshot: dict[str, Any] = field(default_factory=dict)
    linear: dict[str, Any] = field(default_factory=dict)
    selected: dict[str, Any] = field(default_factory=dict)
    images: dict[str, str] = field(default_factory=dict)
    evaluation_hardware: str = ""
    side_by_side: int = 0
    lengthened: list[dict[str, Any]] = field(default_factory=list)
    sessions: list[dict[str, Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of its files, without the ending."""
        return result_name(self.method, self.variant, self.epochs, self.seed)

    @property
    def measure(self) -> str:
        """How it was measured, as `Part.measure`."""
        return "linear" if self.linear else "fewshot"

    def figure(self, shots: int | None) -> tuple[float, float | None] | None:
        """Accuracy and interval for ``shots``, or of the linear evaluation for None."""
        if shots is None:
            return (float(self.linear["accuracy"]), None) if self.linear else None
        measured = self.fewshot.get(str(shots))
        return (float(measured["accuracy"]), float(measured["ci95"])) if measured else None


def differences(result: Result, config: Config, part: Part) -> list[str]:
    """How a result was made otherwise than a run on ``part`` with ``config`` would make it now.

    A sentence for each setting, for images of another name, and for what was not measured.
    """
    found = other_settings(result.config, config)
    for key, name in part.images.items():
        if result.images.get(key, name) != name:
            found.append(f"{key} was {result.images[key]}, is {name}")
    if part.measure != result.measure:
        found.append(f"measure was {result.measure}, is {part.measure}")
    elif any(str(shots) not in result.fewshot for shots in part.shots):
        found.append(f"shots were {', '.join(result.fewshot)}, are {_listed(part.shots)}")
    return found


def measured_elsewhere(one: Result, other: Result) -> bool:
    """Whether two results tell that they were measured on images of other names."""
    names = [result.images.get("evaluate") for result in (one, other)]
    return None not in names and names[0] != names[1]


def beside_settings(part: Part) -> dict[str, str]:
    """What tells results of equal settings apart, as `differences` looks at it."""
    return {**part.images, "measure": part.measure, "shots": _listed(part.shots)}


def _listed(shots: Iterable[int]) -> str:
    return ", ".join(map(str, shots))


def result_file(folder: Path, benchmark: str, name: str) -> Path:
    """Where the result called ``name`` is kept."""
    return folder / benchmark / f"{name}.json"


def curve_file(folder: Path, benchmark: str, name: str) -> Path:
    """Where the learning curve of the result called ``name`` is kept."""
    return folder / benchmark / "curves" / f"{name}.json"


def episodes_file(folder: Path, benchmark: str, name: str) -> Path:
    """Where the counts of the tasks of the result called ``name`` are kept."""
    return folder / benchmark / "episodes" / f"{name}.npz"


def write_result(folder: Path, result: Result) -> Path:
    """Write ``<folder>/<benchmark>/<method>-<tag>.json`` atomically."""
    _check(result)
    table = dataclasses.asdict(result)
    for key in _OPTIONAL:
        if not table[key]:
            del table[key]
    path = result_file(folder, result.benchmark, result.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, table)
    return path


def read_result(path: Path) -> Result:
    """The result in ``path``; a `CorruptFileError` that names the file where there is none."""
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CorruptFileError(f"cannot read '{path}': {error.strerror}") from error
    except ValueError as error:
        raise CorruptFileError(f"'{path}' is not whole: it is no JSON") from error
    try:
        result = _from_table(table)
        _check(result)
    except UserError as error:
        raise CorruptFileError(f"'{path}' is no result of a table: {error}") from None
    if path.stem != result.name or path.parent.name != result.benchmark:
        raise CorruptFileError(
            f"'{path}' holds the result '{result.benchmark}/{result.name}', which is another "
            "name; rename it back"
        )
    return result


def _from_table(table: Any) -> Result:
    if not isinstance(table, Mapping):
        raise UserError("it is no table of names and values")
    hints = typing.get_type_hints(Result)
    lacking = [key for key in hints if key not in table and key not in _OPTIONAL]
    if lacking:
        raise UserError(f"it lacks '{lacking[0]}'")
    known = {key: value for key, value in table.items() if key in hints}
    return Result(**{key: coerce(value, hints[key], key) for key, value in known.items()})


def _check(result: Result) -> None:
    """Refuse a result whose figures cannot be, or that lacks what is read of it."""
    if bool(result.fewshot) == bool(result.linear):
        raise UserError("expected either 'fewshot' or 'linear' in a result")
    for shots, figures in result.fewshot.items():
        entries = figures if isinstance(figures, Mapping) else {}
        if not shots.isdigit() or not all(_is_number(entries.get(key)) for key in _FEWSHOT_KEYS):
            raise UserError(f"fewshot '{shots}' needs the numbers {', '.join(_FEWSHOT_KEYS)}")
        _check_percent(entries["accuracy"], f"fewshot '{shots}'")
        _check_amount(entries["ci95"], f"fewshot '{shots}': ci95")
    if result.linear:
        if not _is_number(result.linear.get("accuracy")) or "protocol" not in result.linear:
            raise UserError("linear needs an accuracy and the protocol")
        _check_percent(result.linear["accuracy"], "linear")
    for name in ("seconds", "effective_rank", "images_per_second", "evaluation_seconds"):
        _check_amount(getattr(result, name), name)
    check_at_least(1, epochs=result.epochs)
    check_at_least(0, seed=result.seed, side_by_side=result.side_by_side)
    for entry in result.lengthened:
        _check_lengthened(entry)
    for name in _SECTIONS & result.config.keys():
        if not isinstance(result.config[name], Mapping):
            raise UserError(f"config: {name} is no section")


def _check_lengthened(entry: Mapping[str, Any]) -> None:
    otherwise = entry.get("otherwise")
    told = isinstance(otherwise, list) and all(isinstance(text, str) for text in otherwise)
    if not told or not all(type(entry.get(key)) is int for key in ("epochs", "step")):
        raise UserError(
            "an entry of lengthened needs whole numbers, epochs and step, and otherwise, a list of "
            "texts"
        )


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _check_amount(value: Any, where: str) -> None:
    if not _is_number(value) or value < 0:
        raise UserError(f"{where} must be a finite number from 0 on, found {value}")


def _check_percent(value: float, where: str) -> None:
    if not 0 <= value <= 100:
        raise UserError(f"{where}: an accuracy is between 0 and 100 percent, found {value}")
