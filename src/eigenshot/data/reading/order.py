"""In which order a training epoch visits the images: a function of seed and epoch alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenshot.errors import UserError
from eigenshot.randomness import numpy_generator

if TYPE_CHECKING:
    from eigenshot.data.source import Source

# Tables are often sorted by class: a window from one long stretch might hold a single one.
_PLACES_A_WINDOW = 8

_KEPT_EPOCHS = 2  # the one that is visited, and the next, whose first window is read ahead


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
    # The stretches of the last epochs asked for, in their turn: putting them in order anew for
    # every window would cost as much as the epoch is long.
    _turns: dict[int, tuple[np.ndarray, np.ndarray]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

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
        starts, bounds = self._turn(epoch)
        first = number * self.rows_a_window
        last = min(first + self.rows_a_window, self.length)
        begin, end = np.searchsorted(bounds[1:], [first, last - 1], side="right")
        starts, bounds = starts[begin : end + 1], bounds[begin : end + 2]
        # Every stretch is counted on from its first row; the outer two may lie partly outside.
        visited = np.arange(bounds[0], bounds[-1])
        rows = visited + np.repeat(starts - bounds[:-1], np.diff(bounds))
        return np.sort(rows[first - bounds[0] : last - bounds[0]])

    def _turn(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """First rows of the stretches in the order of an epoch (n,), and their bounds (n + 1,)."""
        if epoch not in self._turns:
            starts, sizes = self._stretches()
            turn = numpy_generator(self.seed, "groups", epoch).permutation(len(sizes))
            while len(self._turns) >= _KEPT_EPOCHS:
                del self._turns[next(iter(self._turns))]
            bounds = np.concatenate([[0], np.cumsum(sizes[turn])])
            self._turns[epoch] = starts[turn], bounds
        return self._turns[epoch]

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


def window_in_use(source: Source, batch_size: int) -> int:
    """Images that are shuffled together: whole batches of a stream's window, else all."""
    window = getattr(source, "window", len(source))
    if window >= len(source):
        return len(source)
    return max(1, window // batch_size) * batch_size


def epoch_batches(
    source: Source,
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    first: int = 0,
    epochs: int | None = None,
    share: tuple[int, int] = (0, 1),
) -> Iterator[np.ndarray]:
    """The rows of each batch of an epoch, int64 (batch_size,), from batch ``first`` on.

    There are ``len(source) // batch_size``: an incomplete last batch is left out. A source that is
    streamed holds its windows in turn and begins each one, the next epoch's first included, while
    the one before it is in use; after the last of ``epochs`` there is no next. No batch straddles
    two windows.

    Of several processes, each takes its block of every batch, int64 (batch_size / ranks,), where
    ``share`` is (rank, ranks). Only the rows of these blocks are held.
    """
    if batch_size < 1:
        raise UserError(f"expected a batch of at least 1 image, found {batch_size}")
    if batch_size % share[1]:
        raise UserError(
            f"a batch of {batch_size} images has no equal blocks for {share[1]} processes"
        )
    block = batch_size // share[1]
    stream: Any = source if hasattr(source, "hold") else None
    batches = len(source) // batch_size
    if first >= batches:
        return
    order = Order(len(source), seed)
    if stream is not None and stream.window < len(source):
        order = Order(len(source), seed, window_in_use(source, batch_size), stream.groups)
    batches_a_window = max(1, order.rows_a_window // batch_size)
    rows: np.ndarray | None = None
    for start in range(first - first % batches_a_window, batches, batches_a_window):
        stop = min(start + batches_a_window, batches)
        if rows is None:
            rows = _own_rows(order.rows(epoch, start // batches_a_window), batch_size, share)
        following = None
        if stream is not None:
            if stop < batches:
                following = order.rows(epoch, stop // batches_a_window)
            elif epochs is None or epoch + 1 < epochs:
                following = order.rows(epoch + 1, 0)
            if following is not None:
                following = _own_rows(following, batch_size, share)
            stream.hold(rows, then=following)
        for batch in range(max(first, start), stop):
            place = (batch - start) * block
            yield rows[place : place + block]
        rows = following


def _own_rows(rows: np.ndarray, batch_size: int, share: tuple[int, int]) -> np.ndarray:
    """Of a window's rows (n,), one process's block of every whole batch; a single one has all."""
    number, ranks = share
    if ranks == 1:
        return rows
    whole = rows[: len(rows) // batch_size * batch_size]
    return whole.reshape(-1, ranks, batch_size // ranks)[:, number].reshape(-1)
