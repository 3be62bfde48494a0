"""A table as data: the paper's figures, and what runs each row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from eigenshot.errors import UserError, did_you_mean
from eigenshot.reproduction.figures import Figure
from eigenshot.reproduction.names import place_name

Measure = Literal["fewshot", "linear"]

# What is no setting of a run here, and what says it instead.
NO_SETTINGS = {
    "training.seed": "use --seeds",
    "method.name": "it is the 'method' of a row, which a table of your own can have",
}


@dataclass(frozen=True)
class Part:
    """What a row is run on: one training and one measurement, which fills one or more columns.

    Parameters
    ----------
    title : of its columns, for people.
    data : what is learned from.
    recipe : of the runs, unless a row has its own.
    measure : ``"fewshot"`` or ``"linear"``.
    shots : of the few-shot tasks, a column each.
    evaluate : labelled images that are tested on; ``data`` by default.
    train : labelled images that a linear classifier learns from; as ``evaluate`` by default.
    benchmark : folder of the result files; by default made of the names of the data.
    settings : overrides of the recipe, for all rows.
    """

    title: str
    data: str
    recipe: str
    measure: Measure
    shots: tuple[int, ...] = ()
    evaluate: str = ""
    train: str = ""
    benchmark: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def images(self) -> dict[str, str]:
        """What a result is of, by the names of the data, as `place_name` has them."""
        named = {"data": self.data, "evaluate": self.evaluate}
        if self.measure == "linear":
            named["train"] = self.train
        return {key: place_name(data) for key, data in named.items()}


@dataclass(frozen=True)
class Row:
    """A row: what the paper says, and what runs it here.

    ``paper`` has a figure a column, None where the paper has none; it is empty for a row that the
    paper does not have. A row has a ``method``, or says in ``cannot`` why it is not run here.
    ``recipe`` has a name for each part, empty for the part's own, or is empty as a whole; in the
    file one text stands for all parts. ``settings`` change the recipe. A lower ``order`` is run
    earlier.
    ``compare`` is the row that this one is compared with, instead of the table's; its own name says
    that there is none.
    ``series`` and ``at`` say where the row stands on the table's axis.
    """

    name: str
    label: str
    backbone: str
    supervised: bool = False
    paper: tuple[Figure | None, ...] = ()
    method: str = ""
    recipe: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    order: int = 100
    cannot: str = ""
    compare: str = ""
    series: str = ""
    at: float | None = None


@dataclass(frozen=True)
class Column:
    """One figure of every row; ``shots`` is None for a linear evaluation."""

    title: str
    part: Part
    shots: int | None
    index: int


@dataclass(frozen=True)
class Table:
    """Rows, columns, and ``compare``, the row that others are compared with on the same tasks.

    ``axis`` says in words what rows are placed along; it is empty where they are not.
    """

    name: str
    title: str
    parts: tuple[Part, ...]
    rows: tuple[Row, ...]
    compare: str = ""
    note: str = ""
    axis: str = ""
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def series(self) -> list[str]:
        """The names of the series along the axis, in the order of the rows."""
        return list(dict.fromkeys(row.series for row in self.rows if row.series))

    @property
    def places(self) -> list[float]:
        """The places on the axis that rows have, in order."""
        return sorted({row.at for row in self.rows if row.at is not None})

    @property
    def columns(self) -> list[Column]:
        """The columns in the order of the rows' figures."""
        found: list[Column] = []
        for part in self.parts:
            for shots in part.shots or (None,):
                title = part.title if shots is None else f"{part.title} {shots}-shot"
                found.append(Column(title, part, shots, len(found)))
        return found

    def reference(self, row: Row) -> str:
        """The name of the row that ``row`` is compared with; empty where there is none."""
        name = row.compare or self.compare
        return "" if name == row.name else name

    def recipe(self, row: Row, part: Part) -> str:
        """What ``row`` is run by on ``part``: its own recipe, or the part's."""
        own = row.recipe[self.parts.index(part)] if row.recipe else ""
        return own or part.recipe

    def row(self, name: str) -> Row:
        """The row called ``name``."""
        rows = {row.name: row for row in self.rows}
        if name not in rows:
            raise UserError(f"'{self.name}' has no row '{name}'{did_you_mean(name, rows)}")
        return rows[name]
