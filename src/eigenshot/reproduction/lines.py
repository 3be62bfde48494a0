"""The results behind a line of a table, and what they reach on average."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from eigenshot.reproduction.episodes import interval_over_tasks
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.plan import Choices, epochs_asked, made_otherwise, variant_of
from eigenshot.reproduction.results import Result
from eigenshot.reproduction.table import Column, Row, Table


@dataclass(frozen=True)
class Line:
    """Results of one line: of as many epochs, by seed; ``changes`` has what was set otherwise."""

    epochs: int
    changes: tuple[str, ...]
    by_seed: dict[int, Result]

    @property
    def results(self) -> list[Result]:
        """The results in the order of their seeds."""
        return list(self.by_seed.values())


def lines_of(
    table: Table,
    row: Row,
    column: Column,
    choices: Choices,
    library: Library,
    epochs: int | None = None,
) -> list[Line]:
    """The row's lines in a column, those of most epochs first; ``epochs`` over those chosen.

    Results of other settings than the row has now are there as long as there are none of those,
    of as many epochs.
    """
    if not row.method:
        return []
    shots = () if column.shots is None else (column.shots,)
    variant = variant_of(table, row, column.part, choices)
    wanted = epochs or epochs_asked(row, choices)
    found: dict[tuple[int, tuple[str, ...]], dict[int, Result]] = {}
    for result in library.find(column.part.benchmark, row.method, variant, wanted):
        if result.figure(column.shots):
            changes = made_otherwise(table, row, column.part, choices, result, shots)
            found.setdefault((result.epochs, changes), {})[result.seed] = result
    current = {count for count, changes in found if not changes}
    lines = [Line(*place, by_seed) for place, by_seed in found.items()]
    return [line for line in lines if not line.changes or line.epochs not in current]


def accuracies(results: Sequence[Result], shots: int | None) -> list[float]:
    """What each result reaches, in percent."""
    return [figure[0] for result in results if (figure := result.figure(shots))]


def interval_of_mean(
    results: Sequence[Result], shots: int | None, library: Library
) -> tuple[float | None, bool]:
    """The half-width over tasks of what the seeds reach on average, and whether it is exact.

    It is not where the tasks' answers are not known: then it is the mean of the seeds' own.
    """
    figures = [figure for result in results if (figure := result.figure(shots))]
    widths = [interval for _, interval in figures if interval is not None]
    if shots is None or len(widths) < 2:
        return (widths[0] if widths else None), True
    counts = library.episodes(results)
    width = interval_over_tasks(counts, shots) if len(counts) == len(results) else None
    return (statistics.mean(widths), False) if width is None else (width, True)
