"""Ours beside the paper's: what each row of a table has reached, as cells of text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eigenshot.errors import UserError
from eigenshot.methods import learns_from_labels
from eigenshot.reporter import duration
from eigenshot.reproduction.episodes import paired
from eigenshot.reproduction.figures import Figure
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.lines import Line, accuracies, interval_of_mean, lines_of
from eigenshot.reproduction.plan import Choices, Plan
from eigenshot.reproduction.results import Result, measured_elsewhere
from eigenshot.reproduction.table import Column, Row, Table

_PAPER, _DIFFERENCE, _PAIRED = "paper", "difference", "paired"
HEADINGS = (
    "row",
    "backbone",
    "labels",
    _PAPER,
    "measured",
    _DIFFERENCE,
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
    ``choices.epochs`` for that alone. Results of other settings than the row has now are shown,
    with a note, as long as there are none of those. ``remarks`` say why rows were not run just now.
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
    references = _references(table) if column.shots is not None else set()
    empty = set() if references else {_PAIRED}
    empty |= set() if any(row.paper for row in table.rows) else {_PAPER, _DIFFERENCE}
    kept = [n for n, text in enumerate(HEADINGS) if text not in empty]
    heading = f"to {min(references)}, {_PAIRED}" if len(references) == 1 else _PAIRED
    headings = tuple(heading if HEADINGS[n] == _PAIRED else HEADINGS[n] for n in kept)
    return Section(column.title, headings, tuple(tuple(line[n] for n in kept) for line in lines))


def _references(table: Table) -> set[str]:
    """The rows that others are compared with."""
    return {name for row in table.rows if row.method and (name := table.reference(row))}


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
        shown = [self._filled(row, column, line) for line in self._results(row, column)]
        return shown or [self._line(row, column, self._empty(row, column))]

    def _results(self, row: Row, column: Column, epochs: int | None = None) -> list[Line]:
        return lines_of(self.table, row, column, self.choices, self.library, epochs)

    def _empty(self, row: Row, column: Column) -> str:
        place = (row.name, column.part.title)
        if place in self.plan.impossible:
            return f"cannot be run {self.notes.mark(self.plan.impossible[place])}"
        return " ".join(["not run", *map(self.notes.mark, self.remarks.get(place, ()))])

    def _filled(self, row: Row, column: Column, line: Line) -> tuple[str, ...]:
        results = line.results
        interval, marks = self._interval(line, column)
        marks += self._mark_changes(line)
        marks += map(self.notes.mark, self.remarks.get((row.name, column.part.title), ()))
        return self._line(
            row,
            column,
            " ".join([measured_text(results, column.shots, interval), *dict.fromkeys(marks)]),
            _difference(_paper(row, column), results, column.shots),
            self._paired(row, column, line),
            str(line.epochs),
            ", ".join(map(str, line.by_seed)),
            duration(statistics.mean(result.seconds for result in results)),
            ", ".join(dict.fromkeys(result.hardware for result in results)),
        )

    def _line(self, row: Row, column: Column, measured: str, *rest: str) -> tuple[str, ...]:
        figure = _paper(row, column)
        printed = "not in the paper" if not row.paper else figure.text if figure else NOTHING
        labels = "all" if _uses_labels(row) else "none"
        # The table's word is for the recipe's network; another one is told as it was set.
        other = self.choices.settings.get("backbone.name") if row.method else None
        cells = (row.label, other or row.backbone, labels, printed, measured, *rest)
        return cells + (NOTHING,) * (len(HEADINGS) - len(cells))

    def _mark_changes(self, line: Line) -> list[str]:
        listed = "; ".join(line.changes)
        texts = [f"made otherwise: {listed}"] if listed else []
        for result in line.results:
            for entry in result.lengthened:
                if entry["otherwise"]:  # else it is what it would have been without
                    texts.append(f"{_went_on(entry)}: {'; '.join(entry['otherwise'])}")
        return [self.notes.mark(text) for text in dict.fromkeys(texts)]

    def _interval(self, line: Line, column: Column) -> tuple[float | None, list[str]]:
        """The half-width of what the seeds reach on average, and marks for it."""
        interval, exact = interval_of_mean(line.results, column.shots, self.library)
        text = "± is the mean of the seeds' own: what they answered on the same tasks is not known"
        return interval, [] if exact else [self.notes.mark(text)]

    def _paired(self, row: Row, column: Column, line: Line) -> str:
        """The difference to the row of comparison, run as long, with the same seeds."""
        name = self.table.reference(row)
        if column.shots is None or not name:
            return NOTHING
        lines = self._results(self.table.row(name), column, line.epochs)
        if not lines:
            return NOTHING
        others = lines[0].by_seed
        pairs = {
            seed: self.library.episodes([result, others[seed]])
            for seed, result in line.by_seed.items()
            if seed in others and not measured_elsewhere(result, others[seed])
        }
        whole = {seed: pair for seed, pair in pairs.items() if len(pair) == 2}
        ones, rivals = ([pair[side] for pair in whole.values()] for side in (0, 1))
        difference = paired(ones, rivals, column.shots)
        if difference is None:
            return NOTHING
        words = [f"{difference[0]:+.2f} ± {difference[1]:.2f}"]
        words += [f"to {name}"] if len(_references(self.table)) > 1 else []
        words += self._mark_changes(lines[0])
        if len(whole) < len(line.by_seed):
            seeds = f"seed{'s' if len(whole) > 1 else ''} {', '.join(map(str, whole))}"
            words.append(self.notes.mark(f"paired for {seeds} only, which both rows have"))
        return " ".join(words)


def _uses_labels(row: Row) -> bool:
    """Whether the training uses labels: its method tells, and where that is not here the table.

    A method of one's own may have them from elsewhere, as the table then says.
    """
    if not row.method:
        return row.supervised
    try:
        learns = learns_from_labels(row.method)
    except UserError:
        return row.supervised
    return learns or (":" in row.method and row.supervised)


def _went_on(entry: Mapping[str, Any]) -> str:
    return f"went on from a run of {entry['epochs']} epochs at step {entry['step']}"


def measured_text(results: Sequence[Result], shots: int | None, interval: float | None) -> str:
    """Accuracy with its interval; of several seeds the mean, and the deviation between them."""
    reached = accuracies(results, shots)
    text = f"{statistics.mean(reached):.2f}"
    if interval is not None:
        text += f" ± {interval:.2f}"
    if len(reached) > 1:
        text += f", sd {statistics.stdev(reached):.2f}"
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
    return f"{statistics.mean(accuracies(results, shots)) - figure.accuracy:+.2f}"
