"""A figure as a table prints it: an accuracy, with its interval or without, or a collapse."""

from __future__ import annotations

import re
from dataclasses import dataclass

from eigenshot.errors import UserError

_NUMBER = r"\d+(?:\.\d+)?"
_FIGURE = re.compile(rf"({_NUMBER})(?:\s*±\s*({_NUMBER}))?")


@dataclass(frozen=True)
class Figure:
    """A printed figure in percent; ``accuracy`` is None where it says "collapsed"."""

    text: str
    accuracy: float | None
    interval: float | None = None


def parse_figure(text: str) -> Figure:
    """``"39.7 ± 0.7"``, ``"92.24"`` or ``"collapsed"``."""
    stripped = text.strip()
    if stripped.lower() == "collapsed":
        return Figure("collapsed", None)
    match = _FIGURE.fullmatch(stripped)
    if match is None:
        raise UserError(
            f"expected a figure like '39.7 ± 0.7', '92.24' or 'collapsed', found '{text}'"
        )
    accuracy, interval = match.groups()
    return Figure(stripped, float(accuracy), None if interval is None else float(interval))
