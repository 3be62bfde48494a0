"""Tables are data: the paper's figures are there, and a slip in a table is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from eigenshot.errors import UserError
from eigenshot.reproduction.figures import parse_figure
from eigenshot.reproduction.names import place_name, short_name
from eigenshot.reproduction.tablefile import list_tables, read_table
from tests.reproduction.miniature import TABLE, miniature, table_with, write_miniature


def test_the_papers_tables_are_there_with_all_their_rows() -> None:
    rows = {name: [row for row in read_table(name).rows if row.paper] for name in list_tables()}
    assert rows.pop("batch-size") == [], "the paper claims it and shows no table"
    assert {name: len(found) for name, found in rows.items()} == {
        "table1-fc100": 13,
        "table1-miniimagenet": 13,
        "table2-cub": 14,
        "ablation": 5,
        "linear": 5,
    }


@pytest.mark.parametrize(
    ("table", "row", "figures"),
    [
        ("table1-fc100", "ours", ["39.7 ± 0.7", "57.9 ± 0.7"]),
        ("table1-fc100", "tadam", ["40.1 ± 0.4", "56.1 ± 0.4"]),
        ("table1-miniimagenet", "ours", ["59.47 ± 0.87", "78.79 ± 0.58"]),
        ("table1-miniimagenet", "maml", ["56.58 ± 1.84", "70.85 ± 0.91"]),
        ("table2-cub", "ours", ["41.08 ± 0.48", "58.86 ± 0.45"]),
        ("table2-cub", "baseline", ["42.89 ± 0.41", "62.12 ± 0.40"]),
        ("ablation", "only-trace", ["collapsed", "collapsed"]),
        ("ablation", "two-layers", ["36.1 ± 0.7", "50.2 ± 0.7"]),
        ("linear", "ours", ["92.24", "66.16", "88.97"]),
    ],
)
def test_figures_are_as_printed(table: str, row: str, figures: list[str]) -> None:
    assert [figure.text for figure in read_table(table).row(row).paper if figure] == figures


@pytest.mark.parametrize("name", list_tables())
def test_ours_is_run_first_and_labels_last(name: str) -> None:
    table = read_table(name)
    runnable = sorted((row for row in table.rows if row.method), key=lambda row: row.order)
    assert runnable[0].method == "dle"
    supervised = [row.supervised for row in runnable]
    assert supervised == sorted(supervised)
    assert table.row(table.compare).method == "dle"


def test_batch_sizes_are_compared_with_ours_of_the_same_size() -> None:
    table = read_table("batch-size")
    for row in table.rows:
        method, size = row.name.rsplit("-", 1)
        expected = "ours-128" if method == "ours" else f"ours-{size}"
        assert table.reference(row) == ("" if row.name == "ours-128" else expected)
        at_128 = 0.05 if method == "ours" else 0.1
        assert row.settings["optimizer.lr"] == at_128 * row.settings["training.batch_size"] / 128
    assert "linear in the batch" in table.note


def test_where_results_of_a_table_are_kept() -> None:
    assert [part.benchmark for part in read_table("table2-cub").parts] == [
        "miniimagenet-to-cub-2010"
    ]
    assert [part.benchmark for part in read_table("linear").parts] == [
        "cifar10",
        "cifar100",
        "stl10",
    ]
    assert short_name("/some/where/birds.npz") == "birds"
    assert short_name("photos/2020/") == "2020"


def test_folders_of_one_name_are_told_apart_whether_they_are_there_or_not() -> None:
    assert place_name("one/photos") != place_name("two/photos")
    assert place_name("one/photos").startswith("photos-")
    assert place_name("one//photos/") == place_name("one/photos")
    assert place_name("anna/birds") != place_name("berta/birds")  # repositories of the hub
    assert place_name("photos/") == "photos"
    assert place_name("fc100") == "fc100"


def test_parts_of_one_data_set_may_differ_in_their_settings(tmp_path: Path) -> None:
    more = (
        'shots = [1]\n[[part]]\ntitle = "In crops"\ndata = "{folder}/train.npz"\n'
        'recipe = "tiny.toml"\nmeasure = "fewshot"\nshots = [5]\nbenchmark = "shapes"\n'
        'settings = {{ "evaluation.crops" = "ten" }}'
    )
    write_miniature(tmp_path, table_with("shots = [1, 5]", more))
    parts = read_table(str(tmp_path / "mini.toml")).parts
    assert [part.benchmark for part in parts] == ["shapes", "shapes"]


def test_a_figure_is_a_number_with_or_without_its_interval() -> None:
    figure = parse_figure(" 39.7 ± 0.7")
    assert (figure.accuracy, figure.interval, figure.text) == (39.7, 0.7, "39.7 ± 0.7")
    assert parse_figure("92.24").interval is None
    assert parse_figure("Collapsed").accuracy is None
    with pytest.raises(UserError, match=r"expected a figure like '39\.7 ± 0\.7'.*found '39,7'"):
        parse_figure("39,7")


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    table = miniature(tmp_path)
    assert table.name == "mini"
    assert [column.title for column in table.columns] == [
        "Shapes, 5-way 1-shot",
        "Shapes, 5-way 5-shot",
    ]
    assert table.row("maml").paper[1] is None
    assert table.row("rival").settings == {"method.options.mixup": "none"}
    assert table.parts[0].recipe == str(tmp_path / "tiny.toml"), "a recipe lies beside its table"


def test_a_row_has_a_recipe_of_its_own_for_all_parts_or_for_each(tmp_path: Path) -> None:
    second = '\n[[part]]\ntitle = "By a line"\ndata = "fc100"\nrecipe = "fc100"\nmeasure = "linear"'
    text = TABLE.replace("shots = [1, 5]", "shots = [1, 5]" + second).replace("paper = [", "# [")
    for recipe, expected in (
        ('["tiny.toml", "cifar-fs"]', [str(tmp_path / "tiny.toml"), "cifar-fs"]),
        ('"cifar-fs"', ["cifar-fs", "cifar-fs"]),
        ('["cifar-fs", ""]', ["cifar-fs", "fc100"]),
        ('""', [str(tmp_path / "tiny.toml"), "fc100"]),
        ("[]", [str(tmp_path / "tiny.toml"), "fc100"]),
    ):
        path = write_miniature(tmp_path, text.replace("order = 3", f"recipe = {recipe}"))
        table = read_table(str(path))
        assert [table.recipe(table.row("short"), part) for part in table.parts] == expected
        assert [table.recipe(table.row("ours"), part) for part in table.parts] == [
            str(tmp_path / "tiny.toml"),
            "fc100",
        ]


def test_an_unknown_table_offers_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'table1-fc100'"):
        read_table("table1-fc10")
    with pytest.raises(UserError, match=r"cannot read the table 'nowhere\.toml': No such file"):
        read_table("nowhere.toml")


@pytest.mark.parametrize(
    ("found", "instead", "message"),
    [
        ("shots = [1, 5]", "shots = [0, 5]", "part 1: shots are at least 1, found 0"),
        (
            "shots = [1, 5]",
            'shots = [1]\n[[part]]\ntitle = "Again"\ndata = "fc100"\nrecipe = "tiny.toml"\n'
            'measure = "fewshot"\nshots = [5]\nbenchmark = "shapes"',
            "part 2 would keep its results with another's, as 'shapes'",
        ),
        ('measure = "fewshot"', 'measure = "knn"', "part 1: measure: expected 'fewshot' or"),
        ("shots = [1, 5]", "", "part 1 is measured by few-shot tasks and needs shots"),
        ("order = 1", "ordre = 1", "row 'ours' has no 'ordre'; did you mean 'order'"),
        ('"45.0 ± 0.5", ', "", "row 'ours' has 1 figures of the paper, expected one for each of 2"),
        ('compare = "ours"', 'compare = "theirs"', "has no row 'theirs'"),
        ("order = 3", 'order = 3\ncompare = "their"', "has no row 'their'"),
        ('name = "short"', 'name = "ours"', "found 'ours' more than once"),
        ('cannot = "not implemented: meta-learning"', "", "row 'maml' needs either a method or"),
        ('data = "{folder}/train.npz"', "", "part 1 lacks 'data'"),
        ('title = "A miniature"', "title = ", "is not valid TOML"),
        ('name = "short"', 'name = "a/b"', "a name is of letters, digits"),
        (
            "order = 3",
            'order = 3\nrecipe = ["a", "b"]',
            "row 'short': the list 'recipe' has 2 entries, expected 1, as many as",
        ),
        (
            "shots = [1, 5]",
            'shots = [1]\n[[part]]\ntitle = "Shapes, 5-way"\ndata = "fc100"\nrecipe = "fc100"\n'
            'measure = "fewshot"\nshots = [5]',
            "expected every title of a part once, found 'Shapes, 5-way' more than once",
        ),
        ("[1, 5]", "[1, 1]", "expected every number of shots of part 1 once, found '1' more"),
        ('"shapes"', '"!!!"', "part 1: a benchmark's name is of letters, digits and . + = - _"),
        ('"shapes"', '".."', "found '..'"),
        (
            'settings = {{ "training.epochs" = 1 }}',
            'settings = {{ method.name = "simclr" }}',
            "row 'short': settings: method.name cannot be used here: it is the 'method' of a row",
        ),
        (
            'recipe = "tiny.toml"',
            'recipe = "tiny.toml"\nsettings = {{ "training.seed" = 3 }}',
            "part 1: settings: training.seed cannot be used here: use --seeds",
        ),
        (
            'compare = "ours"',
            'compare = "ours"\nsettings = {{ "training.seed" = 3 }}',
            "the table: settings: training.seed cannot be used here: use --seeds",
        ),
        ("order = 3", "order = 3\nrecipe = 3", "row 'short': recipe: expected a text, or"),
        ("order = 3", "order = 3\nrecipe = [[]]", "row 'short': recipe: expected a list of texts"),
    ],
)
def test_a_slip_in_a_table_is_told(tmp_path: Path, found: str, instead: str, message: str) -> None:
    path = write_miniature(tmp_path, table_with(found, instead))
    with pytest.raises(UserError) as told:
        read_table(str(path))
    assert message in str(told.value)
    assert str(path) in str(told.value)


def test_epochs_may_be_set_for_all_and_a_benchmark_may_have_spaces(tmp_path: Path) -> None:
    text = table_with('compare = "ours"', 'compare = "ours"\nsettings = {{ training.epochs = 7 }}')
    table = read_table(str(write_miniature(tmp_path, text.replace('"shapes"', '"my shapes"'))))
    assert table.settings == {"training.epochs": 7}
    assert table.parts[0].benchmark == "my-shapes"


@pytest.mark.parametrize("key", ["part", "row"])
def test_parts_and_rows_are_sections(tmp_path: Path, key: str) -> None:
    part = TABLE[TABLE.index("[[part]]") : TABLE.index("[[row]]")]
    path = tmp_path / "odd.toml"
    path.write_text(f'title = "Odd"\n{key} = ["a"]\n{part if key == "row" else ""}')
    with pytest.raises(UserError, match=rf"\[\[{key}\]\] is a section, found 'a'"):
        read_table(str(path))
