"""Rows along an axis: where they may stand, and what is drawn of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenshot.errors import UserError
from eigenshot.reports import axis_picture, curves_picture
from eigenshot.reports.axis_picture import Point, is_logarithmic
from eigenshot.reproduction.curves import write_curve
from eigenshot.reproduction.document import Owner
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.picture import draw_pictures
from eigenshot.reproduction.plan import Choices, variant_of
from eigenshot.reproduction.results import curve_file
from eigenshot.reproduction.tablefile import read_table
from tests.reproduction.miniature import TABLE, keep, write_miniature
from tests.reproduction.test_comparison import keep_answers
from tests.reproduction.test_reproduce_command import cells
from tests.test_cli import Shell

WORDS = 'compare = "ours"\naxis = "width of a layer"'
PLACES = {
    "order = 1": 'order = 1\nseries = "Mixed"\nat = 8',
    "order = 2": 'order = 2\nseries = "Plain"\nat = 8.0',
    "order = 3": 'order = 3\nseries = "Mixed"\nat = 2',
}


def with_axis(text: str = TABLE) -> str:
    """A table with ours at 8 and 'Shorter' at 2 of one series, 'No mixup' at 8 of another."""
    for found, instead in {'compare = "ours"': WORDS, **PLACES}.items():
        assert found in text
        text = text.replace(found, instead, 1)
    return text


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_miniature(tmp_path, with_axis())


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def drawn(folder: Path, table: Path, **choices: Any) -> dict[str, dict[str, Any]]:
    """What was handed to the picture along the axis, by the name of the file that was written."""
    found: dict[str, dict[str, Any]] = {}
    draw = axis_picture.draw_along_axis

    def noted(path: Path, shown: Any, **words: Any) -> None:
        draw(path, shown, **words)
        found[path.name] = {"panels": shown, **words}

    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(axis_picture, "draw_along_axis", noted)
        pictures = draw_pictures(
            folder, read_table(str(table)), Choices(**choices), Library(folder), Owner(str(table))
        )
    named = {picture.file.name for picture in pictures if picture.words.startswith("Accuracy by")}
    assert named == set(found)
    for name in found:
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    return found


@pytest.mark.parametrize(
    ("found", "instead", "message"),
    [
        (WORDS, "", "row 'rival' has 'series', which is for a table with an axis; say under"),
        ("\nat = 8.0", "", "row 'rival' has 'series' and lacks 'at'; a place on the axis needs"),
        ('series = "Plain"\n', "", "row 'rival' has 'at' and lacks 'series'; a place on the axis"),
        ("at = 8.0", "at = inf", "row 'rival': at must be finite, found inf"),
        ("at = 8.0", "at = nan", "row 'rival': at must be finite, found nan"),
        ("at = 8.0", 'at = "8"', "row 'rival': at: expected a number, found '8'"),
        (
            '"Plain"',
            '"Mixed"',
            "rows 'rival' and 'ours' are both at 8 of the series 'Mixed'; a row needs a place",
        ),
    ],
)
def test_a_slip_in_a_place_is_told(tmp_path: Path, found: str, instead: str, message: str) -> None:
    text = with_axis()
    assert found in text
    path = write_miniature(tmp_path, text.replace(found, instead, 1))
    with pytest.raises(UserError) as told:
        read_table(str(path))
    assert message in str(told.value)
    assert str(path) in str(told.value)


def test_an_axis_without_rows_is_told(tmp_path: Path) -> None:
    path = write_miniature(tmp_path, TABLE.replace('compare = "ours"', WORDS))
    with pytest.raises(UserError, match="the axis 'width of a layer' has no rows; give them"):
        read_table(str(path))


def test_points_are_the_figures_of_the_table(shell: Shell, table: Path, results: Path) -> None:
    right = np.random.default_rng(0).integers(20, 70, (3, 40))
    for seed in range(3):
        keep_answers(results, right[seed], seed=seed)
    figures = {"1": (33.0, 0.7), "5": (52.5, 0.6)}
    fewshot = {k: {"accuracy": a, "ci95": c, "episodes": 40} for k, (a, c) in figures.items()}
    keep(results, variant="tiny-rival", fewshot=fewshot)
    assert shell("reproduce", table, "--results-only")[0] == 0
    markdown = (results / "mini.md").read_text()
    assert "![Accuracy by width of a layer](mini-axis.png)" in markdown

    handed = drawn(results, table)["mini-axis.png"]
    assert (handed["axis"], handed["places"]) == ("width of a layer", [2.0, 8.0])
    assert handed["title"] == "A miniature: Shapes, 5-way, 2 epochs"
    assert [panel.measure for panel in handed["panels"]] == [
        "1-shot accuracy, %",
        "5-shot accuracy, %",
    ]
    for section, panel in enumerate(handed["panels"]):
        mixed, plain = sorted(panel.series, key=lambda series: series.label)
        for series, place, row in ((mixed, 8.0, "Ours"), (plain, 8.0, "No mixup")):
            (point,) = series.points
            assert point.at == place
            shown = f"{point.accuracy:.2f} ± {point.interval:.2f}"
            assert cells(markdown, row)[section][4].split(",")[0] == shown


def test_a_table_without_an_axis_draws_nothing_new(tmp_path: Path, results: Path) -> None:
    table = write_miniature(tmp_path)
    keep(results)
    assert drawn(results, table) == {}
    assert not list(results.glob("*.png"))


def test_without_results_there_is_no_picture(table: Path, results: Path) -> None:
    assert drawn(results, table) == {}
    assert not list(results.glob("*.png"))


def test_series_go_from_left_to_right_and_keep_their_place(table: Path, results: Path) -> None:
    for variant, epochs in (("tiny-short", 1), ("tiny", 2), ("tiny-rival", 2)):
        keep(results, variant=variant, epochs=epochs)
    handed = drawn(results, table)["mini-axis.png"]
    plain, mixed = handed["panels"][0].series
    assert [point.at for point in mixed.points] == [2, 8]
    assert (plain.place, mixed.place) == (0, 1)
    assert handed["title"] == "A miniature: Shapes, 5-way"
    assert plain.label == "Plain (2 epochs)"
    assert mixed.label == "Mixed (2 epochs, 1 at 2)", "each tells its epochs where they differ"

    (results / "shapes" / "dle-tiny-rival-2ep-seed0.json").unlink()
    (mixed,) = drawn(results, table)["mini-axis.png"]["panels"][0].series
    assert mixed.place == 1


def test_a_row_is_shown_as_of_now_then_by_its_longest_run(table: Path, results: Path) -> None:
    def shown() -> tuple[str, Point]:
        handed = drawn(results, table)["mini-axis.png"]
        return handed["title"], handed["panels"][0].series[0].points[0]

    keep(results, epochs=9, config={"optimizer": {"lr": 9.0}})
    title, point = shown()
    assert title.endswith("9 epochs")
    assert point == Point(8.0, 44.0, 0.5, otherwise=True)
    for epochs in (3, 5, 4):
        keep(results, epochs=epochs)
    title, point = shown()
    assert title.endswith("5 epochs")
    assert point == Point(8.0, 44.0, 0.5)


def test_a_collapse_of_any_seed_is_marked(table: Path, results: Path) -> None:
    keep(results, seed=0)
    keep(results, seed=1, collapsed=True)
    keep(results, variant="tiny-rival")
    plain, mixed = drawn(results, table)["mini-axis.png"]["panels"][0].series
    assert [series.points[0].collapsed for series in (plain, mixed)] == [False, True]


def test_what_was_asked_for_and_the_part_are_in_the_name(tmp_path: Path, results: Path) -> None:
    more = (
        'shots = [1, 5]\n[[part]]\ntitle = "By a line"\ndata = "fc100"\nrecipe = "tiny.toml"\n'
        'measure = "linear"'
    )
    text = with_axis(TABLE.replace("shots = [1, 5]", more)).replace("paper = [", "# [")
    path = write_miniature(tmp_path, text)
    keep(results)
    line = {"accuracy": 70.0, "protocol": "sgd"}
    keep(results, benchmark="fc100", fewshot={}, linear=line, images={})
    handed = drawn(results, path, epochs=2)
    assert set(handed) == {"mini-2ep-shapes-axis.png", "mini-2ep-fc100-axis.png"}
    (panel,) = handed["mini-2ep-fc100-axis.png"]["panels"]
    assert panel.measure == "accuracy of a linear classifier, %"
    assert panel.series[0].points == [Point(8.0, 70.0)]


def test_parts_that_share_a_folder_have_pictures_of_their_own(
    tmp_path: Path, results: Path
) -> None:
    more = TABLE[TABLE.index("[[part]]") : TABLE.index("[[row]]")]
    wider = more.replace("measure", 'settings = {{ "projector.width" = 8 }}\nmeasure')
    wider = wider.replace("Shapes, 5-way", "Shapes, 5-way, a smaller head")
    text = with_axis(TABLE.replace(more, more + wider)).replace("paper = [", "# [")
    path = write_miniature(tmp_path, text)
    table = read_table(str(path))
    for part in table.parts:
        keep(results, variant=variant_of(table, table.row("ours"), part, Choices()))
    assert set(drawn(results, path)) == {"mini-shapes-1-axis.png", "mini-shapes-2-axis.png"}


def test_far_places_above_0_are_drawn_on_a_logarithmic_axis() -> None:
    assert is_logarithmic([32, 64, 512])
    assert is_logarithmic([0.25, 1])
    assert not is_logarithmic([1, 2, 3])
    assert not is_logarithmic([0, 1, 100])
    assert not is_logarithmic([-1, 100])


def test_learning_curves_have_a_panel_for_each_series(
    table: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = table.read_text().replace('series = "Plain"\nat = 8.0', "")
    table.write_text(text)
    for number, (variant, epochs) in enumerate(
        {"tiny-short": 1, "tiny": 2, "tiny-rival": 2}.items()
    ):
        result = keep(results, variant=variant, epochs=epochs)
        file = curve_file(results, "shapes", result.stem)
        file.parent.mkdir(exist_ok=True)
        write_curve(file, [{"epoch": 1, "probe_accuracy": 40.0 + number}])
    curves: list[Any] = []
    draw = curves_picture.draw_curves

    def noted(path: Path, **words: Any) -> None:
        draw(path, **words)
        curves.extend(words["curves"])

    monkeypatch.setattr(curves_picture, "draw_curves", noted)
    drawn(results, table)
    assert (results / "mini.png").is_file()
    assert {curve.label: (curve.panel, curve.place, curve.shade) for curve in curves} == {
        "Ours (2 epochs)": ("Mixed", 0, 1.0),
        "Shorter (1 epoch)": ("Mixed", 0, 0.0),
        "No mixup (2 epochs)": ("Others", 1, None),
    }


def test_batch_sizes_stand_at_their_size() -> None:
    table = read_table("batch-size")
    assert table.axis == "batch size"
    assert table.series == ["Ours", "Barlow Twins", "SimCLR"]
    for row in table.rows:
        assert row.at == row.settings["training.batch_size"]
        assert row.label == f"{row.series}, {row.at:g}"
    assert len(table.rows) == len(table.series) * len(table.places) == 15
