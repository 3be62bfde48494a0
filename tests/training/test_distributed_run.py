"""Two processes train as one run: started, stopped, killed and gone on with."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from eigenshot.cli import app
from eigenshot.data.reading.order import epoch_batches
from eigenshot.data.source import ArraySource
from eigenshot.encoder import load_encoder
from eigenshot.errors import UserError
from eigenshot.tensorfile import read_tensors

SETTINGS = {
    "data.per_class": "1",
    "backbone.options.widths": "[4,4,4,8]",
    "projector.width": "16",
    "training.batch_size": "64",
    "checkpoint.every_steps": "4",
    "checkpoint.every_minutes": "0",
    "probe.kind": "knn",
    "probe.max_images": "1000",
}
STEPS_AN_EPOCH, EPOCHS = 746 // 64, 3
TORCHRUN = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def arguments(run: Path, *more: str) -> list[str]:
    settings = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    options = ["--epochs", str(EPOCHS), "--device", "cpu", *settings, *more]
    return ["eigenshot", "pretrain", "glyphs", "--out", str(run), *options]


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code and what was said, of a process that does not hang."""
    try:
        output, messages = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, output, messages


def wait_for_checkpoint(process: subprocess.Popen[str], run: Path, newer_than: int = 0) -> int:
    """The moment of a checkpoint that was written after another moment."""
    file = run / "checkpoints" / "last.safetensors"
    while process.poll() is None:
        if file.exists() and (moment := file.stat().st_mtime_ns) > newer_than:
            return moment
        time.sleep(0.005)
    raise AssertionError(f"ended without a checkpoint: {process.communicate()[1]}")


def worker(launcher: subprocess.Popen[str], rank: int) -> int:
    """The process id of a worker of torchrun."""
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    for child in children:
        if f"\0RANK={rank}\0".encode() in Path(f"/proc/{child}/environ").read_bytes():
            return int(child)
    raise AssertionError(f"no process of rank {rank} among {children}")


def metrics(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    timing = ("seconds", "images_per_second")
    return [
        {key: value for key, value in json.loads(line).items() if key not in timing}
        for line in lines
    ]


class Stream(ArraySource):
    """Remembers which rows it was asked to hold."""

    def __init__(self, length: int, window: int) -> None:
        super().__init__(torch.zeros(length, 1, 1, 1, dtype=torch.uint8))
        self.window, self.groups = window, np.arange(length + 1)
        self.held: list[np.ndarray] = []

    def hold(self, rows: np.ndarray, then: np.ndarray | None = None) -> None:
        self.held.append(rows)
        self.then = then


@pytest.mark.parametrize("first", [0, 3])
def test_the_blocks_of_all_processes_are_the_batches_of_one(first: int) -> None:
    options = {"seed": 0, "epoch": 1, "batch_size": 12, "first": first}
    shares = [
        list(epoch_batches(Stream(100, 40), share=(number, 3), **options)) for number in range(3)
    ]
    whole = list(epoch_batches(Stream(100, 40), **options))
    assert len(whole) == 100 // 12 - first
    for batch, *blocks in zip(whole, *shares, strict=True):
        assert [len(block) for block in blocks] == [4, 4, 4]
        np.testing.assert_array_equal(np.concatenate(blocks), batch)


def test_a_stream_holds_the_rows_of_its_own_blocks_only() -> None:
    streams = [Stream(100, 40) for _ in range(3)]
    for number, stream in enumerate(streams):
        batches = epoch_batches(stream, seed=0, epoch=0, batch_size=12, share=(number, 3))
        visited = np.concatenate(list(batches))
        np.testing.assert_array_equal(np.concatenate(stream.held), visited)
        assert stream.then is not None
        assert len(stream.then) == 12, "the first window of the next epoch"
    held = np.concatenate([rows for stream in streams for rows in stream.held])
    assert len(np.unique(held)) == len(held) == 96


def test_a_batch_without_equal_blocks_is_refused() -> None:
    with pytest.raises(UserError, match="12 images has no equal blocks for 5 processes"):
        next(epoch_batches(Stream(100, 40), seed=0, epoch=0, batch_size=12, share=(0, 5)))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A run whose second process is started by the first."""
    run = tmp_path_factory.mktemp("runs") / "unbroken"
    code, output, messages = ended(start(*arguments(run, "--devices", "2")))
    assert code == 0, messages
    return run, output, messages


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run under torchrun that was asked to stop in its first epoch."""
    run = tmp_path_factory.mktemp("runs") / "stopped"
    launcher = start(*TORCHRUN, "-m", *arguments(run))
    wait_for_checkpoint(launcher, run)
    launcher.send_signal(signal.SIGTERM)
    _, _, messages = ended(launcher)
    return run, messages


def test_a_process_starts_the_others_of_its_machine(unbroken: tuple[Path, str, str]) -> None:
    run, output, messages = unbroken
    assert output.count("encoder in") == 1, "one process speaks for both"
    assert messages.count(f"epoch {EPOCHS}/{EPOCHS}") == 1
    assert "on 2 processes (cpu)" in messages
    assert "Warning" not in messages
    assert [record["step"] for record in metrics(run)] == [
        STEPS_AN_EPOCH * epoch for epoch in range(1, EPOCHS + 1)
    ]
    assert "probe_accuracy" in metrics(run)[0]
    assert json.loads((run / "data.json").read_text())["processes"] == 2
    assert json.loads((run / "summary.json").read_text())["processes"] == 2
    assert load_encoder(run).out_features == 8
    assert not list(run.rglob(".*")), "no temporary file is left"


def test_processes_evaluate_together_and_one_prints(unbroken: tuple[Path, str, str]) -> None:
    protocol = ["--data", "glyphs", "--episodes", "300", "--device", "cpu", "--json"]
    command = ["evaluate", "fewshot", str(unbroken[0]), *protocol]
    code, output, messages = ended(start(*TORCHRUN, "-m", "eigenshot", *command))
    assert code == 0, messages
    alone = CliRunner().invoke(app, command)
    assert json.loads(output) == json.loads(alone.stdout)
    assert "taken from the cache" in alone.stderr, "where the first of the two has put them"


def test_processes_embed_together_and_one_writes(
    unbroken: tuple[Path, str, str], tmp_path: Path
) -> None:
    command = ["embed", str(unbroken[0]), "glyphs", "--no-cache", "--device", "cpu", "--out"]
    together, alone = tmp_path / "together.npz", tmp_path / "alone.npz"
    code, output, messages = ended(start(*TORCHRUN, "-m", "eigenshot", *command, str(together)))
    assert code == 0, messages
    assert output == f"features in {together}\n"
    assert CliRunner().invoke(app, [*command, str(alone)]).exit_code == 0
    with np.load(together) as found, np.load(alone) as expected:
        np.testing.assert_array_equal(found["features"], expected["features"])
        np.testing.assert_array_equal(found["labels"], expected["labels"])


def test_a_polite_kill_of_the_launcher_saves_the_state(stopped: tuple[Path, str]) -> None:
    run, messages = stopped
    assert messages.count("the state is saved") == 1
    _, header = read_tensors(run / "checkpoints" / "last.safetensors", kind=None)
    # By vote, every ten steps and at the end of an epoch.
    assert header["step"] % 10 == 0 or header["step"] % STEPS_AN_EPOCH == 0
    assert not (run / "encoder.safetensors").exists()


def test_another_number_of_processes_cannot_go_on(stopped: tuple[Path, str]) -> None:
    code, _, messages = ended(start(*arguments(stopped[0], "--resume")))
    assert code == 2
    assert "was started with 2 processes, found 1 process" in messages
    assert len(messages.splitlines()) == 1


def test_a_killed_worker_is_restarted_and_leaves_no_trace(
    unbroken: tuple[Path, str, str], stopped: tuple[Path, str], tmp_path: Path
) -> None:
    """Stopped in one epoch, killed in another, and the same as a run that never was."""
    run = tmp_path / "run"
    shutil.copytree(stopped[0], run)
    before = (run / "checkpoints" / "last.safetensors").stat().st_mtime_ns
    launcher = start(*TORCHRUN, "--max-restarts=3", "-m", *arguments(run, "--resume"))
    wait_for_checkpoint(launcher, run, newer_than=before)
    os.kill(worker(launcher, rank=1), signal.SIGKILL)
    code, _, messages = ended(launcher)
    assert code == 0, messages
    assert messages.count("going on from step") == 2
    assert metrics(run) == metrics(unbroken[0])
    for name in ("encoder.safetensors", "data.json"):
        assert (run / name).read_bytes() == (unbroken[0] / name).read_bytes(), name
    assert not list(run.rglob(".*")), "no temporary file is left"


def test_ctrl_c_stops_both_processes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(*arguments(run, "--devices", "2"))
    wait_for_checkpoint(process, run)
    process.send_signal(signal.SIGINT)  # to one of them, as a terminal would to both
    code, _, messages = ended(process)
    assert code == 130
    assert messages.count("the same command with --resume goes on from here") == 1
    assert "Traceback" not in messages


def test_two_processes_lengthen_a_run_as_one_does(tmp_path: Path) -> None:
    flat = ("--set", "optimizer.schedule=trapezoid", "--set", "optimizer.warmup_epochs=0")
    two = ("--devices", "2", "--device", "cpu")
    short, longer, anew = (tmp_path / name for name in ("short", "longer", "anew"))
    from_it = ["--out", str(longer), "--lengthen", str(short), "--epochs", "2"]
    for command in (
        [*arguments(short, *flat, *two), "--epochs", "1"],
        ["eigenshot", "pretrain", "glyphs", *from_it, *two],
        [*arguments(anew, *flat, *two), "--epochs", "2"],
    ):
        code, _, messages = ended(start(*command))
        assert code == 0, messages
    assert metrics(longer) == metrics(anew)
    file = "encoder.safetensors"
    assert (longer / file).read_bytes() == (anew / file).read_bytes()


def test_a_wrong_argument_is_said_once_and_nobody_waits(tmp_path: Path) -> None:
    command = arguments(tmp_path / "run", "--set", "training.batch_size=63")
    code, _, messages = ended(start(*TORCHRUN, "-m", *command))
    assert code != 0
    assert messages.count("error: a batch of 63 images does not split into equal blocks") == 1
    assert "exitcode: 2" in messages, "that of the first process, as torchrun reports it"
    assert not (tmp_path / "run").exists()


def test_what_one_process_cannot_read_ends_both(tmp_path: Path) -> None:
    """The failure comes after the processes have met, on the first alone."""
    (tmp_path / "probe").mkdir()
    probed = ("--set", f"probe.data={tmp_path / 'probe'}", "--devices", "2")
    code, _, messages = ended(start(*arguments(tmp_path / "run", *probed)))
    assert code == 2
    assert "probe is empty" in messages
    assert len(messages.splitlines()) == 1, "said once"
    assert not (tmp_path / "run").exists()
