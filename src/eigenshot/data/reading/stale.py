"""Clearing up decoded copies of data that have changed since."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from eigenshot.data.reading.locks import idle

_SUFFIXES = (".json", ".u8", ".partial", ".squeezed", ".journal")


def remove_stale(stem: Path, origin: str, size: int, channels: int) -> None:
    """Remove what the cache has of earlier states of the same data, whole or abandoned.

    What another process is building stays. A copy that another process still reads goes: it keeps
    the file that it has mapped.

    Parameters
    ----------
    stem : of the copy about to be made, which stays
    origin : of the table, as `eigenshot.data.tables.encoded.Encoded` has it
    """
    for file in [*stem.parent.glob("*.json"), *stem.parent.glob("*.journal")]:
        other = file.with_suffix("")
        if other.name == stem.name or _content(file) != (origin, size, channels):
            continue
        with idle(other) as free:
            for suffix in _SUFFIXES if free else ():
                with contextlib.suppress(OSError):
                    other.with_suffix(suffix).unlink(missing_ok=True)


def _content(file: Path) -> tuple[str, int, int] | None:
    """Origin, size and channels that a header or journal names; None where it names none."""
    try:
        with file.open(encoding="utf-8") as handle:
            if file.suffix == ".journal":  # the first line is the settings
                _, _, size, channels, _, origin = json.loads(handle.readline())
            else:
                header = json.load(handle)
                origin, (_, channels, size, _) = header["origin"], header["shape"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return origin, size, channels
