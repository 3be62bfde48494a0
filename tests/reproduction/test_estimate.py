"""How long a run takes is told by what is like it, and views that grow are reckoned with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eigenshot.reporter import Reporter
from eigenshot.reproduction.estimate import Estimator
from eigenshot.reproduction.plan import Choices, PlannedRun, make_plan
from eigenshot.training.choices import resolve_size
from eigenshot.training.runfolder import RunFolder
from tests.reproduction.miniature import keep, miniature

GROWING = {"training.resolution": [[0, 16], [0.5, 28]]}


def run_of(folder: Path, settings: dict[str, Any] | None = None, epochs: int = 10) -> PlannedRun:
    choices = Choices(epochs=epochs, rows=("ours",), settings=settings or {})
    return make_plan(miniature(folder), choices).runs[0]


def keep_alike(folder: Path, run: PlannedRun, estimator: Estimator, **changes: Any) -> None:
    """A result of another variant that was trained on this machine as ``run`` would be."""
    config = resolve_size(run.config, run.part.data, "cpu").to_dict()
    values = {"epochs": 10, "seconds": 20.0, "variant": "like", "config": config, **changes}
    keep(folder, hardware=estimator.hardware, **values)


def log(folder: Path, *seconds: float) -> Path:
    """A run's folder in which epochs have ended after so many seconds."""
    folder.mkdir(exist_ok=True)
    begun = RunFolder(folder)
    begun.metrics_file.unlink(missing_ok=True)
    for epoch, moment in enumerate(seconds, 1):
        begun.log({"epoch": epoch, "step": epoch, "seconds": moment})
    return folder


@pytest.fixture
def estimator(tmp_path: Path) -> Estimator:
    return Estimator(tmp_path / "results", "cpu")


def test_a_run_goes_on_at_its_own_pace(tmp_path: Path, estimator: Estimator) -> None:
    folder = log(tmp_path / "run", 2.0, 4.0)
    assert estimator.known(run_of(tmp_path), folder) == 16.0
    same = run_of(tmp_path, {"training.resolution": [[0, 16]]})
    assert estimator.known(same, folder) == 16.0
    assert estimator.known(run_of(tmp_path), tmp_path / "nothing") is None


def test_small_views_do_not_tell_how_long_large_ones_take(
    tmp_path: Path, estimator: Estimator
) -> None:
    run, folder = run_of(tmp_path, GROWING), tmp_path / "run"
    small = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert estimator.known(run, log(folder, *small[:4])) is None
    assert estimator.known(run, log(folder, *small)) is None
    assert estimator.known(run, log(folder, *small, 8.0, 11.0)) == 9.0
    keep_alike(tmp_path / "results", run, estimator)
    assert estimator.known(run, tmp_path / "nothing") == 20.0
    assert estimator.known(run, log(folder, *small)) == 15.0, "the whole less what it took so far"
    slow = [4.0 * moment for moment in small]
    assert estimator.known(run, log(folder, *slow)) == 10.0, "at least the share that is left"


def test_a_measured_run_that_was_begun_takes_what_is_left(
    tmp_path: Path, estimator: Estimator
) -> None:
    run, folder = run_of(tmp_path, GROWING), tmp_path / "run"
    whole = estimator.measured(run, folder, Reporter())
    assert whole > 0
    rest = estimator.measured(run, log(folder, whole / 20, whole / 10), Reporter())
    assert rest == pytest.approx(0.9 * whole)


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("training", {"resolution": [[0, 48]]}),
        ("training", {"micro_batches": 2}),
        ("training", {"batch_size": 64}),
        ("engine", {"precision": "bf16"}),
        ("projector", {"width": 32}),
        ("projector", {"layers": 2}),
        ("projector", {"out": 8}),
        ("backbone", {"options": {"widths": [4, 4, 4, 16]}}),
        ("data", {"image_size": 32}),
    ],
)
def test_results_of_other_sizes_tell_nothing(
    tmp_path: Path, estimator: Estimator, section: str, change: dict[str, Any]
) -> None:
    run, results = run_of(tmp_path), tmp_path / "results"
    config = resolve_size(run.config, run.part.data, "cpu").to_dict()
    config[section] = {**config[section], **change}
    keep_alike(results, run, estimator, config=config)
    keep_alike(results, run, estimator, config={}, seed=1)
    keep(results, variant="elsewhere", hardware="another machine")
    assert estimator.known(run, tmp_path / "nothing") is None
    keep_alike(results, run, estimator, method="simclr", seconds=30.0)
    assert estimator.known(run, tmp_path / "nothing") == 30.0


def test_runs_side_by_side_tell_of_their_like(tmp_path: Path, estimator: Estimator) -> None:
    run, results = run_of(tmp_path), tmp_path / "results"
    keep_alike(results, run, estimator, seconds=90.0, side_by_side=3)
    assert estimator.known(run, tmp_path / "nothing") is None
    three = Estimator(results, "cpu", 3)
    assert three.known(run, tmp_path / "nothing") == 90.0


def test_where_nobody_knows_what_ran_beside_the_fastest_tells(
    tmp_path: Path, estimator: Estimator
) -> None:
    run, results = run_of(tmp_path), tmp_path / "results"
    for seed, seconds in enumerate((70.0, 22.0, 80.0)):
        keep_alike(results, run, estimator, seed=seed, seconds=seconds)
    assert estimator.known(run, tmp_path / "nothing") == 22.0
    assert Estimator(results, "cpu", 3).known(run, tmp_path / "nothing") is None
    keep_alike(results, run, estimator, seed=3, seconds=25.0, side_by_side=1)
    assert estimator.known(run, tmp_path / "nothing") == 25.0, "what is known to be alone is better"


def test_a_training_counts_once_however_often_it_was_measured(
    tmp_path: Path, estimator: Estimator
) -> None:
    run, results = run_of(tmp_path), tmp_path / "results"
    keep_alike(results, run, estimator, seconds=90.0, side_by_side=1)
    for crops in ("five", "ten"):
        keep_alike(results, run, estimator, seconds=90.0, side_by_side=1, variant=f"like-{crops}")
    for seed, seconds in ((1, 20.0), (2, 22.0)):
        keep_alike(results, run, estimator, seed=seed, seconds=seconds, side_by_side=1)
    assert estimator.known(run, tmp_path / "nothing") == 22.0


def test_a_training_measured_again_is_as_it_was_run(tmp_path: Path, estimator: Estimator) -> None:
    run, results = run_of(tmp_path), tmp_path / "results"
    keep_alike(results, run, estimator, seconds=90.0, side_by_side=3)
    keep_alike(results, run, estimator, seconds=90.0, variant="like-ten")
    assert estimator.known(run, tmp_path / "nothing") is None


def test_measuring_takes_what_it_took_on_this_machine(tmp_path: Path, estimator: Estimator) -> None:
    run, results = run_of(tmp_path), tmp_path / "results"
    keep(results, variant="elsewhere", hardware="a GPU", evaluation_seconds=1.0)
    assert estimator.evaluation(run) is None
    here = {"hardware": "a GPU", "evaluation_hardware": estimator.hardware}
    keep(results, variant="brought", evaluation_seconds=50.0, **here)
    assert estimator.evaluation(run) == 50.0
    keep(results, variant="old", hardware=estimator.hardware, evaluation_seconds=30.0)
    assert estimator.evaluation(run) == 40.0, "a file without it was measured where it was trained"


def test_what_cannot_be_run_here_is_no_error_of_the_estimate(
    tmp_path: Path, estimator: Estimator
) -> None:
    run = run_of(tmp_path, {"engine.precision": "bf16"})
    assert estimator.known(run, tmp_path / "nothing") is None
