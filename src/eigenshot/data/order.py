"""In which order a training epoch visits the images: a function of seed and epoch alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenshot.errors import UserError
from eigenshot.randomness import numpy_generator

if TYPE_CHECKING:
    from eigenshot.data.source import Source

# Tables are often sorted by class: a window from one long stretch might hold a single one.
_PLACES_A_WINDOW = 8


@dataclass(frozen=True)
class Order:
    """A shuffle within windows.

    The groups (stretches of rows that are read together) are put in random order and their rows
    cut into windows of ``window`` rows; each window is shuffled wholly. Groups longer than an
    eighth of the window are cut, so that every window mixes several places. A window that covers
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
        if self.length < 1:
            raise UserError(f"expected at least 1 image to put in order, found {self.length}")
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
        starts, sizes = self._stretches()
        turn = numpy_generator(self.seed, "groups", epoch).permutation(len(sizes))
        starts, sizes = starts[turn], sizes[turn]
        ends = np.cumsum(sizes)
        first = number * self.rows_a_window
        last = min(first + self.rows_a_window, self.length)
        begin, end = np.searchsorted(ends, [first, last - 1], side="right")
        inside = slice(begin, end + 1)
        starts, sizes, begins = starts[inside], sizes[inside], ends[inside] - sizes[inside]
        # Every stretch is counted on from its first row; the outer two may lie partly outside.
        visited = np.arange(begins[0], begins[-1] + sizes[-1])
        rows = visited + np.repeat(starts - begins, sizes)
        return np.sort(rows[first - begins[0] : last - begins[0]])

    def _stretches(self) -> tuple[np.ndarray, np.ndarray]:
        """First rows and lengths of the groups, long ones cut evenly; int64 (n,) each."""
        groups = self.groups
        if groups is None or groups[0] != 0 or groups[-1] != self.length:
            raise ValueError("a window that does not cover all rows needs groups that do")
        longest = max(1, self.rows_a_window // _PLACES_A_WINDOW)
        sizes = np.diff(groups)
        pieces = -(-sizes // longest)
        total = np.repeat(pieces, pieces)
        number = np.arange(len(total)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts = np.repeat(groups[:-1], pieces) + number * np.repeat(sizes, pieces) // total
        return starts, np.diff(starts, append=self.length)


def epoch_batches(
    source: Source, *, seed: int, epoch: int, batch_size: int, first: int = 0
) -> Iterator[np.ndarray]:
    """The rows of each batch of an epoch, int64 (batch_size,), from batch ``first`` on.

    There are ``len(source) // batch_size``: an incomplete last batch is left out. A source that is
    streamed holds its windows in turn and begins each one, the next epoch's first included, while
    the one before it is in use. No batch straddles two windows.
    """
    if batch_size < 1:
        raise UserError(f"expected a batch of at least 1 image, found {batch_size}")
    stream: Any = source if hasattr(source, "hold") else None
    batches = len(source) // batch_size
    if first >= batches:
        return
    order = Order(len(source), seed)
    if stream is not None and stream.window < len(source):
        whole_batches = max(1, stream.window // batch_size) * batch_size
        order = Order(len(source), seed, whole_batches, stream.groups)
    batches_a_window = max(1, order.rows_a_window // batch_size)
    for start in range(first - first % batches_a_window, batches, batches_a_window):
        stop = min(start + batches_a_window, batches)
        rows = order.rows(epoch, start // batches_a_window)
        if stream is not None:
            following = (epoch, stop // batches_a_window) if stop < batches else (epoch + 1, 0)
            stream.hold(rows, then=order.rows(*following))
        for batch in range(max(first, start), stop):
            place = (batch - start) * batch_size
            yield rows[place : place + batch_size]
