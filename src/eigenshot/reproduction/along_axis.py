"""A table's accuracies along its axis, as a picture beside it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from eigenshot.reporter import count_epochs
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.lines import Line, accuracies, interval_of_mean, lines_of
from eigenshot.reproduction.plan import Choices
from eigenshot.reproduction.table import Column, Part, Table

if TYPE_CHECKING:
    from eigenshot.reports.axis_picture import Point


@dataclass(frozen=True)
class _Shown:
    """The line that a row is shown by in a column."""

    column: Column
    series: str
    at: float
    line: Line


def drawing_along(
    table: Table, part: Part, choices: Choices, library: Library
) -> Callable[..., None] | None:
    """What draws accuracy along the table's axis for a part of it; None where there is none.

    A column has a panel. A row is shown by one of its lines in the table: of the settings of now
    before others, of these the longest. The title tells the epochs, or where they differ the name
    of each series. A series has its colour whether or not the others are there.
    """
    from eigenshot.reports.axis_picture import Panel, Series, draw_along_axis  # takes a second

    shown = _shown_lines(table, part, choices, library)
    if not shown:
        return None
    title, alike = f"{table.title}: {part.title}", len({entry.line.epochs for entry in shown}) == 1
    panels = []
    for column in (column for column in table.columns if column.part == part):
        series = []
        for place, name in enumerate(table.series):
            own = [entry for entry in shown if (entry.column, entry.series) == (column, name)]
            if own:
                label = name if alike else f"{name} ({_epochs(own)})"
                points = [_point(entry, library) for entry in own]
                series.append(Series(label, points, place))
        if series:
            panels.append(Panel(_measure(column), series))
    title += f", {_epochs(shown)}" if alike else ""
    return partial(draw_along_axis, shown=panels, title=title, axis=table.axis, places=table.places)


def _shown_lines(table: Table, part: Part, choices: Choices, library: Library) -> list[_Shown]:
    """What there is to show of a part, from left to right."""
    found = []
    for column in (column for column in table.columns if column.part == part):
        for row in table.rows:
            if row.at is None:
                continue
            lines = lines_of(table, row, column, choices, library)
            if lines:  # the longest is the first
                line = min(lines, key=lambda line: bool(line.changes))
                found.append(_Shown(column, row.series, row.at, line))
    return sorted(found, key=lambda entry: entry.at)


def _point(entry: _Shown, library: Library) -> Point:
    from eigenshot.reports.axis_picture import Point

    results, shots = entry.line.results, entry.column.shots
    return Point(
        entry.at,
        statistics.mean(accuracies(results, shots)),
        interval_of_mean(results, shots, library)[0],
        collapsed=any(result.collapsed for result in results),
        otherwise=bool(entry.line.changes),
    )


def _epochs(shown: list[_Shown]) -> str:
    """How long the runs were, as ``"100 epochs"`` or ``"100 epochs, 40 at 64"``."""
    places: dict[int, list[str]] = {}
    for entry in shown:
        places.setdefault(entry.line.epochs, []).append(f"{entry.at:g}")
    usual, *others = sorted(places, key=lambda epochs: (-len(places[epochs]), -epochs))
    exceptions = (f", {epochs} at {' and '.join(places[epochs])}" for epochs in others)
    return count_epochs(usual) + "".join(exceptions)


def _measure(column: Column) -> str:
    if column.shots is None:
        return "accuracy of a linear classifier, %"
    return f"{column.shots}-shot accuracy, %"
