"""Seeds, pairs and changed settings in the cells of a table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenshot.reproduction.episodes import EpisodeCounts, write_episodes
from eigenshot.reproduction.results import episodes_file
from tests.reproduction.miniature import keep, table_with, write_miniature
from tests.reproduction.test_reproduce_command import cells
from tests.test_cli import Shell


def test_several_seeds_are_one_line(shell: Shell, table: Path, tmp_path: Path) -> None:
    for seed, accuracy in enumerate((44.0, 46.0, 45.0)):
        figure = {"accuracy": accuracy, "ci95": 0.5, "episodes": 40}
        keep(tmp_path / "results", seed=seed, fewshot={"1": figure, "5": figure})
    code, out, _ = shell("reproduce", table, "--results-only")
    assert code == 0
    assert "45.00 ± 0.50, sd 1.00 [2]" in out
    assert "[2] ± is the mean of the seeds' own" in out
    (line,) = [line for line in out.splitlines() if "45.00 ± 0.50" in line and "+0.00" in line]
    assert "0, 1, 2" in line


def keep_answers(
    folder: Path, right: np.ndarray, variant: str = "tiny", seed: int = 0, **changes: Any
) -> None:
    """A made-up result with the queries of 40 tasks that were answered rightly."""
    path = keep(folder, variant=variant, seed=seed, **changes)
    file = episodes_file(folder, "shapes", path.stem)
    file.parent.mkdir(exist_ok=True)
    counts = right.astype(np.uint8)
    write_episodes(file, EpisodeCounts("the same tasks", 75, {1: counts, 5: counts}))


def test_the_interval_of_several_seeds_is_that_of_their_mean_on_each_task(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    right = np.random.default_rng(0).integers(20, 70, (3, 40))
    for seed in range(3):
        keep_answers(tmp_path / "results", right[seed], seed=seed)
    shell("reproduce", table, "--results-only")
    markdown = (tmp_path / "results" / "mini.md").read_text()
    means = 100 * right.mean(axis=0) / 75
    width = 1.96 * means.std(ddof=1) / np.sqrt(40)
    assert cells(markdown, "Ours")[0][4] == f"44.00 ± {width:.2f}, sd 0.00"
    assert "of several seeds, that of their mean on each task" in markdown


def test_a_pair_of_fewer_seeds_is_marked(shell: Shell, table: Path, tmp_path: Path) -> None:
    right = np.random.default_rng(0).integers(20, 70, (5, 40))
    for seed in range(3):
        keep_answers(tmp_path / "results", right[seed], "tiny-rival", seed)
    for seed in range(2):
        keep_answers(tmp_path / "results", right[3 + seed], seed=seed)
    shell("reproduce", table, "--results-only")
    markdown = (tmp_path / "results" / "mini.md").read_text()
    difference = 100 * (right[:2].mean(axis=0) - right[3:].mean(axis=0)) / 75
    width = 1.96 * difference.std(ddof=1) / np.sqrt(40)
    line = cells(markdown, "No mixup")[0]
    number = re.fullmatch(
        rf"{re.escape(f'{difference.mean():+.2f} ± {width:.2f}')} \[(\d)\]", line[6]
    )
    assert number
    assert f"[{number[1]}] paired for seeds 0, 1 only, which both rows have" in markdown
    assert line[8] == "0, 1, 2"


@pytest.mark.parametrize(("name", "pairs"), [("test-0a0a0a0a", False), ("test-0b0b0b0b", True)])
def test_what_was_measured_on_images_of_another_name_is_not_paired(
    shell: Shell, table: Path, tmp_path: Path, name: str, pairs: bool
) -> None:
    right = np.random.default_rng(0).integers(20, 70, (2, 40))
    for number, (variant, evaluate) in enumerate((("tiny-rival", name), ("tiny", "test-0b0b0b0b"))):
        keep_answers(tmp_path / "results", right[number], variant, images={"evaluate": evaluate})
    shell("reproduce", table, "--results-only")
    cell = cells((tmp_path / "results" / "mini.md").read_text(), "No mixup")[0][6]
    assert ("±" in cell) == pairs


def test_what_was_measured_on_other_images_of_one_name_is_not_paired(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    command = ("reproduce", table, "--device", "cpu", "--seeds", "0")
    assert shell(*command, "--rows", "ours,short", "--epochs", 1)[0] == 0
    markdown = tmp_path / "results" / "mini-1ep.md"
    assert "±" in cells(markdown.read_text(), "Shorter")[0][6]
    with np.load(tmp_path / "test.npz") as archive:
        images, labels = archive["images"], archive["labels"]
    np.savez(tmp_path / "test.npz", images=255 - images, labels=labels)
    assert shell(*command, "--rows", "rival", "--epochs", 1)[0] == 0
    assert "±" in cells(markdown.read_text(), "Shorter")[0][6]
    assert cells(markdown.read_text(), "No mixup")[0][6] == "–"


def test_a_row_may_be_compared_with_another_than_the_tables(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = write_miniature(tmp_path, table_with("order = 3", 'order = 3\ncompare = "rival"'))
    right = np.random.default_rng(0).integers(20, 70, (3, 40))
    for number, variant in enumerate(("tiny", "tiny-rival", "tiny-short")):
        keep_answers(tmp_path / "results", right[number], variant)
    shell("reproduce", table, "--results-only")
    markdown = (tmp_path / "results" / "mini.md").read_text()
    assert "| difference | paired | epochs |" in markdown
    means = 100 * right.mean(axis=1) / 75
    assert cells(markdown, "Shorter")[0][6].startswith(f"{means[2] - means[1]:+.2f} ± ")
    assert cells(markdown, "Shorter")[0][6].endswith(" to rival")
    assert cells(markdown, "No mixup")[0][6].endswith(" to ours")
    assert cells(markdown, "Ours")[0][6] == "–"


OWN = """
from eigenshot.methods import DeepLaplacianEigenmapsMethod
from eigenshot.methods.baseline import Baseline

class Plain(DeepLaplacianEigenmapsMethod):
    pass

class Taught(Baseline):
    pass
"""


@pytest.mark.parametrize(
    ("method", "supervised", "labels"),
    [
        ("baseline", False, "all"),
        ("baseline", True, "all"),
        ("dle", False, "none"),
        ("dle", True, "none"),
        ("own_methods:Plain", False, "none"),
        ("own_methods:Plain", True, "all"),
        ("own_methods:Taught", False, "all"),
        ("nowhere_methods:Taught", True, "all"),
    ],
)
def test_a_method_tells_whether_it_learns_from_labels(
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    supervised: bool,
    labels: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_methods.py").write_text(OWN)
    row = f'method = "{method}"\nsupervised = {str(supervised).lower()}\norder = 1'
    table = write_miniature(tmp_path, table_with('method = "dle"\norder = 1', row))
    assert shell("reproduce", table, "--results-only", "--results", tmp_path)[0] == 0
    markdown = (tmp_path / "mini.md").read_text()
    assert cells(markdown, "Ours")[0][2] == labels
    assert cells(markdown, "MAML")[0][2] == "all", "of a row that is not run the table tells"


def test_a_result_of_another_recipe_is_marked(shell: Shell, table: Path, tmp_path: Path) -> None:
    keep(tmp_path / "results", config={"optimizer": {"lr": 0.7}})
    _, out, _ = shell("reproduce", table, "--results-only")
    assert re.search(r"44\.00 ± 0\.50 \[\d\]", out)
    assert "made otherwise: optimizer.lr was 0.7, is 0.15" in out
    _, out, _ = shell("reproduce", table, "--dry-run", "--device", "cpu")
    assert "ours, Shapes, 5-way, seed 0: runs in" in out


def test_results_of_other_settings_are_in_no_mean_and_give_way(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    old, new = {"optimizer": {"lr": 0.7}}, {"optimizer": {"lr": 0.15, "warmup_epochs": 0.5}}
    older = {"optimizer": {"lr": 0.9}}
    for seed, config in enumerate((old, older)):
        keep(tmp_path / "results", seed=seed, config=config)
    _, out, _ = shell("reproduce", table, "--results-only")
    assert out.count("44.00 ± 0.50") == 2, "a line each"
    keep(tmp_path / "results", seed=1, variant="tiny+0123abcd", config=new)
    _, out, _ = shell("reproduce", table, "--results-only")
    assert out.count("44.00 ± 0.50") == 1
    assert "other settings" not in out


def test_a_collapsed_row_says_so_with_its_accuracy(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    figures = 'paper = ["45.0 ± 0.5", "60.0 ± 0.5"]'
    table = write_miniature(tmp_path, table_with(figures, 'paper = ["collapsed", "60.0 ± 0.5"]'))
    keep(tmp_path / "results", collapsed=True)
    shell("reproduce", table, "--results-only")
    one, five = cells((tmp_path / "results" / "mini.md").read_text(), "Ours")
    assert one[3:6] == ["collapsed", "collapsed (44.00 ± 0.50)", "as in the paper"]
    assert five[4:6] == ["collapsed (61.00 ± 0.40)", "+1.00"]


def test_a_result_that_does_not_say_what_is_otherwise_is_passed_over(
    shell: Shell, table: Path, tmp_path: Path
) -> None:
    keep(tmp_path / "results", lengthened=[{"epochs": 1, "step": 3, "otherwise": []}])
    damaged = keep(tmp_path / "results", seed=1)
    content = damaged.read_text().replace('"seed": 1', '"seed": 1, "lengthened": [{"epochs": 1}]')
    damaged.write_text(content)
    code, out, err = shell("reproduce", table, "--results-only")
    assert code == 0
    assert "44.00 ± 0.50" in out
    assert f"{damaged.name}' is no result of a table: an entry of lengthened needs" in err
