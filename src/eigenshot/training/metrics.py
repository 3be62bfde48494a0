"""Metrics of a run: always metrics.jsonl, TensorBoard when asked."""

from __future__ import annotations

import importlib.util
from typing import Any

from eigenshot.collective import rank
from eigenshot.config import LoggingConfig
from eigenshot.errors import UserError
from eigenshot.training.runfolder import RunFolder


def check_tensorboard(settings: LoggingConfig) -> None:
    """Refuse before anything is written when TensorBoard is asked for and not there."""
    if settings.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            "TensorBoard is not installed: pip install 'eigenshot[tensorboard]', "
            "or leave logging.tensorboard off"
        )


class MetricsLog:
    """Writes one record an epoch; of several processes, the first alone."""

    def __init__(self, folder: RunFolder, settings: LoggingConfig, step: int) -> None:
        self.folder = folder
        self._writes = rank() == 0
        self._board: Any = None
        if settings.tensorboard and self._writes:
            from torch.utils.tensorboard import SummaryWriter

            # What was logged after the checkpoint happens again; what was logged at it stays.
            purge = step + 1 if step else None
            is_new = not folder.board.is_dir()
            self._board = SummaryWriter(str(folder.board), purge_step=purge)
            if is_new:  # of a run that another began, or that was logged elsewhere so far
                for record in folder.metrics():
                    self._show(record)

    def write(self, record: dict[str, Any]) -> None:
        """Append ``record``, which has ``"step"`` and numbers by name."""
        if self._writes:
            self.folder.log(record)
        if self._board is not None:
            self._show(record)
            self._board.flush()

    def _show(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if name not in ("step", "epoch"):
                self._board.add_scalar(name, value, record["step"])

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *details: object) -> None:
        if self._board is not None:
            self._board.close()
