"""A table as data: the paper's figures, and what runs each row."""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from eigenshot.config import flatten
from eigenshot.errors import UserError, did_you_mean
from eigenshot.options import coerce
from eigenshot.reproduction.axis import check_axis
from eigenshot.reproduction.figures import Figure, parse_figure
from eigenshot.reproduction.names import place_name, plain_name

Measure = Literal["fewshot", "linear"]


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


def list_tables() -> list[str]:
    """Names of the tables in the package."""
    folder = resources.files("eigenshot.reproduction") / "tables"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_table(name: str) -> Table:
    """The table of that name, or in a TOML file by its path."""
    if name.endswith(".toml"):
        path = Path(name).expanduser()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text in UTF-8"
            raise UserError(f"cannot read the table '{name}': {reason}") from error
        label, folder = _own_name(path), path.parent
    else:
        if name not in list_tables():
            hint = did_you_mean(name, list_tables())
            raise UserError(f"unknown table '{name}'{hint}; a table of your own is a .toml file")
        entry = resources.files("eigenshot.reproduction") / "tables" / f"{name}.toml"
        text, label, folder = entry.read_text(encoding="utf-8"), name, None
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"table '{name}' is not valid TOML: {error}") from error
    try:
        return _with_recipes_in(folder, _table(label, content))
    except UserError as error:
        raise UserError(f"table '{name}': {error}") from None


def _own_name(path: Path) -> str:
    """What the files of a table of one's own are called among the results."""
    name = plain_name(path.stem)
    if not name:
        raise UserError(f"a table's file needs letters or digits in its name, found '{path}'")
    if name.lower() in ("readme", *list_tables()):  # which some systems take for the same
        raise UserError(
            f"the table '{path}' needs another name: among the results '{name}.md' is not a file "
            "of one's own tables"
        )
    return name


def _with_recipes_in(folder: Path | None, table: Table) -> Table:
    """The table with recipes that are files looked for beside it, where they lie there."""
    if folder is None:
        return table

    def beside(recipe: str) -> str:
        file = folder / recipe
        return str(file) if recipe.endswith(".toml") and file.is_file() else recipe

    parts = tuple(dataclasses.replace(p, recipe=beside(p.recipe)) for p in table.parts)
    rows = tuple(dataclasses.replace(r, recipe=tuple(map(beside, r.recipe))) for r in table.rows)
    return dataclasses.replace(table, parts=parts, rows=rows)


def _table(name: str, content: Mapping[str, Any]) -> Table:
    given = dict(content)
    parts = [_part(entry, number) for number, entry in enumerate(_entries(given, "part"), 1)]
    kept = [(part.benchmark, part.recipe, part.settings) for part in parts]
    for number, place in enumerate(kept):
        if place in kept[:number]:
            raise UserError(
                f"part {number + 1} would keep its results with another's, as '{place[0]}'; give "
                "it a 'benchmark' of its own"
            )
    columns = sum(len(part.shots) or 1 for part in parts)
    rows = [_row(entry, columns, len(parts)) for entry in _entries(given, "row")]
    names = [row.name for row in rows]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UserError(f"expected every row once, found '{repeated[0]}' more than once")
    table: Table = _build(Table, {**given, "name": name, "parts": (), "rows": ()}, "the table")
    table = dataclasses.replace(table, parts=tuple(parts), rows=tuple(rows))
    for reference in filter(None, (table.compare, *(row.compare for row in rows))):
        table.row(reference)
    check_axis(table.axis, {row.name: (row.series, row.at) for row in rows})
    return table


def _entries(content: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = content.pop(key, None)
    if not isinstance(entries, list) or not entries:
        raise UserError(f"expected at least one [[{key}]], found none")
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise UserError(f"[[{key}]] is a section, found {entry!r}")
    return entries


def _part(entry: dict[str, Any], number: int) -> Part:
    part: Part = _build(Part, entry, f"part {number}")
    if part.measure == "fewshot" and not part.shots:
        raise UserError(f"part {number} is measured by few-shot tasks and needs shots, as [1, 5]")
    if part.measure == "linear" and part.shots:
        raise UserError(f"part {number} is measured by a linear classifier, which has no shots")
    if part.shots and min(part.shots) < 1:
        raise UserError(f"part {number}: shots are at least 1, found {min(part.shots)}")
    evaluate = part.evaluate or part.data
    benchmark = part.benchmark or place_name(part.data)
    if not part.benchmark and evaluate != part.data:
        benchmark += f"-to-{place_name(evaluate)}"
    return dataclasses.replace(
        part, evaluate=evaluate, train=part.train or evaluate, benchmark=plain_name(benchmark)
    )


def _row(entry: dict[str, Any], columns: int, parts: int) -> Row:
    where = f"row '{entry.get('name', '?')}'"
    figures = coerce(entry.get("paper", []), tuple[str, ...], f"{where}: paper")
    if len(figures) not in (0, columns):
        raise UserError(
            f"{where} has {len(figures)} figures of the paper, expected one for each of {columns} "
            "columns; '' stands for one that the paper does not have"
        )
    recipe = entry.get("recipe", [])
    if not isinstance(recipe, (str, list)):
        raise UserError(f"{where}: recipe: expected a text, or one for each part, found {recipe!r}")
    recipe = [recipe] * parts if isinstance(recipe, str) else recipe
    row: Row = _build(Row, {**entry, "paper": (), "recipe": recipe}, where)
    if len(row.recipe) not in (0, parts):
        raise UserError(
            f"{where}: the list 'recipe' has {len(row.recipe)} entries, expected {parts}, as many "
            "as there are parts; a text instead of a list stands for all"
        )
    if bool(row.method) == bool(row.cannot):
        raise UserError(f"{where} needs either a method or, under 'cannot', why it is not run")
    if not row.name or row.name != plain_name(row.name):
        raise UserError(f"{where}: a name is of letters, digits and . + = - _")
    paper = tuple(parse_figure(text) if text.strip() else None for text in figures)
    return dataclasses.replace(row, paper=paper)


def _build(kind: type, entry: Mapping[str, Any], where: str) -> Any:
    """``kind`` from plain values, each of its annotated type."""
    hints = typing.get_type_hints(kind)
    for key in entry:
        if key not in hints:
            raise UserError(f"{where} has no '{key}'{did_you_mean(key, hints)}")
    required = [f.name for f in dataclasses.fields(kind) if _is_required(f)]
    lacking = [name for name in required if name not in entry]
    if lacking:
        raise UserError(f"{where} lacks '{lacking[0]}'")
    values = {key: coerce(value, hints[key], f"{where}: {key}") for key, value in entry.items()}
    if "settings" in values:  # in TOML "probe.kind" and probe.kind are two ways to say one thing
        values["settings"] = flatten(values["settings"])
    return kind(**values)


def _is_required(entry: dataclasses.Field[Any]) -> bool:
    return entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
