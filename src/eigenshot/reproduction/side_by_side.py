"""Runs of a table side by side on one device, a process for each training.

One run seldom fills a GPU: under NVIDIA's multi-process service several take the time of fewer. A
process that dies takes no other with it, and what it had saved is gone on with the next time.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
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
from eigenshot.reproduction.session import Session, check_budget, obstacle, result_of, run_all
from eigenshot.training.interrupt import Interruption

_LOOK_SECONDS = 0.2  # how often it is looked whether Ctrl-C was pressed
_NO_TIME = 1e-9  # minutes: nothing is begun, and that is said
_PASSED_ON = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class _Task:
    """What a process is to do: runs that share a training, until a moment of the system's clock."""

    runs: tuple[PlannedRun, ...]
    places: Places
    device: str
    end: float | None
    beside: int  # how many processes share the processor's cores
    debug: bool

    @property
    def idle(self) -> bool:
        """Whether nothing can be begun, which takes no process to say."""
        spent = self.end is not None and time.time() >= self.end
        try:
            return spent or all(obstacle(run, self.places) for run in self.runs)
        except Exception:  # which its process will meet too, and tell
            return False

    def do(self) -> Session:
        """Run them in this process, one after the other."""
        minutes = None if self.end is None else max(_NO_TIME, (self.end - time.time()) / 60)
        return run_all(
            self.runs,
            self.places,
            device=self.device,
            minutes=minutes,
            reporter=_reporter,
            beside=self.beside,
            debug=self.debug,
        )

    def failed(self, text: str) -> Session:
        """What became of them where ``text`` is all that is known."""
        session = Session(failed=True)
        for run in self.runs:
            session.remark(run, text)
        return session


def run_side_by_side(
    runs: Sequence[PlannedRun],
    places: Places,
    *,
    count: int,
    device: str = "auto",
    minutes: float | None = None,
    debug: bool = False,
) -> Session:
    """As `eigenshot.reproduction.session.run_all`, with ``count`` trainings at a time.

    Runs that share a training are one after the other in one process. Each line that a process
    prints begins with the name of its run.
    """
    check_budget(minutes)
    if os.name == "nt":
        raise UserError("--side-by-side is not for Windows, where runs could not be interrupted")
    library = Library(places.results)
    trainings: dict[Path, list[PlannedRun]] = {}
    for run in runs:
        if result_of(run, library) is None:
            trainings.setdefault(places.folder(run), []).append(run)
    end = None if minutes is None else time.time() + 60 * minutes
    beside = min(count, len(trainings))
    groups = map(tuple, trainings.values())
    left = [_Task(group, places, device, end, beside, debug) for group in groups]
    session, active = Session(), list[_Child]()
    passed_on = False
    with Interruption() as interruption:
        try:
            while active or (left and not interruption.requested):
                while left and len(active) < count and not interruption.requested:
                    task = left.pop(0)
                    if task.idle:
                        session.add(task.do())
                    else:
                        active.append(_start(task))
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


def shares_a_gpu_well(device: str) -> bool:
    """Whether processes on ``device`` run at the same time, and do not only take turns."""
    if device != "cuda":
        return True
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")  # the service's default
    return Path(folder, "control").exists()


@dataclass(frozen=True)
class _Child:
    """A process at work on ``task``, and where it tells what became of it."""

    task: _Task
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
        except (EOFError, OSError):  # in the midst of its message it is the second
            session = None
        self.process.join()
        if session is not None:
            return session
        return self.task.failed(
            f"its process ended with code {self.process.exitcode}; the same command goes on from "
            "what it saved"
        )


def _start(task: _Task) -> _Child:
    context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, task))
    resource_tracker.ensure_running()  # else the first start would do so, and undo the mask
    # The child inherits it, and is interrupted only once it can say so.
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
    theirs.close()  # so that the end of the child is the end of the connection
    return _Child(task, process, ours)


def _work(connection: Connection, task: _Task) -> None:
    """What a process does."""
    os.setpgrp()  # Ctrl-C reaches the parent alone, who passes it on
    threading.Thread(target=_stop_with_the_parent, daemon=True).start()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _PASSED_ON)
        torch.set_num_threads(max(1, torch.get_num_threads() // task.beside))
        session = task.do()
    except KeyboardInterrupt:  # before the first run was begun
        session = Session(interrupted=True)
    except Exception as error:  # outside of a run, of which a process would show a traceback
        session = task.failed(f"{type(error).__name__}: {error}")
    with contextlib.suppress(BrokenPipeError):  # nobody waits for it any more
        connection.send(session)


def _stop_with_the_parent() -> None:
    """Nobody waits for the runs of a parent that was killed: stop at a checkpoint."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)


def _reporter(run: PlannedRun) -> ConsoleReporter:
    seed = f", seed {run.seed}" if run.seed_is_told else ""
    # Bars of several processes would be drawn over each other.
    console = Console(stderr=True, force_terminal=False)
    prefix = f"{run.row.name} ({run.part.title}{seed}): "
    return ConsoleReporter(console, run.config.training.epochs, prefix=prefix)
