"""Ours beside the paper's: what each row of a table has reached, as cells of text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from eigenshot.errors import UserError
from eigenshot.reproduction.episodes import paired
from eigenshot.reproduction.figures import Figure
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.plan import Choices, Plan, other_settings, settled, variant_of
from eigenshot.reproduction.results import Result
from eigenshot.reproduction.table import Column, Row, Table
from eigenshot.training.pretrain import duration

_PAIRED = "to {compare}, paired"
HEADINGS = (
    "row",
    "backbone",
    "labels",
    "paper",
    "measured",
    "difference",
    _PAIRED,
    "epochs",
    "seeds",
    "time",
    "hardware",
)
NOTHING = "–"


@dataclass
class Notes:
    """Numbered notes, each text once."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> str:
        """The mark that refers to ``text``."""
        if text not in self.texts:
            self.texts.append(text)
        return f"[{self.texts.index(text) + 1}]"


@dataclass(frozen=True)
class Section:
    """One column of the table with everything beside it."""

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Comparison:
    """A table filled in: a section a column, and the notes that they refer to."""

    table: Table
    choices: Choices
    sections: tuple[Section, ...]
    notes: tuple[str, ...]


def compare(
    table: Table,
    choices: Choices,
    plan: Plan,
    library: Library,
    remarks: Mapping[tuple[str, str], Sequence[str]] | None = None,
) -> Comparison:
    """Fill a table from the results that are there.

    A row has a line for each number of epochs that it was run for, most first; with
    ``choices.epochs`` for that alone. ``remarks`` say why rows were not run just now.
    """
    notes = Notes()
    filler = _Filler(table, choices, plan, library, remarks or {}, notes)
    sections = [
        _section(table, column, [line for row in table.rows for line in filler.lines(row, column)])
        for column in table.columns
    ]
    return Comparison(table, choices, tuple(sections), tuple(notes.texts))


def _section(table: Table, column: Column, lines: list[tuple[str, ...]]) -> Section:
    """The lines with their headings, without those that this column cannot fill."""
    paired_too = column.shots is not None and table.compare
    kept = [n for n, text in enumerate(HEADINGS) if paired_too or text != _PAIRED]
    headings = tuple(HEADINGS[n].format(compare=table.compare) for n in kept)
    return Section(column.title, headings, tuple(tuple(line[n] for n in kept) for line in lines))


@dataclass(frozen=True)
class _Filler:
    """Makes the lines of one table."""

    table: Table
    choices: Choices
    plan: Plan
    library: Library
    remarks: Mapping[tuple[str, str], Sequence[str]]
    notes: Notes

    def lines(self, row: Row, column: Column) -> list[tuple[str, ...]]:
        """The lines of a row in a column, one where there is nothing to show."""
        shown = [
            self._filled(row, column, list(by_seed.values()))
            for by_seed in self._results(row, column).values()
            if any(result.figure(column.shots) for result in by_seed.values())
        ]
        return shown or [self._line(row, column, self._empty(row, column))]

    def _results(
        self, row: Row, column: Column, epochs: int | None = None
    ) -> dict[int, dict[int, Result]]:
        if not row.method:
            return {}
        variant = variant_of(row, column.part, self.choices)
        wanted = epochs or self.choices.epochs
        return self.library.find(column.part.benchmark, row.method, variant, wanted)

    def _empty(self, row: Row, column: Column) -> str:
        place = (row.name, column.part.title)
        if place in self.plan.impossible:
            return f"cannot be run {self.notes.mark(self.plan.impossible[place])}"
        return " ".join(["not run", *map(self.notes.mark, self.remarks.get(place, ()))])

    def _filled(self, row: Row, column: Column, found: list[Result]) -> tuple[str, ...]:
        results = [result for result in found if result.figure(column.shots)]
        marks = [*self._changes(row, column, results)]
        marks += map(self.notes.mark, self.remarks.get((row.name, column.part.title), ()))
        return self._line(
            row,
            column,
            " ".join([measured_text(results, column.shots), *dict.fromkeys(marks)]),
            _difference(_paper(row, column), results, column.shots),
            self._paired(row, column, results),
            str(results[0].epochs),
            ", ".join(str(result.seed) for result in results),
            duration(statistics.mean(result.seconds for result in results)),
            ", ".join(dict.fromkeys(result.hardware for result in results)),
        )

    def _line(self, row: Row, column: Column, measured: str, *rest: str) -> tuple[str, ...]:
        figure = _paper(row, column)
        printed = "not in the paper" if not row.paper else figure.text if figure else NOTHING
        labels = "all" if row.supervised else "none"
        cells = (row.label, row.backbone, labels, printed, measured, *rest)
        return cells + (NOTHING,) * (len(HEADINGS) - len(cells))

    def _changes(self, row: Row, column: Column, results: list[Result]) -> list[str]:
        """Marks for results that were made with other settings than the row has now."""
        marks = []
        for result in results:
            try:
                config = settled(
                    self.table, row, column.part, self.choices, result.seed, result.epochs
                )
            except UserError:  # the row cannot be run now, which is no fault of the result
                continue
            changed = other_settings(result.config, config)
            if changed:
                listed = "; ".join(changed)
                marks.append(self.notes.mark(f"made with other settings: {listed}"))
        return marks

    def _paired(self, row: Row, column: Column, results: list[Result]) -> str:
        """The difference to the row of comparison, run as long, with the same seeds."""
        if column.shots is None or row.name == self.table.compare or not self.table.compare:
            return NOTHING
        epochs = results[0].epochs
        reference = self._results(self.table.row(self.table.compare), column, epochs)
        others = reference.get(epochs, {})
        pairs = [
            self.library.episodes([result, others[result.seed]])
            for result in results
            if result.seed in others
        ]
        whole = [pair for pair in pairs if len(pair) == 2]
        difference = paired([one for one, _ in whole], [other for _, other in whole], column.shots)
        return NOTHING if difference is None else f"{difference[0]:+.2f} ± {difference[1]:.2f}"


def measured_text(results: Sequence[Result], shots: int | None) -> str:
    """Accuracy with its interval; of several seeds the mean, and the deviation between them."""
    figures = [figure for result in results if (figure := result.figure(shots))]
    accuracy = statistics.mean(accuracy for accuracy, _ in figures)
    intervals = [interval for _, interval in figures if interval is not None]
    text = f"{accuracy:.2f}"
    if intervals:
        text += f" ± {statistics.mean(intervals):.2f}"
    if len(figures) > 1:
        text += f", sd {statistics.stdev(accuracy for accuracy, _ in figures):.2f}"
    collapsed = sum(result.collapsed for result in results)
    if not collapsed:
        return text
    share = "" if collapsed == len(results) else f" in {collapsed} of {len(results)}"
    return f"collapsed{share} ({text})"


def _paper(row: Row, column: Column) -> Figure | None:
    return row.paper[column.index] if row.paper else None


def _difference(figure: Figure | None, results: Sequence[Result], shots: int | None) -> str:
    """Measured less printed, in points."""
    collapsed = all(result.collapsed for result in results)
    if figure is None:
        return NOTHING
    if figure.accuracy is None:
        return "as in the paper" if collapsed else NOTHING
    accuracies = [found[0] for result in results if (found := result.figure(shots))]
    return f"{statistics.mean(accuracies) - figure.accuracy:+.2f}"
