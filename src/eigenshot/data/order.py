"""In which order a training epoch visits the images: a function of seed and epoch alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eigenshot.errors import UserError
from eigenshot.randomness import numpy_generator


@dataclass(frozen=True)
class Order:
    """A shuffle within windows.

    The groups (stretches of rows that are read together) are put in random order and their rows
    cut into windows of ``window`` rows; each window is shuffled wholly. A window that covers
    everything is a plain permutation, whatever the groups are.

    Parameters
    ----------
    length : number of rows, N
    seed : of the run
    window : rows in a window; None for all of them
    groups : int64 (G + 1,) boundaries of groups; needed with a window that does not cover all
    """

    length: int
    seed: int
    window: int | None = None
    groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise UserError(f"expected a window of at least 1 image, found {self.window}")

    @property
    def rows_a_window(self) -> int:
        """All rows where no window is set or it covers them."""
        return self.length if self.window is None else min(self.window, self.length)

    @property
    def windows(self) -> int:
        """How many windows an epoch has; the last may be shorter."""
        return -(-self.length // self.rows_a_window)

    def rows(self, epoch: int, number: int) -> np.ndarray:
        """The rows of window ``number`` of an epoch in the order of their visit, int64 (n,)."""
        place = ("order", epoch) if number == 0 else ("order", epoch, number)
        members = self._members(epoch, number)
        return members[numpy_generator(self.seed, *place).permutation(len(members))]

    def _members(self, epoch: int, number: int) -> np.ndarray:
        """Which rows a window has, ascending."""
        if self.windows == 1:
            return np.arange(self.length)
        if self.groups is None:
            raise ValueError("a window that does not cover all rows needs groups")
        sizes = np.diff(self.groups)
        turn = numpy_generator(self.seed, "groups", epoch).permutation(len(sizes))
        ends = np.cumsum(sizes[turn])
        first = number * self.rows_a_window
        last = min(first + self.rows_a_window, self.length)
        pieces = []
        for place in range(np.searchsorted(ends, first, side="right"), len(ends)):
            group = turn[place]
            begin = ends[place] - sizes[group]
            if begin >= last:
                break
            offset = self.groups[group] - begin
            pieces.append(np.arange(max(first, begin) + offset, min(last, ends[place]) + offset))
        return np.sort(np.concatenate(pieces))
