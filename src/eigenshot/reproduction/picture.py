"""The learning curves behind a table, as a picture beside it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eigenshot.errors import CorruptFileError
from eigenshot.reporter import count_epochs
from eigenshot.reproduction.curves import read_curve
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.plan import Choices, epochs_asked, made_otherwise, variant_of
from eigenshot.reproduction.results import Result, curve_file
from eigenshot.reproduction.table import Part, Row, Table


def draw_table_curves(folder: Path, table: Table, choices: Choices, library: Library) -> list[Path]:
    """Write a picture for each part of the table that has curves; return the files.

    A row is shown by its longest run, one of the settings of now before others, of the first seed.
    A run without a probe has no curve. Rows that share a training share a curve, under the name of
    the first. A row has its colour whether or not the others are there.
    """
    from eigenshot.reports.curves_picture import Curve, draw_curves  # matplotlib takes a second

    drawn = []
    for part in table.parts:
        curves, measures, trainings = [], [], set()
        for place, row in enumerate(row for row in table.rows if row.method):
            result = shown_run(table, row, part, choices, library)
            points = tuple(_points(library, result)) if result else ()
            if result and points and points not in trainings:
                trainings.add(points)
                epochs, accuracies = zip(*points, strict=True)
                curves.append(Curve(_label(row, result), epochs, accuracies, place))
                measures.append(_measure(result.config.get("probe", {})))
        if curves:
            file = folder / f"{table.name}{choices.suffix}{_part_name(table, part)}.png"
            measure = measures[0] if len(set(measures)) == 1 else "accuracy of the probe, %"
            draw_curves(file, curves, title=f"{table.title}: {part.title}", measure=measure)
            drawn.append(file)
    return drawn


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
            -result.epochs,
            bool(made_otherwise(table, row, part, choices, result)),
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


def _label(row: Row, result: Result) -> str:
    return f"{row.label} ({count_epochs(result.epochs)})"


def _measure(probe: dict[str, Any]) -> str:
    if probe.get("kind") == "fewshot":
        return f"{probe.get('shots')}-shot accuracy on validation classes, %"
    return "nearest-neighbour accuracy on validation images, %"


def _part_name(table: Table, part: Part) -> str:
    return f"-{part.benchmark}" if len(table.parts) > 1 else ""
