"""What ``eigenshot reproduce`` refuses, and what it says of a table and of its plan."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.reproduction.test_reproduce_command import cells
from tests.test_cli import Shell


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--seeds", "0,one"], "--seeds takes whole numbers from 0 on, as 0,1,2; found 'one'"),
        (["--rows", "our"], "did you mean 'ours'"),
        (["--set", "training.seed=1"], "use --seeds"),
        (["--set", "optimizer.rate=1"], "unknown setting 'optimizer.rate'; did you mean"),
        (["--set", "data.per_class=5"], "data.per_class=5: of use for characters that are drawn"),
        (["--budget", "0"], "--budget must be above 0 minutes"),
        (["--budget", "-3", "--dry-run"], "--budget must be above 0 minutes, found -3"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--results", "mini.toml"], "--results: 'mini.toml' is no folder; choose another"),
        (["--results", "mini.toml", "--dry-run"], "--results: 'mini.toml' is no folder"),
        (["--runs", "mini.toml"], "--runs: 'mini.toml' is no folder; choose another"),
        (["--runs", "mini.toml/runs"], "--runs: 'mini.toml' is no folder; choose another"),
        (["--runs", "mini.toml", "--dry-run"], "--runs: 'mini.toml' is no folder"),
    ],
)
def test_misuse_is_a_sentence(shell: Shell, table: Path, options: list[str], message: str) -> None:
    assert message in shell.refused("reproduce", table, *options)


@pytest.mark.parametrize(
    ("found", "instead", "message", "spared"),
    [
        ('method = "dle"\norder = 1', 'method = "dlee"\norder = 1', "did you mean 'dle'", True),
        ('"none"', '"nonne"', "row 'rival': option 'mixup' of method 'dle': expected", True),
        ("tiny.toml", "nope", "unknown recipe 'nope'", False),
    ],
)
def test_a_mistake_in_a_table_is_told_before_anything_is_run(
    shell: Shell,
    table: Path,
    tmp_path: Path,
    found: str,
    instead: str,
    message: str,
    spared: bool,
) -> None:
    """Rows that are ``spared`` can be run by themselves."""
    table.write_text(table.read_text().replace(found, instead, 1))
    for option in ((), ("--dry-run",)):
        sentence = shell.refused("reproduce", table, *option)
        assert message in sentence
        assert str(table) in sentence
    assert not (tmp_path / "runs").exists()
    assert shell("reproduce", table, "--results-only", "--results", tmp_path)[0] == 0
    code = shell("reproduce", table, "--rows", "short", "--dry-run")[0]
    assert code == (0 if spared else 2)


def test_where_all_results_are_there_it_is_said_that_nothing_was_run(
    shell: Shell, table: Path
) -> None:
    command = ("reproduce", table, "--device", "cpu", "--rows", "short")
    assert "nothing was run" not in shell(*command)[2]
    code, _, err = shell(*command)
    assert code == 0
    assert "nothing was run: all results are in 'results'; another --results makes new" in err


def test_rows_that_cannot_be_run_leave_nothing_to_run(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    code, out, err = shell("reproduce", table, "--device", "cpu", "--rows", "maml")
    assert code == 0
    assert "there is nothing to run: the notes of the table say why" in err
    assert "not implemented: meta-learning" in out
    assert not (tmp_path / "runs").exists()


def test_a_plan_does_not_guess_how_long_a_first_measurement_takes(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    command = ("reproduce", table, "--device", "cpu", "--rows", "short")
    assert shell(*command)[0] == 0
    (result,) = (tmp_path / "results" / "shapes").glob("*.json")
    result.unlink()
    _, out, _ = shell(*command, "--dry-run")
    assert "-short-1ep-seed0, how long that takes is not known here" in out


def test_another_network_is_named_in_every_row_that_has_it(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    asked = ("--set", "backbone.name=resnet12", "--set", "backbone.options={}")
    assert shell("reproduce", table, "--results-only", "--results", tmp_path, *asked)[0] == 0
    (markdown,) = tmp_path.glob("mini-*.md")
    assert cells(markdown.read_text(), "Ours")[0][1] == "resnet12"
    assert cells(markdown.read_text(), "MAML")[0][1] == "Conv4"


def test_an_unknown_table_offers_the_nearest(shell: Shell) -> None:
    assert "did you mean 'ablation'" in shell.refused("reproduce", "ablatoin")


@pytest.mark.realdata
def test_with_data_the_runs_are_planned(shell: Shell, tmp_path: Path) -> None:
    assert os.environ["EIGENSHOT_DATA"]
    code, out, _ = shell("reproduce", "ablation", "--dry-run", "--results", tmp_path)
    assert code == 0
    assert "ours, FC100, 5-way, seed 0: runs in runs/reproduce/fc100/dle-fc100-300ep-seed0" in out


def test_an_empty_choice_is_no_choice(shell: Shell, table: Path) -> None:
    for option in ("--rows", "--seeds"):
        assert f"{option} is empty; leave it out for the default" in shell.refused(
            "reproduce", table, option, "", "--dry-run"
        )


@pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 0)() == 0, reason="root writes to read-only folders"
)
def test_a_folder_that_cannot_be_written_to_is_refused_at_once(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir(mode=0o555)
    for option, folder in (("--results", "kept"), ("--runs", "kept"), ("--runs", "kept/runs")):
        sentence = shell.refused("reproduce", table, option, tmp_path / folder)
        assert f"{option}: '" in sentence
        assert "cannot be written to: permission denied; choose another" in sentence


def test_a_place_for_runs_that_cannot_be_written_to_is_refused_at_once(
    shell: Shell, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pretended, so that it holds for root too."""
    monkeypatch.setattr(
        "eigenshot.files.why_not_writable",
        lambda folder: "read-only file system" if folder == tmp_path / "kept" else None,
    )
    (tmp_path / "kept").mkdir()
    sentence = shell.refused("reproduce", table, "--runs", tmp_path / "kept" / "runs")
    assert "cannot be written to: read-only file system; choose another" in sentence
    looking = ("reproduce", table, "--results-only", "--results", tmp_path)
    assert shell(*looking, "--runs", tmp_path / "kept")[0] == 0
