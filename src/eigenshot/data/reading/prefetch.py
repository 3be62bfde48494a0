"""Windows of a stream, decoded in the background by other processes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from typing import Any, TypeAlias

import numpy as np

from eigenshot.data.cache import mebibytes
from eigenshot.data.reading.unreadable import nothing_readable, too_many
from eigenshot.data.reading.workers import by_row, decode, table_pool, with_pictures
from eigenshot.data.tables.encoded import Encoded
from eigenshot.errors import UserError

CHUNK = 256  # rows that a worker decodes at a time

_CHUNKS_A_WORKER = 2  # one in work and one in wait
_LONGEST_WAIT = 1.0  # seconds, for a pool to take up what it was given
_ENOUGH_TO_JUDGE = 100  # pictures seen, before their share of unreadable ones means anything

Decoding: TypeAlias = Future[tuple[np.ndarray, dict[int, str]]]


class Window:
    """Rows of a table, ascending, and their pixels as they come.

    Attributes
    ----------
    rows : int64 (n,); pixels : uint8 (n, channels, size, size)
    ended : set once the pixels are complete, or ``error`` says why they never will be
    dropped : to be set when nobody waits for it any longer
    """

    def __init__(self, rows: np.ndarray, shape: tuple[int, int, int]) -> None:
        self.rows = rows
        try:
            self.pixels = np.empty((len(rows), *shape), dtype=np.uint8)
        except MemoryError as error:
            need = mebibytes(len(rows) * int(np.prod(shape)))
            raise UserError(
                f"a window of {len(rows)} images needs {need} of memory, twice, which is more "
                "than there is; choose a smaller window"
            ) from error
        self.ended = threading.Event()
        self.dropped = threading.Event()
        self.error: BaseException | None = None


class Tally:
    """Which pictures have been seen, and which of them cannot be read.

    ``unreadable`` is (place, reason) in order of discovery, each picture once; parts of the table
    that could not be looked into come first.
    """

    def __init__(self, table: Encoded, max_unreadable: float) -> None:
        self.unreadable: list[tuple[str, str]] = list(table.unlistable)
        self._table = table
        self._max_unreadable = max_unreadable
        self._seen = np.zeros(len(table), dtype=bool)
        self._count = 0
        self._failed = 0
        self._lock = threading.Lock()

    def add(self, rows: np.ndarray, failures: dict[int, str], *, whole: bool = False) -> None:
        """Count ``rows`` (n,), each once, with the reasons of those that failed, by row.

        Raises UserError where too many cannot be read, of at least 100 or of a ``whole`` window.
        """
        with self._lock:
            new = rows[~self._seen[rows]]
            self._seen[new] = True
            self._count += len(new)
            for row in new.tolist() if failures else ():
                if row in failures:
                    self._failed += 1
                    self.unreadable.append((self._table.describe(row), failures[row]))
            share = self._failed / max(1, self._count)
            judged = whole or self._count >= _ENOUGH_TO_JUDGE
            if judged and share > self._max_unreadable:
                seen, failed = f"the first {self._count}", self.unreadable[-self._failed :]
                raise too_many(self._table.name, seen, share, failed, self._max_unreadable)

    def nothing_readable(self, count: int) -> UserError:
        """The error for ``count`` pictures of which not one can stand in for the others."""
        return nothing_readable(self._table.name, count, self.unreadable)


class Filler:
    """Fills one window at a time from a table, with a pool of processes that it starts and ends.

    Parameters
    ----------
    table : where the encoded pictures are
    shape : of an image, (channels, size, size)
    workers : number of processes
    tally : where pictures that cannot be read are counted
    """

    def __init__(
        self, table: Encoded, shape: tuple[int, int, int], workers: int, tally: Tally
    ) -> None:
        self._table = table
        self._shape = shape
        self._workers = workers
        self._tally = tally
        # Garbage collection may call `stop` in the very thread that holds the lock.
        self._lock = threading.RLock()
        self._pool: Any = None
        self._in_flight: set[Decoding] = set()
        self._current: Window | None = None
        self._breaks = 0  # since the last window that was filled without one

    def start(self, rows: np.ndarray) -> Window:
        """Begin to fill a window with ``rows`` (n,), ascending; the one before has ended."""
        window = Window(rows, self._shape)
        self._current = window
        # A daemon: an exit of the program must not wait for a window that nobody will use.
        threading.Thread(target=self._fill, args=(window,), daemon=True).start()
        return window

    def stop(self, *, wait: bool) -> None:
        """Drop the window being filled and kill the processes."""
        with self._lock:
            if self._current is not None:
                self._current.dropped.set()
            pool, self._pool, self._current = self._pool, None, None
        if pool is not None:
            # A pool killed before it has taken up all its work fails with a traceback.
            deadline = time.monotonic() + _LONGEST_WAIT
            while not all(future.running() or future.done() for future in tuple(self._in_flight)):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.001)
            pool.shutdown(wait=wait, kill_workers=True)

    def _fill(self, window: Window) -> None:
        try:
            parts = chunks_of(window.rows, self._table.groups, CHUNK)
            readable = np.ones(len(window.rows), dtype=bool)
            breaks = self._breaks
            for part, pixels, failures in self._decoded(window, parts):
                window.pixels[part] = pixels
                rows = window.rows[part]
                readable[part] = ~np.isin(rows, list(failures))
                self._tally.add(rows, failures)
            self._tally.add(window.rows[:0], {}, whole=True)
            if not readable.any():
                raise self._tally.nothing_readable(len(readable))
            unreadable, instead = stand_ins(readable, parts)
            window.pixels[unreadable] = window.pixels[instead]
            if self._breaks == breaks:
                self._breaks = 0
        except BaseException as error:  # it belongs to whoever waits for the window
            window.error = error
        finally:
            with self._lock:
                if self._current is window:  # not to be kept for longer than its user does
                    self._current = None
            window.ended.set()

    def _decoded(
        self, window: Window, parts: Sequence[slice]
    ) -> Iterator[tuple[slice, np.ndarray, dict[int, str]]]:
        """The pixels and failures of each part, in order, with few of them on their way."""
        waiting = deque(parts)
        futures: deque[Decoding] = deque()
        while waiting:
            try:
                while len(futures) < min(len(waiting), _CHUNKS_A_WORKER * self._workers):
                    futures.append(self._submit(window, waiting[len(futures)]))
                pixels, failures = futures[0].result()
            except BrokenExecutor as error:
                self._replace_pool(window, error)
                futures.clear()
            else:
                futures.popleft()
                part = waiting.popleft()
                yield part, pixels, by_row(window.rows[part], failures)

    def _submit(self, window: Window, part: slice) -> Decoding:
        channels, size, _ = self._shape
        with self._lock:  # so that no pool is started after `stop`
            if window.dropped.is_set():
                raise RuntimeError("the window was dropped")
            if self._pool is None:
                self._pool = table_pool(self._table, self._workers)
            places = self._table.places(window.rows[part])
            future: Decoding = self._pool.submit(with_pictures, decode, places, size, channels)
            self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        return future

    def _replace_pool(self, window: Window, error: BrokenExecutor) -> None:
        """Do without the broken pool; the second time something is wrong with the machine."""
        with self._lock:
            if window.dropped.is_set():  # then it was `stop` that broke it
                return
            broken, self._pool = self._pool, None
            self._breaks += 1
        broken.shutdown(wait=False, kill_workers=True)
        if self._breaks > 1:
            self._breaks = 0
            raise UserError(
                "processes that decode images were killed twice, probably because memory is short; "
                "choose a smaller window or fewer workers"
            ) from error


def chunks_of(rows: np.ndarray, groups: np.ndarray, most: int) -> list[slice]:
    """Cut ``rows`` (n,), ascending, into parts of at most ``most`` rows.

    A part ends where a group does, and may hold several; only a group of more than ``most`` rows
    is cut itself. ``groups`` (G + 1,) are boundaries in the table.
    """
    edges = np.unique(np.searchsorted(rows, groups))
    parts, start = [], 0
    while start < len(rows):
        stop = min(start + most, len(rows))
        edge = int(edges[np.searchsorted(edges, stop, side="right") - 1])
        if edge > start:
            stop = edge
        parts.append(slice(start, stop))
        start = stop
    return parts


def stand_ins(readable: np.ndarray, parts: Sequence[slice]) -> tuple[np.ndarray, np.ndarray]:
    """The places that are not readable, and for each one the place of another that is.

    That is the next readable one of its part, after the last the first; where a part has none,
    those of the nearest part that has, the later of two.

    Parameters
    ----------
    readable : bool (n,), not all False
    parts : slices that cover 0..n-1 in order

    Returns
    -------
    int64 (m,), int64 (m,)
    """
    good_of = [part.start + np.flatnonzero(readable[part]) for part in parts]
    places: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
    instead: list[np.ndarray] = [np.empty(0, dtype=np.int64)]
    with_any = np.flatnonzero([len(good) > 0 for good in good_of])
    for number, part in enumerate(parts):
        bad = part.start + np.flatnonzero(~readable[part])
        if len(bad):
            nearest = with_any[np.argmin(2 * abs(with_any - number) - (with_any > number))]
            good = good_of[nearest]
            first = np.searchsorted(good, bad) if nearest == number else np.arange(len(bad))
            places.append(bad)
            instead.append(good[first % len(good)])
    return np.concatenate(places), np.concatenate(instead)
