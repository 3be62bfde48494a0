"""A run of a table goes on from a shorter one, where it comes to the same."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenshot.reporter import Reporter
from eigenshot.reproduction.comparison import compare
from eigenshot.reproduction.estimate import Estimator
from eigenshot.reproduction.execute import Places
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.plan import Choices, Plan, PlannedRun, make_plan
from eigenshot.reproduction.rendering import as_text
from eigenshot.reproduction.results import Result
from eigenshot.reproduction.session import Session, run_all
from tests.reproduction.miniature import RECIPE, keep, made_up, miniature

FLAT = {"optimizer.schedule": "trapezoid", "optimizer.warmup_epochs": 0.0}


class Told(Reporter):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Bench:
    """The miniature table with rates that stay."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.table = miniature(folder)
        self.settings = {**FLAT, **settings}
        self.places = Places(folder / "results", folder / "runs")
        self.told = Told()

    def run(self, epochs: int, **choices: Any) -> PlannedRun:
        settings = {**self.settings, **choices.pop("settings", {})}
        asked = Choices(epochs=epochs, rows=("ours",), settings=settings, **choices)
        (run,) = make_plan(self.table, asked).runs
        return run

    def __call__(self, run: PlannedRun) -> Result:
        session: Session = run_all([run], self.places, device="cpu", reporter=lambda _: self.told)
        assert (session.finished, session.failed) == (1, False), session.remarks
        return {r.name: r for r in Library(self.places.results).of("shapes")}[run.name]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def answers(bench: Bench, result: Result) -> dict[int, np.ndarray]:
    (counts,) = Library(bench.places.results).episodes([result])
    return dict(counts.right)


def test_it_goes_on_from_the_longest_and_comes_to_the_same(bench: Bench) -> None:
    runs = {epochs: bench.run(epochs) for epochs in (2, 3, 5)}
    for run in runs.values():
        result = bench(run)
    assert [entry["epochs"] for entry in result.lengthened] == [2, 3]
    assert sum("goes on from" in note for note in bench.told.notes) == 2
    weights = bench.places.folder(runs[5]) / "encoder.safetensors"
    content, right = weights.read_bytes(), answers(bench, result)

    shutil.rmtree(bench.places.runs)
    shutil.rmtree(bench.places.results)
    anew = bench(runs[5])
    assert anew.lengthened == []
    assert weights.read_bytes() == content
    for shots, counts in answers(bench, anew).items():
        np.testing.assert_array_equal(counts, right[shots])


def test_stopped_before_it_had_the_state_it_goes_on_from_it_the_next_time(bench: Bench) -> None:
    bench(bench.run(2))
    run = bench.run(4)
    right = answers(bench, bench(run))
    (bench.places.folder(run) / "checkpoints" / "last.safetensors").unlink()
    (bench.places.folder(run) / "summary.json").unlink()
    bench.places.result(run).unlink()
    again = bench(run)
    assert [entry["epochs"] for entry in again.lengthened] == [2]
    for shots, counts in answers(bench, again).items():
        np.testing.assert_array_equal(counts, right[shots])


@pytest.mark.parametrize(
    "other",
    [
        {"settings": {"optimizer.schedule": "cosine"}},
        {"settings": {"optimizer.lr": 0.01}},
        {"settings": {"training.resolution": [[0, 20]]}},
        {"seeds": (1,)},
    ],
)
def test_it_begins_anew_where_the_shorter_one_is_another(
    bench: Bench, other: dict[str, Any]
) -> None:
    bench(bench.run(2, **other))
    assert bench.places.shorter(bench.run(4), "cpu") is None
    assert bench(bench.run(4)).lengthened == []


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("[optimizer]\nlr = 0.01", {}),
        ("[optimizer]\nwarmup_epochs = 1.5", {"optimizer.warmup_epochs": None}),
        ("", {"checkpoint.plateau": "small"}),
    ],
)
def test_one_that_is_called_alike_must_be_alike_and_come_to_the_same(
    tmp_path: Path, recipe: str, options: dict[str, Any]
) -> None:
    """Other settings of the recipe, a warm-up that did not fit, a state that was kept small."""
    bench = Bench(tmp_path, **options)
    bench.settings = {key: value for key, value in bench.settings.items() if value is not None}
    (tmp_path / "tiny.toml").write_text(f"{RECIPE}{recipe}\n")
    bench(bench.run(2))
    if "lr" in recipe:
        (tmp_path / "tiny.toml").write_text(RECIPE)
    run = bench.run(4)
    assert run.is_named_alike(bench.places.folder(bench.run(2)).name)
    assert bench.places.shorter(run, "cpu") is None
    allowed = dataclasses.replace(bench.places, lengthen=True).shorter(run, "cpu")
    assert (allowed is not None) == ("lr" not in recipe)


def test_a_recipe_made_longer_whose_views_grow_when_they_did(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.settings = {}
    flat = "\n[optimizer]\nschedule = 'trapezoid'\nwarmup_epochs = 0.0\n"
    results = []
    for epochs, share in ((4, 0.5), (8, 0.25)):
        grown = f"epochs = {epochs}\nresolution = [[0, 20], [{share}, 24]]"
        (tmp_path / "tiny.toml").write_text(RECIPE.replace("epochs = 2", grown) + flat)
        (run,) = make_plan(bench.table, Choices(rows=("ours",))).runs
        results.append(bench(run))
    assert [entry["epochs"] for entry in results[1].lengthened] == [4]


def test_what_another_device_chose_is_not_taken_over(bench: Bench) -> None:
    bench(bench.run(2))
    config = bench.places.folder(bench.run(2)) / "config.toml"
    config.write_text(config.read_text().replace('"float32"', '"bf16"'))
    assert bench(bench.run(4)).lengthened == []


def test_images_that_have_changed_are_told_with_options_that_are_there(bench: Bench) -> None:
    bench(bench.run(2))
    folder = bench.places.runs.parent
    with np.load(folder / "train.npz") as kept:
        images, labels = kept["images"], kept["labels"]
    np.savez(folder / "train.npz", images=255 - images, labels=labels)
    session = run_all([bench.run(4)], bench.places, device="cpu")
    assert session.failed
    (remark,) = next(iter(session.remarks.values()))
    assert "or choose another --runs" in remark
    assert "--lengthen" not in remark


def test_one_whose_checkpoints_were_cleared_away_is_measured_again(bench: Bench) -> None:
    runs = [bench.run(2), bench.run(4)]
    right = [answers(bench, bench(run)) for run in runs][1]
    for run in runs:
        shutil.rmtree(bench.places.folder(run) / "checkpoints")
    bench.places.result(runs[1]).unlink()
    for shots, counts in answers(bench, bench(runs[1])).items():
        np.testing.assert_array_equal(counts, right[shots])


def test_shorter_ones_that_nothing_can_go_on_from_are_passed_over(bench: Bench) -> None:
    short = bench.run(2)
    bench(short)
    folder = bench.places.folder(short)
    state = folder / "checkpoints" / "plateau.safetensors"
    state.write_bytes(state.read_bytes()[:3000])
    assert bench.places.shorter(bench.run(4), "cpu") is None
    state.unlink()
    stray = folder.with_name(folder.name.replace("2ep", "3ep"))
    stray.mkdir()
    assert bench.places.shorter(bench.run(4), "cpu") is None


def test_what_is_done_counts_in_the_estimate(bench: Bench) -> None:
    short, longer = bench.run(4), bench.run(8)
    bench(short)
    metrics = bench.places.folder(short) / "metrics.jsonl"
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    paced = [{**record, "seconds": 10.0 * record["epoch"]} for record in records]
    metrics.write_text("".join(json.dumps(record) + "\n" for record in paced))
    for result in Library(bench.places.results).of("shapes"):
        keep(bench.places.results, **{**vars(result), "seconds": 40.0})
    estimator = Estimator(bench.places.results, "cpu")
    folder = bench.places.folder(longer)
    assert estimator.known(longer, folder) == pytest.approx(80)
    assert estimator.known(longer, folder, bench.places.shorter(longer, "cpu")) == pytest.approx(50)


def test_a_state_that_had_been_rounded_is_noted_in_result_and_table(tmp_path: Path) -> None:
    bench = Bench(tmp_path, **{"checkpoint.plateau": "small"})
    bench.places = dataclasses.replace(bench.places, lengthen=True)
    bench(bench.run(2))
    result = bench(bench.run(4))
    (entry,) = result.lengthened
    reason = "its weights had been rounded to half precision, and momentum begins anew"
    assert (entry["epochs"], entry["otherwise"]) == (2, [reason])
    choices = Choices(epochs=4, settings=bench.settings)
    table = compare(bench.table, choices, Plan((), {}), Library(bench.places.results))
    assert f"went on from a run of 2 epochs at step {entry['step']}: {reason}" in as_text(table)


def test_an_exact_one_has_no_note(tmp_path: Path) -> None:
    entry = {"epochs": 1, "step": 3, "otherwise": []}
    keep(tmp_path / "results", **vars(dataclasses.replace(made_up(), lengthened=[entry])))
    table = compare(miniature(tmp_path), Choices(), Plan((), {}), Library(tmp_path / "results"))
    assert "went on from" not in as_text(table)
