"""The pictures beside a table: accuracy along its axis, and its learning curves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from eigenshot.errors import CorruptFileError, reason_of
from eigenshot.reporter import count_epochs
from eigenshot.reproduction.along_axis import drawing_along
from eigenshot.reproduction.curves import read_curve
from eigenshot.reproduction.document import Owner
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.plan import Choices, epochs_asked, made_otherwise, variant_of
from eigenshot.reproduction.results import Result, curve_file
from eigenshot.reproduction.table import Part, Row, Table


@dataclass(frozen=True)
class Picture:
    """A file, and in words what it shows."""

    file: Path
    words: str


def draw_pictures(
    folder: Path, table: Table, choices: Choices, library: Library, owner: Owner
) -> list[Picture]:
    """Write what can be drawn of each part of the table: along its axis, and learning curves.

    Pictures that are there and not the ``owner``'s are left alone; these, and what cannot be
    written, are told among the troubles of the library.
    """
    drawn = []
    for part in table.parts:
        name = f"{table.name}{choices.suffix}{_part_name(table, part)}"
        for file, words, drawing in (
            (folder / f"{name}-axis.png", f"Accuracy by {table.axis}", drawing_along),
            (folder / f"{name}.png", "Learning curves", _drawing_curves),
        ):
            draw = drawing(table, part, choices, library)
            trouble = None if draw is None else _written(file, draw, owner)
            if trouble is not None:
                library.troubles.append(trouble)
            elif draw is not None:
                drawn.append(Picture(file, words))
    return drawn


def _written(file: Path, draw: Callable[..., None], owner: Owner) -> str | None:
    """Write a picture; why it was not, as a sentence, or None."""
    try:
        if file.exists() and not owner.owns(file):
            return f"'{file}' is there already and is no picture of this table: remove it first"
        draw(file, note=owner.note)
    except OSError as error:
        return f"cannot write the picture '{file}': {reason_of(error)}"
    return None


def _part_name(table: Table, part: Part) -> str:
    """What tells a part's pictures from those of others: its folder, numbered among its sharers."""
    sharers = [other for other in table.parts if other.benchmark == part.benchmark]
    number = f"-{sharers.index(part) + 1}" if len(sharers) > 1 else ""
    return f"-{part.benchmark}{number}" if len(table.parts) > 1 else ""


def _drawing_curves(
    table: Table, part: Part, choices: Choices, library: Library
) -> Callable[..., None] | None:
    """What draws the learning curves of a part of the table; None where there are none.

    A row is shown by its longest run of the settings of now, or else of others, of the first seed.
    A run without a probe has no curve. Rows that share a training share a curve, under the name of
    the first. A row has its colour whether or not the others are there. The series of an axis have
    a panel each, where places on the axis go from light to dark.
    """
    from eigenshot.reports.curves_picture import Curve, draw_curves  # matplotlib takes a second

    curves, measures, trainings = [], [], set()
    for row in (row for row in table.rows if row.method):
        result = shown_run(table, row, part, choices, library)
        points = tuple(_points(library, result)) if result else ()
        if result and points and points not in trainings:
            trainings.add(points)
            epochs, accuracies = zip(*points, strict=True)
            label = f"{row.label} ({count_epochs(result.epochs)})"
            curves.append(Curve(label, epochs, accuracies, *_look(table, row)))
            measures.append(_measure(result.config.get("probe", {})))
    if not curves:
        return None
    measure = measures[0] if len(set(measures)) == 1 else "accuracy of the probe, %"
    title = f"{table.title}: {part.title}"
    return partial(draw_curves, curves=curves, title=title, measure=measure)


def _look(table: Table, row: Row) -> tuple[int, str, float | None]:
    """Place, panel and shade of a row's curve."""
    if row.at is None:
        others = [other for other in table.rows if other.method and other.at is None]
        panel = "Others" if table.series else ""
        return len(table.series) + others.index(row), panel, None
    shade = table.places.index(row.at) / max(1, len(table.places) - 1)
    return table.series.index(row.series), row.series, shade


def shown_run(
    table: Table, row: Row, part: Part, choices: Choices, library: Library
) -> Result | None:
    """The run whose curve a row has; None where it has none."""
    variant = variant_of(table, row, part, choices)
    found = library.find(part.benchmark, row.method, variant, epochs_asked(row, choices))
    # Of equals the first is taken, which is the first seed.
    return min(
        found,
        key=lambda result: (
            bool(made_otherwise(table, row, part, choices, result)),
            -result.epochs,
        ),
        default=None,
    )


def _points(library: Library, result: Result) -> Sequence[tuple[float, float]]:
    """Epochs and accuracies of the probe; a file that cannot be read is told."""
    file = curve_file(library.folder, result.benchmark, result.name)
    try:
        curve = read_curve(file) if file.exists() else {}
    except CorruptFileError as error:
        library.troubles.append(str(error))
        return []
    pairs = zip(curve.get("epoch", []), curve.get("probe_accuracy", []), strict=False)
    return [(epoch, value) for epoch, value in pairs if epoch is not None and value is not None]


def _measure(probe: dict[str, Any]) -> str:
    if probe.get("kind") == "fewshot":
        return f"{probe.get('shots')}-shot accuracy on validation classes, %"
    return "nearest-neighbour accuracy on validation images, %"
