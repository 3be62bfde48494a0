"""Runs are planned in order of value, each under a name that says what it is."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eigenshot.cli_evaluate import fewshot, linear
from eigenshot.config import Config, EvaluationConfig
from eigenshot.configfile import load_config
from eigenshot.errors import UserError
from eigenshot.reproduction.plan import Choices, make_plan, settled, variant_of
from eigenshot.reproduction.table import Table
from eigenshot.reproduction.tablefile import list_tables, read_table
from eigenshot.reproduction.versions import is_version, other_settings, version_of
from tests.reproduction.miniature import miniature, table_with, write_miniature


def test_the_first_seed_of_all_comes_before_the_second_of_any(tmp_path: Path) -> None:
    plan = make_plan(miniature(tmp_path), Choices(seeds=(0, 7)))
    assert [run.name for run in plan.runs] == [
        "dle-tiny-2ep-seed0",
        "dle-tiny-rival-2ep-seed0",
        "dle-tiny-short-1ep-seed0",
        "dle-tiny-2ep-seed7",
        "dle-tiny-rival-2ep-seed7",
        "dle-tiny-short-1ep-seed7",
    ]
    assert plan.impossible == {("maml", "Shapes, 5-way"): "not implemented: meta-learning"}
    assert plan.runs[0].command == "eigenshot reproduce mini --rows ours --seeds 0"


def test_rows_epochs_and_settings_are_chosen(tmp_path: Path) -> None:
    choices = Choices(epochs=5, rows=("rival",), settings={"optimizer.lr": 0.3, "probe.every": 2})
    (run,) = make_plan(miniature(tmp_path), choices).runs
    assert run.name == "dle-tiny-rival-optimizer.lr=0.3-5ep-seed0"
    assert run.config.training.epochs == 5
    assert run.config.optimizer.lr == 0.3
    assert run.config.method.options["mixup"] == "none"
    assert run.command.endswith("--epochs 5 --set optimizer.lr=0.3 --set probe.every=2")
    assert choices.suffix == "-5ep-optimizer.lr=0.3"


def test_long_settings_are_shortened_but_told_apart(tmp_path: Path) -> None:
    table = miniature(tmp_path)
    row, part = table.row("ours"), table.parts[0]
    many = {f"augment.options.option{number}": 0.25 for number in range(9)}
    one = variant_of(table, row, part, Choices(settings=many))
    changed = {**many, "augment.options.option8": 0.5}
    other = variant_of(table, row, part, Choices(settings=changed))
    assert one != other
    assert max(len(one), len(other)) < 90


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"settings": {"training.seed": 3}}, "use --seeds"),
        ({"settings": {"training.epochs": 3}}, "use --epochs"),
        ({"settings": {"method.name": "byol"}}, "a table of your own"),
        ({"epochs": 0}, "--epochs must be at least 1"),
        ({"seeds": (-1,)}, "--seeds are whole numbers from 0 on"),
    ],
)
def test_what_has_an_option_of_its_own_is_not_set(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Choices(**choices)


def with_settings(folder: Path, table: str = "{{}}", part: str = "{{}}") -> Table:
    """The miniature with settings for all rows, as inline tables."""
    text = table_with("[[part]]", f"settings = {table}\n[[part]]\nsettings = {part}")
    return read_table(str(write_miniature(folder, text)))


def names(table: Table, **choices: Any) -> list[str]:
    return [run.name for run in make_plan(table, Choices(**choices)).runs]


def test_what_a_table_or_a_part_sets_is_in_the_names(tmp_path: Path) -> None:
    slow, fast = "{{ optimizer.lr = 0.1 }}", "{{ optimizer.lr = 0.2 }}"
    plain = names(miniature(tmp_path))
    for_all = names(with_settings(tmp_path, table=slow))
    assert not set(plain) & set(for_all)
    assert [name.removeprefix("dle-tiny-")[8:] for name in for_all] == [
        "-2ep-seed0",
        "-rival-2ep-seed0",
        "-short-1ep-seed0",
    ]
    assert not set(for_all) & set(names(with_settings(tmp_path, table=fast)))
    assert names(with_settings(tmp_path, part=slow)) == for_all, "where it is set makes no odds"
    assert names(with_settings(tmp_path, table=fast, part=slow)) == for_all


@pytest.mark.parametrize(
    "neutral", ["probe.every = 3", 'engine.compile = "off"', "training.epochs = 2"]
)
def test_what_makes_no_other_result_is_not_in_the_names(tmp_path: Path, neutral: str) -> None:
    table = with_settings(tmp_path, table=f"{{{{ {neutral} }}}}")
    assert names(table) == names(miniature(tmp_path))


def test_what_a_row_or_the_command_overrides_is_not_in_its_name(tmp_path: Path) -> None:
    table = with_settings(tmp_path, table='{{ method.options.mixup = "input" }}')
    plain = miniature(tmp_path)
    assert names(table, rows=("rival",)) == names(plain, rows=("rival",))
    assert names(table, rows=("ours",)) != names(plain, rows=("ours",))
    mixed = {"method.options.mixup": "none"}
    assert names(table, rows=("ours",), settings=mixed) == names(
        plain, rows=("ours",), settings=mixed
    )


def test_what_is_measured_otherwise_is_trained_once(tmp_path: Path) -> None:
    table = with_settings(tmp_path, table="{{ evaluation.C = 2.0 }}")
    plain = make_plan(miniature(tmp_path), Choices()).runs
    asked = Choices(settings={"evaluation.episodes": 50, "optimizer.lr": 0.3})
    for runs in (make_plan(table, Choices()).runs, make_plan(table, asked).runs):
        assert not {run.name for run in runs} & {run.name for run in plain}
    assert [run.trained for run in make_plan(table, Choices()).runs] == [
        run.trained for run in plain
    ]
    trained = {run.trained for run in make_plan(table, asked).runs}
    assert trained == {f"{run.trained}-optimizer.lr=0.3" for run in plain}


@pytest.mark.parametrize("name", list_tables())
def test_the_papers_tables_need_no_digest(name: str) -> None:
    table = read_table(name)
    for row in table.rows:
        for part in table.parts:
            plain = [table.recipe(row, part), *([row.name] if row.settings else [])]
            assert variant_of(table, row, part, Choices()) == "-".join(plain)


def test_a_version_is_told_by_its_settings_alone() -> None:
    config = load_config("fc100")
    longer = load_config("fc100", {"training.epochs": 3, "training.seed": 5, "probe.every": 2})
    other = load_config("fc100", {"optimizer.lr": 0.5})
    measured = load_config("fc100", {"evaluation.C": 0.5})
    version = version_of("fc100", config)
    assert version == version_of("fc100", longer)
    assert len({version, version_of("fc100", other), version_of("fc100", measured)}) == 3
    trained = [version_of("fc100", asked, evaluation=False) for asked in (config, measured)]
    assert trained[0] == trained[1]
    assert is_version(version, "fc100")
    assert is_version("fc100", "fc100")
    for name in ("fc100-best", "fc100+", "fc100+rows", f"{version}-rival", "fc"):
        assert not is_version(name, "fc100")


def test_a_head_that_a_method_cannot_work_with_is_told_before_anything_is_read(
    tmp_path: Path,
) -> None:
    text = table_with(
        'method = "dle"\nsettings = {{ method.options.mixup = "none" }}',
        'method = "shuffled-dbn"\nsettings = {{ method.options.group_size = 6 }}',
    )
    table = read_table(str(write_miniature(tmp_path, text)))

    def told(**settings: int) -> str:
        given = {key.replace("_", "."): value for key, value in settings.items()}
        choices = Choices(rows=("rival",), settings=given)
        return make_plan(table, choices).impossible.get(("rival", "Shapes, 5-way"), "")

    assert "group_size must divide the 32 dimensions" in told(projector_out=32)
    assert "group_size must divide the 8 dimensions" in told(projector_layers=0)
    assert told(projector_out=36) == ""


def test_an_unknown_row_offers_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'mini' has no row 'rivals'; did you mean 'rival'"):
        make_plan(miniature(tmp_path), Choices(rows=("rivals",)))


def test_a_setting_that_no_row_can_have_is_refused(tmp_path: Path) -> None:
    table = miniature(tmp_path)
    for settings, message in (
        ({"backbone.name": "conv5"}, "did you mean 'conv4'"),
        ({"optimizer.rate": 1.0}, "unknown setting 'optimizer.rate'"),
    ):
        with pytest.raises(UserError, match=message):
            make_plan(table, Choices(settings=settings))


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("evaluation.classifier", "foo", "unknown classifier 'foo'"),
        ("evaluation.transform", "foo", "evaluation.transform: expected"),
        ("method.options.mixup", "foo", "option 'mixup' of method 'dle': expected"),
    ],
)
@pytest.mark.parametrize("backbone", ["conv4", "auto"])
def test_values_are_checked_when_it_is_planned(
    tmp_path: Path, setting: str, value: str, message: str, backbone: str
) -> None:
    table = miniature(tmp_path)
    settings = {"backbone.name": backbone, "backbone.options": {}, setting: value}
    with pytest.raises(UserError, match=message):
        make_plan(table, Choices(rows=("ours",), settings=settings))


def test_an_unknown_method_cannot_be_run_whatever_the_network(tmp_path: Path) -> None:
    text = table_with('method = "dle"\norder = 1', 'method = "moco"\nrecipe = "folder"\norder = 1')
    plan = make_plan(read_table(str(write_miniature(tmp_path, text))), Choices())
    assert "unknown method 'moco'" in plan.impossible["ours", "Shapes, 5-way"]


def test_a_setting_that_some_rows_do_not_know_is_a_remark_on_those(tmp_path: Path) -> None:
    table = miniature(tmp_path)
    simclr = replace(table.row("rival"), method="simclr", settings={})
    table = replace(table, rows=(simclr, table.row("ours")))
    plan = make_plan(table, Choices(settings={"method.options.k_gamma": 0.03}))
    assert [run.row.name for run in plan.runs] == ["ours"]
    assert "has no option 'k_gamma'" in plan.impossible["rival", "Shapes, 5-way"]
    assert plan.mistakes == ()


def test_a_row_that_is_wrong_itself_is_a_remark_whatever_is_set(tmp_path: Path) -> None:
    table = miniature(tmp_path)
    wrong = [replace(row, recipe=("fc10",)) if row.method else row for row in table.rows]
    for settings in ({}, {"optimizer.lr": 0.1}):
        plan = make_plan(replace(table, rows=tuple(wrong)), Choices(settings=settings))
        assert plan.runs == ()
        assert "did you mean 'fc100'" in plan.impossible["ours", "Shapes, 5-way"]
        assert [text.split(":")[0] for text in plan.mistakes] == [
            "row 'ours'",
            "row 'rival'",
            "row 'short'",
        ]


def test_a_row_of_few_epochs_keeps_them(tmp_path: Path) -> None:
    plan = make_plan(miniature(tmp_path), Choices(epochs=5))
    assert {run.row.name: run.config.training.epochs for run in plan.runs} == {
        "ours": 5,
        "rival": 5,
        "short": 1,
    }


def test_what_is_set_for_all_replaces_what_a_row_says_in_another_way(tmp_path: Path) -> None:
    table = miniature(tmp_path)
    ours = replace(table.row("ours"), settings={"method.options.gamma": 1e-4})
    table = replace(table, rows=(ours,))
    plan = make_plan(table, Choices(settings={"method.options.k_gamma": 0.1}))
    assert plan.runs[0].config.method.options["k_gamma"] == 0.1
    assert "gamma" not in plan.runs[0].config.method.options


def test_tables_share_what_is_the_same_run() -> None:
    def of(table: str, row: str) -> list[str]:
        return names(read_table(table), rows=(row,))

    assert of("ablation", "ours") == of("table1-fc100", "ours")
    assert of("table2-cub", "ours-resnet12") == of("table1-miniimagenet", "ours")


@pytest.mark.parametrize("name", list_tables())
def test_ours_of_every_table_can_be_run(name: str) -> None:
    table = read_table(name)
    runs = make_plan(table, Choices(rows=(table.compare,))).runs
    assert [run.part.title for run in runs] == [part.title for part in table.parts]


@pytest.mark.parametrize("name", ["table1-miniimagenet", "table2-cub"])
def test_rivals_have_what_was_found_for_them_on_fc100(name: str) -> None:
    tuned = {row.name: row.settings for row in read_table("table1-fc100").rows if row.order >= 10}
    rivals = [row for row in read_table(name).rows if row.method and row.order >= 10]
    assert len(rivals) >= 5
    for row in rivals:
        assert row.settings == tuned[row.name], row.name


def test_the_ablation_changes_what_it_says() -> None:
    table = read_table("ablation")
    ours, *others = (
        settled(table, table.row(name), table.parts[0], Choices(), 0)
        for name in ("ours", "only-trace", "two-layers", "no-mixup", "input-mixup")
    )
    changed = [other_settings(ours.to_dict(), config) for config in others]
    assert changed == [
        ['method.options.decorrelate was not set, is "none"'],
        ["projector.layers was 3, is 2"],
        ['method.options.mixup was "manifold", is "none"'],
        ['method.options.mixup was "manifold", is "input"'],
    ]


def test_settings_that_a_run_settles_itself_are_no_difference() -> None:
    asked = load_config("folder", {"training.epochs": 3})
    stored = asked.to_dict()
    stored["data"] |= {"image_size": 64, "mean": [0.1] * 3, "std": [0.2] * 3, "reader": "mapped"}
    stored["backbone"] = {"name": "conv4", "options": {"widths": [1]}}
    stored["training"]["batch_size"] = 64
    stored["engine"]["precision"] = "float32"
    stored["probe"]["kind"] = "knn"
    assert other_settings(stored, asked) == []
    stored["optimizer"]["warmup_epochs"] = 9.0
    stored["evaluation"]["C"] = 10.0
    assert other_settings(stored, asked) == [
        "evaluation.C was 10.0, is 1.0",
        "optimizer.warmup_epochs was 9.0, is 2.0",
    ]
    assert len(other_settings(stored, asked, evaluation=False)) == 1


def test_a_setting_that_there_was_not_yet_had_its_default() -> None:
    stored = load_config("fc100").to_dict()
    del stored["evaluation"]["crops"], stored["training"]["average"]
    assert other_settings(stored, load_config("fc100")) == []
    changes = {"evaluation.crops": "ten", "training.average": 0.9}
    assert other_settings(stored, load_config("fc100", changes)) == [
        'evaluation.crops was "whole", is "ten"',
        "training.average was 0.0, is 0.9",
    ]


def test_the_evaluation_of_a_recipe_has_the_defaults_of_the_command() -> None:
    """A table and ``evaluate`` measure the same thing unless a recipe says otherwise."""
    few, sgd = inspect.signature(fewshot).parameters, inspect.signature(linear).parameters
    plain = EvaluationConfig()
    shared = ("ways", "queries", "episodes", "seed", "classifier", "C", "transform", "normalise")
    for name in (*shared, "support_views"):
        assert getattr(plain, name) == few[name].default, name
    for name in ("epochs", "lr", "momentum"):
        assert getattr(plain, f"linear_{name}") == sgd[name].default, name


@pytest.mark.parametrize("recipe", ["fc100", "miniimagenet", "miniimagenet-wrn"])
def test_the_papers_protocol_stands_in_the_recipes(recipe: str) -> None:
    settings = load_config(recipe).evaluation
    assert (settings.ways, settings.queries, settings.episodes) == (5, 15, 10_000)
    assert settings.classifier == "logistic"


def test_how_it_is_measured_does_not_decide_what_is_learned() -> None:
    assert "evaluation" not in Config().lasting()
    with pytest.raises(UserError, match=r"evaluation\.episodes must be at least 2, found 1"):
        load_config("fc100", ["evaluation.episodes=1"])
    with pytest.raises(UserError, match=r"did you mean 'evaluation\.transform'"):
        load_config("fc100", ["evaluation.transfrom=none"])
