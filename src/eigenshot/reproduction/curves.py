"""The learning curve of a run: its metrics epoch by epoch, in a small file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eigenshot.errors import CorruptFileError
from eigenshot.files import write_text

_DIGITS = 5
_LEFT_OUT = ("step", "z_std_min", "images_per_second")


def curve_of(records: Sequence[dict[str, Any]]) -> dict[str, list[float | None]]:
    """A series for each metric of ``metrics.jsonl``; None where an epoch did not measure it."""
    names = dict.fromkeys(name for record in records for name in record if name not in _LEFT_OUT)
    return {name: [_rounded(record.get(name)) for record in records] for name in names}


def _rounded(value: Any) -> float | None:
    if not isinstance(value, int | float):
        return None
    return value if isinstance(value, int) else float(f"{value:.{_DIGITS}g}")


def write_curve(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Write `curve_of` the records as JSON, a line a series."""
    series = (f"  {json.dumps(name)}: {json.dumps(v)}" for name, v in curve_of(records).items())
    write_text(path, "{\n" + ",\n".join(series) + "\n}\n")


def read_curve(path: Path) -> dict[str, list[float | None]]:
    """What `write_curve` wrote; a `CorruptFileError` that names the file for anything else."""
    damaged = CorruptFileError(
        f"'{path}' holds no learning curve that can be read; remove it and the result file "
        f"'{path.name}' beside its folder to have it written again"
    )
    try:
        curve = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged from error
    if not isinstance(curve, dict) or not all(map(_is_series, curve.values())):
        raise damaged
    return curve


def _is_series(values: Any) -> bool:
    return isinstance(values, list) and all(
        value is None or type(value) in (int, float) for value in values
    )
