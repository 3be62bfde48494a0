"""When a run's checkpoints are written, and which of them are kept."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

from eigenshot.collective import rank
from eigenshot.config import CheckpointConfig
from eigenshot.errors import UserError
from eigenshot.tensorfile import Content, read_tensors
from eigenshot.training.background import Background
from eigenshot.training.checkpoint import (
    FORMAT,
    Progress,
    link_or_copy,
    shrunk,
    take_checkpoint,
)
from eigenshot.training.meter import Meter
from eigenshot.training.runfolder import RunFolder


class Keeper:
    """Writes a run's checkpoints when its settings say so, while the training goes on.

    The state after ``plateau_end`` steps, if that is given, is kept for longer runs. Leaving the
    context waits until what was saved is written.
    """

    def __init__(
        self,
        folder: RunFolder,
        method: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: CheckpointConfig,
        step: int,
        average: nn.Module | None = None,
        plateau_end: int | None = None,
    ) -> None:
        self.folder = folder
        self.plateau_end = None if settings.plateau == "off" else plateau_end
        self.average = average
        self.method = method
        self.optimizer = optimizer
        self.settings = settings
        self._writing = Background()
        self._run = folder.mark
        self._saved_step = step
        self._saved_time = time.monotonic()

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        try:
            self.wait()
        except Exception:
            if kind is None:  # else what ended the training says more than the file beside it
                raise

    def wait(self) -> None:
        """Until what was saved is in its files."""
        self._writing.wait()

    def check(self) -> None:
        """Raise why a checkpoint could not be written, as soon as that is known."""
        self._writing.check()

    def restore_kept(self, progress: Progress) -> None:
        """Finish what a kill between the last checkpoint and those that are kept left undone."""
        if rank() != 0:
            return
        if progress.best_step == progress.step:
            link_or_copy(self.folder.last, self.folder.best)
        if progress.step == self.plateau_end:
            self._keep_plateau(Content(FORMAT, *read_tensors(self.folder.last, kind=FORMAT)))

    def due_by_steps(self, step: int) -> bool:
        """Whether a checkpoint is to be written after ``step`` steps whatever the time is."""
        steps = self.settings.every_steps
        return step == self.plateau_end or bool(steps and step - self._saved_step >= steps)

    def due_by_minutes(self) -> bool:
        """Whether enough minutes have passed since the last checkpoint, by this process's clock."""
        minutes = self.settings.every_minutes
        return bool(minutes and (time.monotonic() - self._saved_time) / 60 >= minutes)

    def save(
        self, meter: Meter, progress: Progress, score: float | None = None, by: str = ""
    ) -> None:
        """Let the last checkpoint be the state of now; the best too when ``score`` is the best.

        The files are written in the background, one checkpoint after the other. Several processes
        call it together, and the first writes.
        """
        meter.check_finite()
        is_best = score is not None and (
            progress.best is None or progress.best_by != by or score > progress.best
        )
        if is_best:
            progress.best, progress.best_step, progress.best_by = score, progress.step, by
        self.wait()  # before memory is taken for the next
        taken = take_checkpoint(
            self.method, self.optimizer, meter, progress, self.average, run=self._run
        )
        if taken is not None:
            at_plateau_end = progress.step == self.plateau_end
            self._writing.start(partial(self._write, taken, is_best, at_plateau_end))
        self._saved_step, self._saved_time = progress.step, time.monotonic()

    def _write(self, taken: Content, is_best: bool, at_plateau_end: bool) -> None:
        before = self.folder.last.exists()
        try:
            taken.write(self.folder.last)
        except (OSError, MemoryError) as error:
            kept = "--resume goes on from the one before it" if before else "there is none yet"
            raise UserError(
                f"cannot write the checkpoint '{self.folder.last}': {_reason(error)}; {kept}"
            ) from error
        if is_best:
            with _written_beside(self.folder.best):
                link_or_copy(self.folder.last, self.folder.best)
        if at_plateau_end:
            with _written_beside(self.folder.plateau):
                self._keep_plateau(taken)

    def _keep_plateau(self, taken: Content) -> None:
        """Keep ``taken``, the last checkpoint, for longer runs to go on from."""
        if self.settings.plateau == "small":
            shrunk(taken).write(self.folder.plateau)
        else:
            link_or_copy(self.folder.last, self.folder.plateau)


@contextlib.contextmanager
def _written_beside(file: Path) -> Iterator[None]:
    """What keeps ``file`` from being written leaves the last checkpoint as it is."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise UserError(
            f"cannot write '{file}': {_reason(error)}; the checkpoint itself is written, and "
            "--resume goes on from it"
        ) from error


def _reason(error: OSError | MemoryError) -> str:
    return getattr(error, "strerror", None) or str(error) or "too little memory"
