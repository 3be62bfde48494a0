"""A run killed without warning at random moments ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

SETTINGS = {
    "data.per_class": "2",
    "backbone.options.widths": "[8,8,8,16]",
    "projector.width": "64",
    "training.batch_size": "32",
    "checkpoint.every_steps": "3",
    "probe.kind": "knn",
}


def command(run: Path) -> list[str]:
    settings = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    options = ["--epochs", "6", "--resume", "--device", "cpu", *settings]
    return [sys.executable, "-m", "eigenshot", "pretrain", "glyphs", "--out", str(run), *options]


def finish(run: Path) -> tuple[float, float]:
    """Run to the end; the seconds before the first checkpoint and from it on."""
    started = time.monotonic()
    process = subprocess.Popen(command(run), stderr=subprocess.PIPE)
    began = None
    while process.poll() is None:
        if began is None and (run / "checkpoints" / "last.safetensors").exists():
            began = time.monotonic()
        time.sleep(0.01)
    assert process.returncode == 0, process.stderr.read() if process.stderr else ""
    ended = time.monotonic()
    return (began or ended) - started, ended - (began or ended)


def kill_after(run: Path, seconds: float, at_once: bool = False) -> bool:
    """Start or go on, kill ``seconds`` after the first new checkpoint; False if it had ended.

    ``at_once`` counts from the start of the process.
    """
    checkpoints = run / "checkpoints"
    before = checkpoints.stat().st_mtime_ns if checkpoints.exists() else 0
    process = subprocess.Popen(command(run), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while process.poll() is None and not at_once:
        if checkpoints.exists() and checkpoints.stat().st_mtime_ns > before:
            break
        time.sleep(0.005)
    time.sleep(seconds)
    if process.poll() is not None:
        return False
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return True


def test_five_kills_leave_no_trace(tmp_path: Path) -> None:
    unbroken, killed = tmp_path / "unbroken", tmp_path / "killed"
    preparation, length = finish(unbroken)
    # Two kills at any moment from the start of the process, while it still prepares perhaps, and
    # three within an eighth of the run after it went on, so that five fit into it.
    generator = np.random.default_rng()
    early = generator.uniform(0, 1.15 * preparation, size=2)
    moments = generator.uniform(0, length / 8, size=3)
    kills = [kill_after(killed, float(moment), at_once=True) for moment in early]
    kills += [kill_after(killed, float(moment)) for moment in moments]
    assert all(kills), f"the run ended too early to be killed at {early}, {moments}"
    finish(killed)
    for name in ("encoder.safetensors", "config.toml", "data.json"):
        assert (killed / name).read_bytes() == (unbroken / name).read_bytes(), f"{name}, {moments}"
    epochs = [line.count('"epoch"') for line in (killed / "metrics.jsonl").read_text().splitlines()]
    assert epochs == [1] * 6
    assert not list(killed.rglob(".*")), "no temporary file is left"


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(command(run), stderr=subprocess.PIPE, text=True)
    while not (run / "checkpoints" / "last.safetensors").exists():
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command with --resume goes on from here" in message
    assert "Traceback" not in message
