"""Result files are whole or told by name; what was kept of tasks and epochs comes back."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenshot.errors import CorruptFileError, UserError
from eigenshot.evaluation.fewshot import FewShotResult, half_width
from eigenshot.reproduction.collapse import collapse
from eigenshot.reproduction.curves import curve_of, write_curve
from eigenshot.reproduction.episodes import (
    EpisodeCounts,
    counts_of,
    interval_over_tasks,
    paired,
    read_episodes,
    write_episodes,
)
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.results import read_result, write_result
from tests.reproduction.miniature import keep, made_up


def test_a_result_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = keep(tmp_path)
    assert path == tmp_path / "shapes" / "dle-tiny-2ep-seed0.json"
    assert read_result(path) == made_up()
    fields = json.loads(path.read_text())
    promised = "benchmark method backbone epochs seed commit hardware seconds split classifier"
    assert {*promised.split(), "transductive", "config", "fewshot"} <= set(fields)
    assert "linear" not in fields


def test_a_method_of_ones_own_has_a_file_name_too(tmp_path: Path) -> None:
    path = keep(tmp_path, method="package.module:Class")
    assert path.name == "package.module-Class-tiny-2ep-seed0.json"
    assert read_result(path).method == "package.module:Class"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": None}, "it lacks 'seed'"),
        ({"epochs": "two"}, "epochs: expected a whole number"),
        ({"fewshot": {"1": {"accuracy": 144.0, "ci95": 1, "episodes": 3}}}, "between 0 and 100"),
        ({"fewshot": {"1": 40.0}}, "fewshot '1' needs the numbers accuracy, ci95, episodes"),
        ({"fewshot": None}, "either 'fewshot' or 'linear'"),
        ({"fewshot": {"1": {"accuracy": 44.0, "ci95": -1, "episodes": 3}}}, "ci95 must be a"),
        ({"fewshot": {"1": {"accuracy": -4.0, "ci95": 1, "episodes": 3}}}, "between 0 and 100"),
        ({"seconds": -3.0}, "seconds must be a finite number from 0 on, found -3.0"),
        ({"epochs": 0}, "epochs must be at least 1, found 0"),
        ({"side_by_side": -1}, "side_by_side must be at least 0, found -1"),
        ({"lengthened": [{"epochs": 2, "step": 6}]}, "an entry of lengthened needs whole numbers"),
        ({"lengthened": [{"otherwise": []}]}, "an entry of lengthened needs whole numbers"),
        ({"lengthened": [{"epochs": 2, "step": 6, "otherwise": "no"}]}, "a list of texts"),
        ({"config": {"probe": "knn"}}, "config: probe is no section"),
        ({"seconds": float("nan")}, "seconds must be finite, found nan"),
    ],
)
def test_what_is_no_result_is_told_by_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = keep(tmp_path)
    table = {**json.loads(path.read_text()), **change}
    path.write_text(json.dumps({key: value for key, value in table.items() if value is not None}))
    with pytest.raises(CorruptFileError) as told:
        read_result(path)
    assert message in str(told.value)
    assert str(path) in str(told.value)


def test_a_library_passes_over_what_is_damaged(tmp_path: Path) -> None:
    good, cut, foreign = keep(tmp_path), keep(tmp_path, seed=1), keep(tmp_path, seed=2)
    cut.write_bytes(cut.read_bytes()[:100])
    foreign.write_text('["something else"]')
    good.with_name("copy.json").write_bytes(good.read_bytes())
    library = Library(tmp_path)
    assert [result.seed for result in library.of("shapes")] == [0]
    told = "\n".join(library.troubles)
    for name in (cut.name, foreign.name, "copy.json"):
        assert name in told
    assert library.of("no such benchmark") == []


def test_results_are_found_by_epochs_most_first(tmp_path: Path) -> None:
    for epochs, seed in ((2, 1), (2, 0), (9, 0)):
        keep(tmp_path, epochs=epochs, seed=seed)
    keep(tmp_path, variant="tiny-rival")
    keep(tmp_path, variant="tiny+0123abcd", seed=5)

    def found(epochs: int | None = None) -> list[tuple[int, int]]:
        results = Library(tmp_path).find("shapes", "dle", "tiny", epochs)
        return [(result.epochs, result.seed) for result in results]

    assert found() == [(9, 0), (2, 0), (2, 1), (2, 5)]
    assert found(2) == [(2, 0), (2, 1), (2, 5)]
    assert found(3) == []


def test_a_full_disk_leaves_the_old_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = keep(tmp_path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_result(tmp_path, made_up(seconds=99.0))
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_an_impossible_result_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="either 'fewshot' or 'linear'"):
        write_result(tmp_path, made_up(linear={"accuracy": 50.0, "protocol": "sgd"}))


def result_of(right: np.ndarray, shots: int = 1) -> FewShotResult:
    accuracies = 100.0 * right / 75
    return FewShotResult(float(accuracies.mean()), 1.0, accuracies, 5, shots, 15)


def test_counts_of_tasks_come_back_exactly(tmp_path: Path) -> None:
    right = np.arange(76)
    counts = counts_of([result_of(right), result_of(right[::-1], 5)], "these tasks", "abc")
    assert counts.right[1].dtype == np.uint8
    write_episodes(tmp_path / "counts.npz", counts)
    back = read_episodes(tmp_path / "counts.npz")
    assert (back.tasks, back.questions, back.images) == ("these tasks", 75, "abc")
    np.testing.assert_array_equal(back.right[1], right)
    np.testing.assert_array_equal(back.right[5], right[::-1])


def test_damaged_counts_are_told_by_name(tmp_path: Path) -> None:
    path = tmp_path / "counts.npz"
    write_episodes(path, counts_of([result_of(np.arange(50))], "tasks", "abc"))
    whole = path.read_bytes()
    for content in (whole[:60], b"", b"nothing of the kind"):
        path.write_bytes(content)
        advice = r"counts\.npz' holds no .*; remove it and the result file 'counts\.json' to have"
        with pytest.raises(CorruptFileError, match=advice):
            read_episodes(path)


def kept(right: np.ndarray, tasks: str = "same", images: str = "") -> EpisodeCounts:
    return EpisodeCounts(tasks, 75, {1: right.astype(np.uint8)}, images)


def test_an_interval_of_several_is_that_of_their_mean_on_each_task() -> None:
    generator = np.random.default_rng(1)
    easy = generator.integers(-20, 20, 500)  # what makes a task easy does so for all
    right = 40 + easy + generator.integers(-10, 11, (3, 500))
    found = interval_over_tasks([kept(entry) for entry in right], 1)
    assert found == pytest.approx(half_width(100 / 75 * right.mean(axis=0)))
    alone = [interval_over_tasks([kept(entry)], 1) for entry in right]
    assert found is not None
    assert 0 < found < min(width for width in alone if width is not None)
    assert interval_over_tasks([kept(right[0]), kept(right[1], "other")], 1) is None
    assert interval_over_tasks([kept(right[0])], 5) is None
    assert interval_over_tasks([], 1) is None


def test_a_paired_difference_is_that_of_the_tasks() -> None:
    generator = np.random.default_rng(0)
    ones, others = generator.integers(20, 76, (2, 500)), generator.integers(20, 76, (2, 500))
    found = paired([kept(right) for right in ones], [kept(right) for right in others], 1)
    by_hand = 100 / 75 * (ones.mean(axis=0) - others.mean(axis=0))
    assert found == pytest.approx((by_hand.mean(), 1.96 * by_hand.std(ddof=1) / np.sqrt(500)))
    assert found[1] == pytest.approx(half_width(by_hand))
    assert paired([kept(ones[0])], [kept(others[0], "other")], 1) is None
    assert paired([kept(ones[0])], [kept(others[0][:9])], 1) is None
    assert paired([kept(ones[0])], [kept(others[0])], 5) is None
    assert paired([], [kept(others[0])], 1) is None


def test_tasks_of_other_images_are_others() -> None:
    one, other = np.random.default_rng(0).integers(20, 76, (2, 500))
    assert paired([kept(one, images="a")], [kept(other, images="b")], 1) is None
    assert interval_over_tasks([kept(one, images="a"), kept(other, images="b")], 1) is None
    older = paired([kept(one)], [kept(other)], 1)
    assert older is not None
    assert paired([kept(one, images="a")], [kept(other)], 1) == older, "an older file does not tell"
    assert paired([kept(one, images="a")], [kept(other, images="a")], 1) == older


def test_counts_of_before_do_not_tell_the_images(tmp_path: Path) -> None:
    arrays = {"right_1": np.arange(40, dtype=np.uint8)}
    np.savez(tmp_path / "counts.npz", tasks=np.array("tasks"), questions=np.array(75), **arrays)
    assert read_episodes(tmp_path / "counts.npz").images == ""


@pytest.mark.parametrize(
    ("rank", "one", "five", "collapsed"),
    [
        (50.0, 39.7, 57.9, False),
        (1.99, 39.7, 57.9, True),
        (50.0, 20.1, 20.15, True),
        (50.0, 20.1, 20.3, False),  # with more examples it is better than guessing
        (50.0, 19.0, 19.0, True),
    ],
)
def test_collapse_is_low_rank_or_the_accuracy_of_guessing(
    rank: float, one: float, five: float, collapsed: bool
) -> None:
    fewshot = {"1": {"accuracy": one, "ci95": 0.2}, "5": {"accuracy": five, "ci95": 0.2}}
    assert (collapse(rank, fewshot, 5) is not None) == collapsed


def test_a_linear_result_collapses_by_rank_alone() -> None:
    assert collapse(2.0, {}, 5) is None
    assert collapse(1.5, {}, 5) == "the effective rank of the embedding is 1.50"


def test_a_learning_curve_has_a_series_a_metric(tmp_path: Path) -> None:
    records = [
        {"epoch": 1, "step": 3, "loss": 1.23456789, "probe_accuracy": 31.0},
        {"epoch": 2, "step": 6, "loss": 0.5},
    ]
    assert curve_of(records) == {
        "epoch": [1, 2],
        "loss": [1.2346, 0.5],
        "probe_accuracy": [31.0, None],
    }
    write_curve(tmp_path / "curve.json", records)
    assert json.loads((tmp_path / "curve.json").read_text()) == curve_of(records)
