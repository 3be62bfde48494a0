"""Metrics of a run: always metrics.jsonl, TensorBoard when asked."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from eigenshot.config import LoggingConfig
from eigenshot.errors import UserError
from eigenshot.training.runfolder import RunFolder


class MetricsLog:
    """Writes one record an epoch."""

    def __init__(self, folder: RunFolder, settings: LoggingConfig, step: int) -> None:
        self.folder = folder
        self._board: Any = None
        if settings.tensorboard:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise UserError(
                    "TensorBoard is not installed: pip install 'eigenshot[tensorboard]', "
                    "or leave logging.tensorboard off"
                ) from error
            self._board = SummaryWriter(str(folder.path / "tensorboard"), purge_step=step)

    def write(self, record: dict[str, Any]) -> None:
        """Append ``record``, which has ``"step"`` and numbers by name."""
        self.folder.log(record)
        if self._board is not None:
            for name, value in record.items():
                if name not in ("step", "epoch"):
                    self._board.add_scalar(name, value, record["step"])
            self._board.flush()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._board is not None:
            self._board.close()
