"""Runs side by side: the same results, and no run that takes another with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eigenshot.reproduction.execute import Places
from eigenshot.reproduction.plan import Choices, PlannedRun, make_plan
from eigenshot.reproduction.side_by_side import run_side_by_side, shares_a_gpu_well
from eigenshot.reproduction.tablefile import read_table
from eigenshot.training.runfolder import RunFolder
from tests.reproduction.miniature import miniature, table_with, write_miniature
from tests.test_cli import Shell

DYING = """
import os
from eigenshot.methods import DeepLaplacianEigenmapsMethod

class Dying(DeepLaplacianEigenmapsMethod):
    def forward(self, view_a, view_b, drawn=None):
        if view_a.device.type != "meta":
            os._exit(7)
        return super().forward(view_a, view_b, drawn)
"""
RIVAL = 'method = "dle"\nsettings = {{ method.options.mixup = "none" }}'


def measured(results: Path) -> dict[str, Any]:
    """Accuracies by the name of the result."""
    found = {}
    for file in (results / "shapes").glob("*.json"):
        found[file.name] = json.loads(file.read_text())["fewshot"]
    return found


def test_results_are_those_of_one_run_after_the_other(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = write_miniature(tmp_path)
    command = ("reproduce", table, "--device", "cpu", "--rows", "ours,rival")
    alone = ("--results", tmp_path / "alone", "--runs", tmp_path / "runs-alone")
    assert shell(*command, *alone)[0] == 0
    code, out, _ = shell(*command, "--side-by-side", 2)
    assert code == 0
    for file in (tmp_path / "results" / "shapes").glob("*.json"):
        assert json.loads(file.read_text())["side_by_side"] == 2
    beside = measured(tmp_path / "results")
    assert beside == measured(tmp_path / "alone")
    assert len(beside) == 2
    for figures in beside.values():
        assert f"{figures['1']['accuracy']:.2f}" in out


def test_rows_of_one_training_are_one_process(tmp_path: Path) -> None:
    text = table_with('method.options.mixup = "none"', "evaluation.C = 2.0")
    table = read_table(str(write_miniature(tmp_path, text)))
    places = Places(tmp_path / "results", tmp_path / "runs")
    runs = make_plan(table, Choices(rows=("ours", "rival"))).runs
    session = run_side_by_side(runs, places, count=2, device="cpu")
    assert (session.finished, session.failed, session.remarks) == (2, False, {})
    assert len(list(places.runs.rglob("encoder.safetensors"))) == 1
    assert run_side_by_side(runs, places, count=2, device="cpu").idle, "all is there"


def test_a_process_that_dies_takes_no_other_with_it(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dying_method.py").write_text(DYING)
    table = write_miniature(tmp_path, table_with(RIVAL, 'method = "dying_method:Dying"'))
    command = ("reproduce", table, "--device", "cpu", "--rows", "rival,short")
    code, out, _ = shell(*command, "--side-by-side", 2)
    assert code == 1
    assert "its process ended with code 7; the same command goes on from what it saved" in out
    assert list(measured(tmp_path / "results")) == ["dle-tiny-short-1ep-seed0.json"]


def test_an_error_of_a_look_ahead_ends_no_other_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(run: PlannedRun, places: Places) -> str | None:
        raise RuntimeError("a file system that went away")

    monkeypatch.setattr("eigenshot.reproduction.side_by_side.obstacle", broken)
    table, places = miniature(tmp_path), Places(tmp_path / "results", tmp_path / "runs")
    runs = make_plan(table, Choices(rows=("ours", "short"))).runs
    assert run_side_by_side(runs, places, count=2, device="cpu").finished == 2


def test_a_spent_budget_begins_nothing(tmp_path: Path) -> None:
    write_miniature(tmp_path)
    table, places = miniature(tmp_path), Places(tmp_path / "results", tmp_path / "runs")
    runs = make_plan(table, Choices(rows=("ours",))).runs
    session = run_side_by_side(runs, places, count=2, device="cpu", minutes=1e-6)
    assert session.remarks == {("ours", "Shapes, 5-way"): ["not begun: the budget is spent"]}
    assert not places.runs.exists()


def test_at_least_one_run_is_asked_for(shell: Shell, tmp_path: Path) -> None:
    table = write_miniature(tmp_path)
    sentence = shell.refused("reproduce", table, "--side-by-side", 0)
    assert "--side-by-side is at least 1, found 0" in sentence


def test_whether_the_service_is_there_is_told_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert shares_a_gpu_well("cpu")
    assert not shares_a_gpu_well("cuda")
    (tmp_path / "control").touch()
    assert shares_a_gpu_well("cuda")


def started(tmp_path: Path) -> subprocess.Popen[str]:
    """A command with two long runs."""
    table = write_miniature(tmp_path)
    words = ["reproduce", str(table), "--device", "cpu", "--rows", "ours,rival"]
    return subprocess.Popen(
        [sys.executable, "-m", "eigenshot", *words, "--epochs", "5000", "--side-by-side", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(process: subprocess.Popen[str]) -> list[str]:
    """Numbers of the processes that it has started."""
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


def begun(tmp_path: Path) -> tuple[subprocess.Popen[str], list[RunFolder]]:
    """Such a command with both runs at work, and their folders."""
    process = started(tmp_path)
    names = ("dle-tiny-5000ep-seed0", "dle-tiny-rival-5000ep-seed0")
    (place,) = {make_plan(miniature(tmp_path), Choices()).runs[0].part.images["data"]}
    folders = [RunFolder(tmp_path / "runs" / "reproduce" / place / name) for name in names]
    until = time.monotonic() + 60
    while not all(folder.metrics() for folder in folders):
        assert time.monotonic() < until, "no epoch has ended within a minute"
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    return process, folders


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
def test_ctrl_c_stops_all_at_their_checkpoints(tmp_path: Path) -> None:
    process, folders = begun(tmp_path)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out.count("interrupted; the same command goes on from here") == 1  # a note for both
    assert "rival (Shapes, 5-way): epoch 1/5000" in err
    assert "Traceback" not in err
    for folder in folders:
        assert folder.last.exists()


in_proc = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="children are looked up in /proc"
)


@in_proc
def test_ctrl_c_while_processes_start_is_no_traceback(tmp_path: Path) -> None:
    process = started(tmp_path)
    until = time.monotonic() + 60
    while len(children(process)) < 3:  # one of them watches over what processes share
        assert time.monotonic() < until, "nothing was started within a minute"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "process ended" not in out


@in_proc
def test_without_their_parent_runs_stop_at_their_checkpoints(tmp_path: Path) -> None:
    process, folders = begun(tmp_path)
    listed = children(process)
    assert len(listed) >= 2
    process.kill()
    _, err = process.communicate()
    assert "Traceback" not in err
    until = time.monotonic() + 60
    while any(Path(f"/proc/{child}").exists() for child in listed):
        assert time.monotonic() < until, "they go on without a parent"
        time.sleep(0.1)
    for folder in folders:
        assert folder.last.exists()
