"""Runs of a table side by side on one device, a process for each training.

One run seldom fills a GPU: under NVIDIA's multi-process service several take the time of fewer. A
process that dies takes no other with it, and what it had saved is gone on with the next time.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch
from rich.console import Console

from eigenshot.errors import UserError
from eigenshot.reporter import ConsoleReporter
from eigenshot.reproduction.execute import Places
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.plan import PlannedRun
from eigenshot.reproduction.session import Session, check_budget, result_of, run_all
from eigenshot.training.interrupt import Interruption

_LOOK_SECONDS = 0.2  # how often it is looked whether Ctrl-C was pressed
_NO_TIME = 1e-9  # minutes: nothing is begun, and that is said
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)


def run_side_by_side(
    runs: Sequence[PlannedRun],
    places: Places,
    *,
    count: int,
    device: str = "auto",
    minutes: float | None = None,
) -> Session:
    """As `eigenshot.reproduction.session.run_all`, with ``count`` trainings at a time.

    Runs that share a training are one after the other in one process. Each line that a process
    prints begins with the name of its row.
    """
    check_budget(minutes)
    check_count(count)
    library = Library(places.results)
    trainings: dict[Path, list[PlannedRun]] = {}
    for run in runs:
        if result_of(run, library) is None:
            trainings.setdefault(places.folder(run), []).append(run)
    left = list(trainings.values())
    end = None if minutes is None else time.time() + 60 * minutes
    session, active = Session(), list[_Child]()
    passed_on = False
    with Interruption() as interruption:
        try:
            while active or (left and not interruption.requested):
                while left and len(active) < count and not interruption.requested:
                    active.append(_start(left.pop(0), (places, device, end, count)))
                if interruption.requested and not passed_on:
                    passed_on = True
                    for child in active:
                        child.interrupt()
                ready = wait([child.connection for child in active], timeout=_LOOK_SECONDS)
                for child in [child for child in active if child.connection in ready]:
                    active.remove(child)
                    session.add(child.outcome())
        finally:  # nothing is active unless Ctrl-C was pressed again
            for child in active:
                child.process.terminate()
    session.interrupted |= interruption.requested
    return session


def check_count(count: int) -> None:
    """Refuse a number of runs at a time with which nothing can be run."""
    if count < 1:
        raise UserError(f"--side-by-side is at least 1, found {count}")


def shares_a_gpu_well(device: str) -> bool:
    """Whether processes on ``device`` run at the same time, and do not only take turns."""
    if not device.startswith("cuda"):
        return True
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # the service's default
    return Path(folder, "control").exists()


@dataclass(frozen=True)
class _Child:
    """A process at work on ``runs``, and where it tells what became of them."""

    runs: list[PlannedRun]
    process: SpawnProcess
    connection: Connection

    def interrupt(self) -> None:
        """Ask it to stop at a checkpoint."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGINT)

    def outcome(self) -> Session:
        """What it has told; a remark on each run where it has died before that."""
        try:
            session: Session | None = self.connection.recv()
        except EOFError:
            session = None
        self.process.join()
        if session is None:
            code = self.process.exitcode
            text = (
                f"its process ended with code {code}; the same command goes on from what it saved"
            )
            session = _failed(self.runs, text)
        return session


def _failed(runs: Sequence[PlannedRun], text: str) -> Session:
    session = Session(failed=True)
    for run in runs:
        session.remark(run, text)
    return session


def _start(runs: list[PlannedRun], how: tuple[Places, str, float | None, int]) -> _Child:
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, runs, *how))
    # The child inherits it, and is interrupted only once it can say so.
    _mask(signal.SIG_BLOCK)
    try:
        process.start()
    finally:
        _mask(signal.SIG_UNBLOCK)
    theirs.close()  # so that the end of the child is the end of the connection
    return _Child(runs, process, ours)


def _mask(how: int) -> None:
    if hasattr(signal, "pthread_sigmask"):  # which Windows has not
        signal.pthread_sigmask(how, _PASSED_ON)


def _work(
    connection: Connection,
    runs: list[PlannedRun],
    places: Places,
    device: str,
    end: float | None,
    count: int,
) -> None:
    """Run ``runs`` until the moment ``end``; of the processor's cores take one in ``count``."""
    leave_group: Callable[[], None] | None = getattr(os, "setpgrp", None)
    if leave_group is not None:  # Ctrl-C reaches the parent alone, who passes it on
        leave_group()
    threading.Thread(target=_stop_with_the_parent, daemon=True).start()
    try:
        _mask(signal.SIG_UNBLOCK)
        torch.set_num_threads(max(1, torch.get_num_threads() // count))
        minutes = None if end is None else max(_NO_TIME, (end - time.time()) / 60)
        session = run_all(runs, places, device=device, minutes=minutes, reporter=_reporter)
    except KeyboardInterrupt:  # before the first run was begun
        session = Session(interrupted=True)
    except Exception as error:  # what another process would show as a traceback
        session = _failed(runs, f"{type(error).__name__}: {error}")
    connection.send(session)


def _stop_with_the_parent() -> None:
    """Nobody waits for the runs of a parent that was killed: stop at a checkpoint."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)


def _reporter(run: PlannedRun) -> ConsoleReporter:
    name = (
        f"{run.row.name}, seed {run.seed}: " if run.seed or run.later_seed else f"{run.row.name}: "
    )
    # Bars of several processes would be drawn over each other.
    console = Console(stderr=True, force_terminal=False)
    return ConsoleReporter(console, run.config.training.epochs, prefix=name)
