"""A table from its TOML file, with what does not fit together refused."""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from eigenshot.config import flatten
from eigenshot.errors import UserError, did_you_mean
from eigenshot.options import coerce
from eigenshot.reproduction.axis import check_axis
from eigenshot.reproduction.figures import parse_figure
from eigenshot.reproduction.names import place_name, plain_name
from eigenshot.reproduction.table import NO_SETTINGS, Part, Row, Table


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
    _refuse_repeated("title of a part", [part.title for part in parts])
    kept = [(part.benchmark, part.recipe, part.settings) for part in parts]
    for number, place in enumerate(kept):
        if place in kept[:number]:
            raise UserError(
                f"part {number + 1} would keep its results with another's, as '{place[0]}'; give "
                "it a 'benchmark' of its own"
            )
    columns = sum(len(part.shots) or 1 for part in parts)
    rows = [_row(entry, columns, len(parts)) for entry in _entries(given, "row")]
    _refuse_repeated("row", [row.name for row in rows])
    table: Table = _build(Table, {**given, "name": name, "parts": (), "rows": ()}, "the table")
    table = dataclasses.replace(table, parts=tuple(parts), rows=tuple(rows))
    for reference in filter(None, (table.compare, *(row.compare for row in rows))):
        table.row(reference)
    check_axis(table.axis, {row.name: (row.series, row.at) for row in rows})
    return table


def _refuse_repeated(what: str, entries: Sequence[object]) -> None:
    for number, entry in enumerate(entries):
        if entry in entries[:number]:
            raise UserError(f"expected every {what} once, found '{entry}' more than once")


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
    _refuse_repeated(f"number of shots of part {number}", part.shots)
    if part.benchmark and not plain_name(part.benchmark):
        raise UserError(
            f"part {number}: a benchmark's name is of letters, digits and . + = - _, found "
            f"'{part.benchmark}'"
        )
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
        for key, instead in NO_SETTINGS.items():
            if key in values["settings"]:
                raise UserError(f"{where}: settings: {key} cannot be used here: {instead}")
    return kind(**values)


def _is_required(entry: dataclasses.Field[Any]) -> bool:
    return entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING
