"""Runs are skipped, gone on with, stopped in time, and compared on the same tasks."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from eigenshot.configfile import load_config
from eigenshot.errors import UserError
from eigenshot.reporter import Reporter
from eigenshot.reproduction.execute import Places, execute
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.plan import Choices, PlannedRun, make_plan
from eigenshot.reproduction.results import Result, write_result
from eigenshot.reproduction.session import Session, obstacle, result_of, run_all
from eigenshot.reproduction.tablefile import read_table
from eigenshot.training.loop import DeadlineReached, Interrupted
from eigenshot.training.pretrain import pretrain
from eigenshot.training.runfolder import RunFolder
from tests.reproduction.miniature import TABLE, miniature, write_miniature


class Bench:
    """A table, its places and its runs, on the CPU."""

    def __init__(self, folder: Path) -> None:
        self.table = miniature(folder)
        self.places = Places(folder / "results", folder / "runs")

    def runs(self, *rows: str, **choices: Any) -> tuple[PlannedRun, ...]:
        return make_plan(self.table, Choices(rows=rows, **choices)).runs

    def __call__(self, runs: tuple[PlannedRun, ...], **options: Any) -> Session:
        return run_all(runs, self.places, device="cpu", **options)

    def results(self) -> dict[str, Result]:
        return {result.name: result for result in Library(self.places.results).of("shapes")}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_run_leaves_its_result_curve_and_tasks(bench: Bench) -> None:
    (run,) = bench.runs("ours")
    assert bench((run,)).finished == 1
    result = bench.results()[run.name]
    assert (result.benchmark, result.method, result.backbone) == ("shapes", "dle", "conv4")
    assert (result.epochs, result.seed, result.recipe) == (2, 0, "tiny")
    assert (result.classifier, result.transductive, result.row) == ("logistic", False, "mini/ours")
    assert result.fewshot["1"]["episodes"] == 40
    assert 20 < result.fewshot["1"]["accuracy"] < result.fewshot["5"]["accuracy"]
    assert result.config["data"]["mean"], "what the run settled is there"
    folder = bench.places.results / "shapes"
    curve = json.loads((folder / "curves" / f"{run.name}.json").read_text())
    assert curve["epoch"] == [1, 2]
    assert len(curve["effective_rank"]) == 2
    (counts,) = Library(bench.places.results).episodes([result])
    for shots in (1, 5):
        mean = 100 * counts.right[shots].mean() / counts.questions
        assert mean == pytest.approx(result.fewshot[str(shots)]["accuracy"], abs=1e-4)


def test_what_has_a_result_is_not_run_again(bench: Bench) -> None:
    runs = bench.runs("ours", "short")
    assert bench(runs).finished == 2
    before = {path: path.stat().st_mtime_ns for path in bench.places.results.rglob("*.*")}
    assert bench(runs).finished == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    library = Library(bench.places.results)
    assert result_of(runs[0], library) == bench.results()[runs[0].name]
    assert result_of(bench.runs("ours", seeds=(1,))[0], library) is None


def test_rows_that_are_one_run_are_run_once(bench: Bench) -> None:
    (run,) = bench.runs("short")
    twin = dataclasses.replace(run, row=dataclasses.replace(run.row, name="twin"))
    session = bench((run, twin))
    assert session.finished == 1
    assert session.remarks == {}


def test_a_result_that_is_gone_is_measured_again_without_training(bench: Bench) -> None:
    (run,) = bench.runs("short")
    bench((run,))
    first = bench.results()[run.name]
    bench.places.result(run).unlink()
    encoder = bench.places.folder(run) / "encoder.safetensors"
    written = encoder.stat().st_mtime_ns
    assert bench((run,)).finished == 1
    assert bench.results()[run.name].fewshot == first.fewshot
    assert encoder.stat().st_mtime_ns == written


def test_how_many_ran_beside_is_told_of_what_was_trained_at_once(bench: Bench) -> None:
    short, ours = bench.runs("short")[0], bench.runs("ours")[0]
    bench((short,))
    assert bench.results()[short.name].side_by_side == 1
    bench.places.result(short).unlink()
    bench((ours,), reporter=lambda run: InterruptingReporter())
    bench((short, ours))
    found = bench.results()
    assert [found[run.name].side_by_side for run in (short, ours)] == [0, 0]


def test_what_a_gpu_has_finished_is_measured_on_a_cpu(bench: Bench) -> None:
    (run,) = bench.runs("short")
    bench((run,))
    first = bench.results()[run.name]
    folder = bench.places.folder(run)
    for name, here, there in (
        ("config.toml", '"float32"', '"bf16"'),
        ("summary.json", f'"{first.hardware}"', '"a GPU"'),
    ):
        text = (folder / name).read_text()
        assert here in text
        (folder / name).write_text(text.replace(here, there))
    bench.places.result(run).unlink()
    assert bench((run,)).finished == 1
    result = bench.results()[run.name]
    assert result.fewshot == first.fewshot
    assert result.config["engine"]["precision"] == "bf16"
    assert (result.hardware, result.evaluation_hardware) == ("a GPU", first.hardware)


def test_a_damaged_result_is_not_written_over(bench: Bench) -> None:
    (run,) = bench.runs("short")
    file = bench.places.result(run)
    file.parent.mkdir(parents=True)
    file.write_text("{")
    session = bench((run,))
    assert session.finished == 0
    assert session.failed
    assert "remove it to run this again" in session.remarks["short", "Shapes, 5-way"][0]
    assert file.read_text() == "{"


def test_past_the_deadline_a_run_stops_and_goes_on_to_the_same_encoder(tmp_path: Path) -> None:
    write_miniature(tmp_path)
    config = load_config(str(tmp_path / "tiny.toml"))
    data = str(tmp_path / "train.npz")
    whole = pretrain(data, config, tmp_path / "whole", device="cpu")
    with pytest.raises(DeadlineReached):
        pretrain(data, config, tmp_path / "parts", device="cpu", deadline=time.monotonic())
    assert RunFolder(tmp_path / "parts").last.is_file()
    assert not RunFolder(tmp_path / "parts").finished
    late = time.monotonic() + 600
    parts = pretrain(data, config, tmp_path / "parts", resume=True, device="cpu", deadline=late)
    encoders = [(run.folder / "encoder.safetensors").read_bytes() for run in (whole, parts)]
    assert encoders[0] == encoders[1]
    assert issubclass(DeadlineReached, Interrupted)


def pretend(bench: Bench, run: PlannedRun, seconds: float) -> None:
    """Let the result of ``run`` say that it took so long."""
    result = bench.results()[run.name]
    write_result(bench.places.results, dataclasses.replace(result, seconds=seconds))


def test_a_budget_passes_over_what_does_not_fit_and_runs_what_does(bench: Bench) -> None:
    (ours,) = bench.runs("ours")
    bench((ours,))
    pretend(bench, ours, 150.0)  # 75 s an epoch
    session = bench(bench.runs("rival", "short"), minutes=100 / 60)
    (reason,) = session.remarks["rival", "Shapes, 5-way"]
    assert reason.startswith("not begun: it takes about 3 min, ")
    assert "short" not in {row for row, _ in session.remarks}
    assert set(bench.results()) == {ours.name, "dle-tiny-short-1ep-seed0"}


def test_without_earlier_results_the_time_is_measured(bench: Bench) -> None:
    long, short = bench.runs("ours", epochs=100_000)[0], bench.runs("short")[0]
    session = bench((long, short), minutes=2)
    assert session.remarks["ours", "Shapes, 5-way"][0].startswith("not begun: it takes about")
    assert set(bench.results()) == {short.name}


def test_a_run_that_takes_longer_than_told_stops_at_a_checkpoint(bench: Bench) -> None:
    (ours,), (long,) = bench.runs("ours"), bench.runs("rival", epochs=3000)
    bench((ours,))
    pretend(bench, ours, 0.0)
    session = bench((long, *bench.runs("short")), minutes=1.5 / 60)
    assert "stopped at the end of the budget" in session.remarks["rival", "Shapes, 5-way"][0]
    assert session.remarks["short", "Shapes, 5-way"][0].startswith("not begun: ")
    assert RunFolder(bench.places.folder(long)).last.is_file()
    assert not session.interrupted
    assert not session.failed


class InterruptingReporter(Reporter):
    """Presses Ctrl-C at the end of the first epoch."""

    def epoch(self, record: dict[str, float]) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_is_gone_on_with(bench: Bench, tmp_path: Path) -> None:
    runs = bench.runs("ours", "short")
    session = bench(runs, reporter=lambda run: InterruptingReporter())
    assert session.interrupted
    assert bench.results() == {}
    assert list(session.remarks) == [("ours", "Shapes, 5-way")], "the next one is not begun"
    assert len(RunFolder(bench.places.folder(runs[0])).metrics()) == 1
    assert bench(runs[:1]).finished == 1
    untouched = execute(runs[0], Places(tmp_path / "other", tmp_path / "others"), device="cpu")
    assert bench.results()[runs[0].name].fewshot == untouched.fewshot


def test_data_that_are_nowhere_are_told_before_anything_is_learned(bench: Bench) -> None:
    run = bench.runs("ours")[0]
    lost = dataclasses.replace(run, part=dataclasses.replace(run.part, evaluate="glyph"))
    session = bench((lost,))
    assert session.failed
    assert (
        "'glyph' is neither a folder or file nor a benchmark; did you mean 'glyphs'"
        in (session.remarks["ours", "Shapes, 5-way"][0])
    )
    assert not bench.places.folder(lost).exists()


def test_a_name_that_no_hub_has_is_told_with_the_rest(bench: Bench) -> None:
    run = bench.runs("ours")[0]
    wrong = dataclasses.replace(run, part=dataclasses.replace(run.part, data="hub:abc"))
    assert "expected hub:owner/name" in str(obstacle(wrong, bench.places))


def test_a_run_that_fails_does_not_stop_the_table(bench: Bench) -> None:
    wrong, right = bench.runs("ours")[0], bench.runs("short")[0]
    broken = bench.places.results.parent / "broken.npz"
    broken.write_text("no archive")
    wrong = dataclasses.replace(wrong, part=dataclasses.replace(wrong.part, data=str(broken)))
    session = bench((wrong, right))
    assert session.failed
    assert "broken.npz" in session.remarks["ours", "Shapes, 5-way"][0]
    assert set(bench.results()) == {right.name}


@pytest.mark.parametrize("debug", [False, True])
def test_an_error_that_nobody_foresaw_does_not_stop_the_table(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], debug: bool
) -> None:
    def broken(run: PlannedRun, *arguments: Any, **options: Any) -> Result:
        if run.row.name == "ours":
            raise RuntimeError("CUDA error: an illegal\n memory access")
        return execute(run, *arguments, **options)

    monkeypatch.setattr("eigenshot.reproduction.session.execute", broken)
    wrong, right = bench.runs("ours")[0], bench.runs("short")[0]
    session = bench((wrong, right), debug=debug)
    assert session.failed
    assert session.remarks["ours", "Shapes, 5-way"] == [
        "RuntimeError: CUDA error: an illegal memory access (--debug shows where)"
    ]
    assert set(bench.results()) == {right.name}
    assert ("Traceback" in capsys.readouterr().err) == debug


def test_a_device_that_an_error_has_left_unusable_does_not_stop_the_table(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked of it then says so, also to let go of its memory."""

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr("eigenshot.reproduction.session.execute", broken)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.empty_cache", broken)
    session = bench(bench.runs("ours", "short"))
    assert session.failed
    assert len(session.remarks) == 2


def test_what_another_process_trains_is_no_failure(bench: Bench) -> None:
    busy, free = bench.runs("ours")[0], bench.runs("short")[0]
    with RunFolder(bench.places.folder(busy)).held():
        session = bench((busy, free))
    assert not session.failed
    assert "another process is training in" in session.remarks["ours", "Shapes, 5-way"][0]
    assert set(bench.results()) == {free.name}
    assert bench((busy,)).finished == 1


def changed(run: PlannedRun, section: str, **values: Any) -> PlannedRun:
    """The run after its recipe has changed."""
    replaced = dataclasses.replace(getattr(run.config, section), **values)
    return dataclasses.replace(run, config=dataclasses.replace(run.config, **{section: replaced}))


class Listening(Reporter):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_row_whose_recipe_has_changed_is_run_again_beside_the_old_result(bench: Bench) -> None:
    (run,) = bench.runs("short")
    bench((run,))
    first = bench.places.result(run).read_bytes()
    other, listening = changed(run, "optimizer", lr=0.5), Listening()
    assert result_of(other, Library(bench.places.results)) is None
    assert bench((other,), reporter=lambda run: listening).finished == 1
    assert f"the result '{run.name}' was made otherwise, and is kept" in listening.notes
    old, new = sorted(bench.results().values(), key=lambda result: len(result.variant))
    assert bench.places.result(run).read_bytes() == first
    assert (old.config["optimizer"]["lr"], new.config["optimizer"]["lr"]) == (0.15, 0.5)
    assert new.variant.startswith(f"{old.variant}+")
    assert bench((run, other)).finished == 0, "both are there"
    assert bench.places.folder(run) != bench.places.folder(other)


def test_what_is_only_measured_otherwise_is_not_trained_again(bench: Bench) -> None:
    (run,) = bench.runs("short")
    bench((run,))
    encoder = bench.places.folder(run) / "encoder.safetensors"
    written = encoder.stat().st_mtime_ns
    other = changed(run, "evaluation", queries=3)
    (asked,) = bench.runs("short", settings={"evaluation.queries": 4})
    for another in (other, asked):
        assert bench.places.folder(another) == bench.places.folder(run)
        assert bench((another,)).finished == 1
    assert encoder.stat().st_mtime_ns == written
    assert len(bench.results()) == 3


def test_a_folder_of_other_settings_is_left_alone(bench: Bench) -> None:
    (run,) = bench.runs("ours")
    bench((run,), reporter=lambda run: InterruptingReporter())
    begun = RunFolder(bench.places.folder(run))
    before = begun.last.read_bytes()
    other = changed(run, "optimizer", lr=0.5)
    assert bench((other,)).finished == 1
    assert set(bench.results()) == {run.name}, "no result has taken that name"
    assert begun.last.read_bytes() == before
    assert not begun.finished


def test_a_budget_is_a_time(bench: Bench) -> None:
    with pytest.raises(UserError, match="--budget must be above 0 minutes, found 0"):
        bench(bench.runs("ours"), minutes=0)


LINEAR = TABLE.replace('measure = "fewshot"\nshots = [1, 5]', 'measure = "linear"').replace(
    'evaluate = "{folder}/test.npz"', 'train = "{folder}/train.npz"\nevaluate = "{folder}/test.npz"'
)


def test_a_linear_table(tmp_path: Path) -> None:
    one_figure = (
        LINEAR.replace(', ""]', "]").replace(', "40.0"]', "]").replace(', "60.0 ± 0.5"]', "]")
    )
    table = read_table(str(write_miniature(tmp_path, one_figure)))
    places = Places(tmp_path / "results", tmp_path / "runs")
    (run,) = make_plan(table, Choices(rows=("short",))).runs
    result = execute(run, places, device="cpu")
    assert result.linear["protocol"] == "sgd"
    assert result.linear["epochs"] == 1
    assert result.figure(None) == (result.linear["accuracy"], None)
    assert not (places.results / "shapes" / "episodes").exists()
    assert Library(places.results).of("shapes") == [result]


def test_what_is_said_of_a_later_seed_names_it(tmp_path: Path) -> None:
    table, places = miniature(tmp_path), Places(tmp_path / "results", tmp_path / "runs")
    runs = make_plan(table, Choices(seeds=(0, 1), rows=("short",))).runs
    session = run_all(runs, places, device="cpu", minutes=1e-9)
    assert session.remarks["short", "Shapes, 5-way"] == [
        "not begun: the budget is spent",
        "seed 1: not begun: the budget is spent",
    ]
    alone = make_plan(table, Choices(seeds=(3,), rows=("short",))).runs
    session = run_all(alone, places, device="cpu", minutes=1e-9)
    (sentence,) = session.remarks["short", "Shapes, 5-way"]
    assert sentence.startswith("seed 3: "), "the row may show what another seed has reached"


def test_a_result_tells_by_what_each_part_of_its_training_was_made(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = bench.runs("ours")
    monkeypatch.setenv("EIGENSHOT_COMMIT", "aaaa")
    with pytest.raises(DeadlineReached):
        execute(run, bench.places, device="cpu", deadline=time.monotonic())
    monkeypatch.setenv("EIGENSHOT_COMMIT", "bbbb")
    bench((run,))
    result = bench.results()[run.name]
    assert result.commit == "bbbb"
    assert [session["commit"] for session in result.sessions] == ["aaaa", "bbbb"]
