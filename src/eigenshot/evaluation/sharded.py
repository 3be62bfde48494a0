"""Rows shared out among processes that evaluate together, and put together again.

Each process takes whole units of rows, such as batches, and a process alone takes the same units
one after the other. So what is computed is the same, however many processes there are.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from eigenshot.collective import rank, world_size
from eigenshot.data.source import Indices, Source

_ROWS_AT_ONCE = 65_536  # bounds what lies on the device while it is sent


def share(count: int, unit: int = 1, number: int | None = None) -> slice:
    """The rows out of ``count`` that process ``number`` takes, by default this one.

    They lie together and are whole units of ``unit`` rows, of which only the very last is shorter.
    """
    number = rank() if number is None else number
    units, ranks = -(-count // unit), world_size()
    start, stop = (min(count, -(-units * edge // ranks) * unit) for edge in (number, number + 1))
    return slice(start, stop)


def put_together(
    own: np.ndarray, count: int, unit: int = 1, *, device: torch.device | str = "cpu"
) -> np.ndarray:
    """All rows ``(count, …)`` on every process, of which each brings its share ``(n, …)``.

    ``device`` is one that the processes can send from.
    """
    if world_size() == 1:
        return own
    whole = np.empty((count, *own.shape[1:]), dtype=own.dtype)
    whole[share(count, unit)] = own
    for number in range(world_size()):
        _send(whole[share(count, unit, number)], number, device)
    return whole


def from_first(
    rows: np.ndarray | None,
    shape: tuple[int, ...],
    *,
    device: torch.device | str = "cpu",
) -> np.ndarray | None:
    """What the first process has, float32 of ``shape`` or None, on every process."""
    if world_size() == 1:
        return rows
    present = torch.tensor(int(rows is not None), device=device)
    dist.broadcast(present, src=0)
    if not bool(present):
        return None
    whole = np.empty(shape, dtype=np.float32) if rank() != 0 or rows is None else rows
    _send(whole, 0, device)
    return whole


def _send(rows: np.ndarray, number: int, device: torch.device | str) -> None:
    """Let ``rows`` (n, …) be those of process ``number`` on every process, in place."""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        piece = rows[start : start + _ROWS_AT_ONCE]
        block = torch.from_numpy(piece).to(device)
        dist.broadcast(block, src=number)
        if number != rank():
            piece[...] = block.cpu().numpy()


class Rows:
    """Rows ``part`` of a source, as a source without labels."""

    labels = None
    class_names: tuple[str, ...] = ()

    def __init__(self, source: Source, part: slice) -> None:
        self._source = source
        self._part = part
        self.name = source.name
        self.shape = source.shape

    @property
    def fingerprint(self) -> str:
        """That of the rows, by the source they are of."""
        return f"{self._source.fingerprint}[{self._part.start}:{self._part.stop}]"

    def __len__(self) -> int:
        return self._part.stop - self._part.start

    def images(self, indices: Indices) -> torch.Tensor:
        """The images at ``indices``, counted from the first of these rows, uint8 (n, C, H, W)."""
        return self._source.images(np.asarray(indices, dtype=np.int64) + self._part.start)
