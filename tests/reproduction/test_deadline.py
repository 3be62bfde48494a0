"""Several processes stop at a deadline together and for one reason, whatever their clocks say."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from eigenshot.collective import rank
from eigenshot.reporter import Reporter
from eigenshot.training.choices import resolve_batch, resolve_size
from eigenshot.training.loop import Interrupted, train
from eigenshot.training.parts import Parts
from eigenshot.training.runfolder import RunFolder
from eigenshot.training.setup import build
from tests.test_collective import Results, on_two_ranks
from tests.training.test_loop import broadcast, images, settings


class Alone:
    """A fabric of processes that exchange their votes only."""

    device = torch.device("cpu")
    world_size = 2
    broadcast = staticmethod(broadcast)

    def setup(self, module: Any, optimizer: Any) -> tuple[Any, Any]:
        return module, optimizer

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()


def ready(fabric: Any) -> Parts:
    source = images()
    config = resolve_batch(resolve_size(settings(200), source, "cpu"), source, "cpu", 2)
    return build(config, source, "cpu", fabric=fabric)


class Interrupting(Reporter):
    """Presses Ctrl-C in one of the processes when training begins."""

    def begin(self, total_steps: int, step: int) -> None:
        if rank() == 1:
            os.kill(os.getpid(), signal.SIGINT)


def ending(folder: Path, late: int, reporter: Reporter) -> str:
    """How a run ends whose time is over for one of the processes."""
    deadline = time.monotonic() + (0.0 if rank() == late else 600.0)
    run = RunFolder(folder / str(rank()))
    run.last.parent.mkdir(parents=True)
    try:
        train(ready(Alone()), run, None, reporter, going_on=False, deadline=deadline)
    except Interrupted as error:
        return type(error).__name__
    return "finished"


def on_rank(folder: Path) -> Results:
    found = {f"late {late}": ending(folder / f"late{late}", late, Reporter()) for late in range(2)}
    dist.barrier()
    return {**found, "interrupted": ending(folder / "interrupted", 0, Interrupting())}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    folder = tmp_path_factory.mktemp("deadline")
    return on_two_ranks(on_rank, folder, folder)


@pytest.mark.parametrize("late", [0, 1])
def test_one_clock_ends_all(results: list[Results], late: int) -> None:
    assert [found[f"late {late}"] for found in results] == ["DeadlineReached"] * 2


def test_an_interruption_of_one_is_one_of_all(results: list[Results]) -> None:
    assert [found["interrupted"] for found in results] == ["Interrupted"] * 2
