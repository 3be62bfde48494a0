"""``eigenshot reproduce`` as a stranger uses it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.reproduction.miniature import keep, table_with, write_miniature
from tests.test_cli import Shell

GLYPHS = """
title = "Characters"
compare = "ours"
settings = { probe.kind = "knn", probe.max_images = 500 }
[[part]]
title = "Glyphs, 5-way"
data = "glyphs"
recipe = "tiny.toml"
measure = "fewshot"
shots = [1, 5]
[[row]]
name = "ours"
label = "Ours"
backbone = "Conv4"
method = "dle"
settings = { data.per_class = 1, training.epochs = 1 }
"""


def cells(markdown: str, row: str) -> list[list[str]]:
    """The cells of a row, of each section."""
    lines = [line for line in markdown.splitlines() if line.startswith(f"| {row} |")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_table_is_filled_printed_and_written(shell: Shell, table: Path, tmp_path: Path) -> None:
    code, out, err = shell("reproduce", table, "--device", "cpu", "--seeds", "0")
    assert code == 0, err
    markdown = (tmp_path / "results" / "mini.md").read_text()
    one, five = cells(markdown, "Ours")
    result = json.loads((tmp_path / "results/shapes/dle-tiny-2ep-seed0.json").read_text())
    for line, shots, paper in ((one, "1", 45.0), (five, "5", 60.0)):
        figure = result["fewshot"][shots]
        assert line[3] == f"{paper} ± 0.5"
        assert line[4] == f"{figure['accuracy']:.2f} ± {figure['ci95']:.2f}"
        assert line[5] == f"{figure['accuracy'] - paper:+.2f}"
        assert line[6:9] == ["–", "2", "0"]
        assert line[10] == result["hardware"]
        assert line[4] in out
    assert cells(markdown, "MAML")[0][2:5] == ["all", "50.0 ± 0.5", "cannot be run [1]"]
    assert cells(markdown, "MAML")[1][3] == "–"
    assert cells(markdown, "Shorter")[0][3] == "not in the paper"
    assert "[1] not implemented: meta-learning" in markdown
    assert "`eigenshot reproduce" in markdown


def test_the_paired_difference_is_that_of_the_kept_tasks(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    code, _, err = shell("reproduce", table, "--device", "cpu", "--rows", "ours,rival")
    assert code == 0, err
    folder = tmp_path / "results" / "shapes" / "episodes"
    rival = np.load(folder / "dle-tiny-rival-2ep-seed0.npz")
    ours = np.load(folder / "dle-tiny-2ep-seed0.npz")
    markdown = (tmp_path / "results" / "mini.md").read_text()
    for line, shots in zip(cells(markdown, "No mixup"), (1, 5), strict=True):
        right = [archive[f"right_{shots}"].astype(float) for archive in (rival, ours)]
        difference = 100 * (right[0] - right[1]) / 75
        width = 1.96 * difference.std(ddof=1) / np.sqrt(40)
        assert line[6] == f"{difference.mean():+.2f} ± {width:.2f}"


def test_every_number_of_epochs_has_a_line_and_quick_looks_say_so(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    for epochs in (2, 300):
        keep(tmp_path / "results", epochs=epochs)
    shell("reproduce", table, "--results-only")
    markdown = (tmp_path / "results" / "mini.md").read_text()
    assert [line[7] for line in cells(markdown, "Ours")] == ["300", "2"] * 2
    code, out, _ = shell("reproduce", table, "--results-only", "--epochs", 2)
    assert code == 0
    setting = "Not the recipes' setting: every run has 2 epochs instead of its recipe's"
    note = f"{setting}, but for Shorter (1)."
    assert note in out
    quick = (tmp_path / "results" / "mini-2ep.md").read_text()
    assert note in quick
    assert [line[7] for line in cells(quick, "Ours")] == ["2"] * 2
    _, out, _ = shell("reproduce", table, "--results-only", "--epochs", 1)
    assert "every run has 1 epoch instead of its recipe's." in out


def test_a_table_is_made_of_a_folder_that_is_there(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    code, _, err = shell("reproduce", table, "--results-only", "--results", tmp_path / "reslts")
    assert code == 2
    assert "there is no folder" in err
    assert not (tmp_path / "reslts").exists()
    code, _, err = shell("reproduce", table, "--results-only", "--dry-run")
    assert code == 2
    assert "take one" in err


def test_other_settings_are_kept_apart_and_said(shell: Shell, table: Path, tmp_path: Path) -> None:
    keep(tmp_path / "results")
    keep(tmp_path / "results", variant="tiny-optimizer.lr=0.2", seconds=99.0)
    code, out, _ = shell("reproduce", table, "--results-only", "--set", "optimizer.lr=0.2")
    assert code == 0
    assert "every run has optimizer.lr=0.2" in out
    assert out.count("99 s") == 2
    assert (tmp_path / "results" / "mini-optimizer.lr=0.2.md").is_file()
    assert not (tmp_path / "results" / "mini.md").exists()


def test_a_damaged_file_is_named_and_the_table_stands(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    keep(tmp_path / "results")
    keep(tmp_path / "results", seed=1).write_text('{"benchmark": ')
    code, out, err = shell("reproduce", table, "--results-only")
    assert code == 0
    assert "44.00 ± 0.50" in out
    assert "dle-tiny-2ep-seed1.json' is not whole" in err


def test_a_dry_run_shows_the_plan_and_writes_nothing(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    keep(tmp_path / "results")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = shell("reproduce", table, "--dry-run", "--device", "cpu", "--budget", 5)
    assert code == 0, err
    assert sorted(tmp_path.rglob("*")) == before
    assert "ours, Shapes, 5-way, seed 0: done, in" in out
    assert "rival, Shapes, 5-way, seed 0: runs in" in out
    assert out.index("seed 0: done") < out.index("rival, Shapes") < out.index("short, Shapes")
    assert "not run" in out


def test_a_plan_counts_a_shared_training_once(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = table_with('method.options.mixup = "none"', "evaluation.C = 2.0")
    arguments = ("reproduce", write_miniature(tmp_path, text), "--device", "cpu", "--dry-run")
    _, out, _ = shell(*arguments)
    assert "ours, Shapes, 5-way, seed 0: runs in" in out
    assert "rival, Shapes, 5-way, seed 0: measures what a row above trains in" in out
    monkeypatch.setattr("eigenshot.reproduction.estimate.Estimator.known", lambda *_: 40.0)
    _, out, _ = shell(*arguments, "--budget", 1)
    assert "rival, Shapes, 5-way, seed 0: measures what a row above trains in" in out
    assert "short, Shapes, 5-way, seed 0: does not fit into the budget" in out


def test_without_data_the_table_is_printed_and_says_how_to_get_them(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EIGENSHOT_DATA", str(tmp_path / "nothing"))
    code, out, _ = shell("reproduce", "ablation", "--results", tmp_path, "--device", "cpu")
    assert code == 0
    assert "39.7 ± 0.7" in out
    assert "run 'eigenshot data fetch fc100'" in out
    markdown = (tmp_path / "ablation.md").read_text()
    assert "fetch" not in markdown, "what is missing here is no part of a table"
    assert cells(markdown, "Only the trace term")[0][3:5] == ["collapsed", "not run"]


INTERRUPTING = """
import os, signal
from eigenshot.methods import DeepLaplacianEigenmapsMethod

calls = 0

class Interrupting(DeepLaplacianEigenmapsMethod):
    def forward(self, *arguments):
        global calls
        calls += 1
        if calls == 6:  # four steps are for the estimate
            os.kill(os.getpid(), signal.SIGINT)
        return super().forward(*arguments)
"""


def test_ctrl_c_keeps_what_there_is_and_prints_the_table(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "interrupting_method.py").write_text(INTERRUPTING)
    rival = 'method = "dle"\nsettings = {{ method.options.mixup = "none" }}'
    own = 'method = "interrupting_method:Interrupting"'
    table = write_miniature(tmp_path, table_with(rival, own))
    command = ("reproduce", table, "--device", "cpu", "--rows", "ours,rival")
    code, out, err = shell(*command)
    assert code == 130, err
    assert "interrupted; the same command goes on from here" in out
    assert "results/mini.md" in err
    results = tmp_path / "results" / "shapes"
    assert [path.name for path in results.glob("*.json")] == ["dle-tiny-2ep-seed0.json"]
    code, _, err = shell(*command)
    assert code == 0, err
    assert "going on from step 2 of 6" in err
    assert len(list(results.glob("*.json"))) == 2


def test_the_embedded_characters(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_miniature(tmp_path)
    (tmp_path / "glyphs.toml").write_text(GLYPHS)
    code, out, err = shell("reproduce", "glyphs.toml", "--device", "cpu")
    assert code == 0, err
    (result,) = (tmp_path / "results" / "glyphs").glob("*.json")
    assert json.loads(result.read_text())["split"] == "test"
    curve = json.loads((result.parent / "curves" / result.name).read_text())
    assert len(curve["probe_accuracy"]) == 1
    assert "paper" not in out, "no row has a figure of it, so nothing is said of it"


FAILING = """
from eigenshot.methods import DeepLaplacianEigenmapsMethod

class Failing(DeepLaplacianEigenmapsMethod):
    def forward(self, *arguments):
        raise IndexError("a mistake of one's own")
"""


def test_a_method_that_fails_is_a_note_and_the_others_are_run(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "failing_method.py").write_text(FAILING)
    own = 'method = "failing_method:Failing"\norder = 1'
    table = write_miniature(tmp_path, table_with('method = "dle"\norder = 1', own))
    command = ("reproduce", table, "--device", "cpu", "--rows", "ours,short")
    code, out, err = shell(*command)
    assert code == 1
    assert "IndexError: a mistake of one's own (--debug shows where)" in out
    assert "Traceback" not in err
    assert "Shorter" in (tmp_path / "results" / "mini.md").read_text()
    assert (tmp_path / "results" / "shapes" / "dle-tiny-short-1ep-seed0.json").is_file()
    code, _, err = shell("--debug", *command)
    assert code == 1
    assert "in forward" in err
