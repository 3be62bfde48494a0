"""Images that fit nowhere: decoded again every epoch, a window at a time, one window ahead."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from types import TracebackType

import numpy as np
import torch

from eigenshot.data.reading.picture import check_options
from eigenshot.data.reading.prefetch import CHUNK, Filler, Tally, Window, chunks_of
from eigenshot.data.reading.unreadable import check_max_unreadable
from eigenshot.data.reading.workers import by_row, decode, decode_rows, quiet_pillow
from eigenshot.data.source import Indices
from eigenshot.data.tables.encoded import Encoded, digest_of
from eigenshot.errors import UserError
from eigenshot.machine import cores

_STRETCH = 32  # neighbouring rows in a spread


class StreamedSource:
    """A source of which only a window is decoded at a time, by other processes.

    `hold` says which rows are used now and which next; the next are decoded while the current are
    used. Memory is 2 x window x bytes of an image (channels x size x size), whatever the length of
    the table, and besides at most 2 chunks of 256 images for each worker.

    The order of a stream is fixed, so a picture that cannot be read is not left out: a neighbour
    stands in for it. `epoch_batches` in `eigenshot.data.reading.order` is the way to go through it.

    Parameters
    ----------
    table : where the encoded pictures are
    size, channels : of the decoded images, (channels, size, size)
    window : images to be shuffled together, and decoded ahead
    workers : processes that decode; one a core by default
    max_unreadable : the share of the pictures seen that may be unreadable, 0 to 1

    Attributes
    ----------
    unreadable : (place, reason) of pictures that cannot be read, in order of discovery, each once
    note : what the reader of a log should know of the table, or None
    """

    reader = "streamed"

    def __init__(
        self,
        table: Encoded,
        *,
        size: int,
        channels: int,
        window: int,
        workers: int | None = None,
        max_unreadable: float = 0.1,
    ) -> None:
        check_options(size, channels)
        _check_count("a window", window, "image")
        if workers is not None:
            _check_count("a number of workers", workers, "process")
        check_max_unreadable(max_unreadable)
        if len(table) == 0:
            raise UserError(f"{table.name} has no images")
        self.table = table
        self.name = table.name
        self.shape = (channels, size, size)
        self.labels = table.labels
        self.class_names = table.class_names
        self.groups = table.groups
        self.note = table.note
        self.window = int(window)
        self._tally = Tally(table, max_unreadable)
        self.unreadable = self._tally.unreadable
        self._held: Window | None = None
        self._coming: Window | None = None
        self._filler = Filler(
            table, self.shape, workers or min(cores(), 2 * -(-self.window // CHUNK)), self._tally
        )
        weakref.finalize(self, self._filler.stop, wait=False)

    def __len__(self) -> int:
        return len(self.table)

    def __repr__(self) -> str:
        kind = f"{len(self.class_names)} classes" if self.labels is not None else "unlabelled"
        return f"<{self.name}: {len(self)} images {self.shape} streamed, {kind}>"

    def __enter__(self) -> StreamedSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes and release the windows; the next `hold` starts them afresh."""
        self._held = self._coming = None
        self._filler.stop(wait=True)

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of what the table knows of its content, and of the size of the images."""
        channels, size, _ = self.shape
        return digest_of(self.table.fingerprint, size, channels)

    @property
    def held_bytes(self) -> int:
        """Of decoded images: the window in use and the one that comes."""
        windows = (self._held, self._coming)
        return sum(window.pixels.nbytes for window in windows if window is not None)

    def images(self, indices: Indices) -> torch.Tensor:
        """The images at ``indices``, uint8 (n, channels, size, size).

        Those of the window at hand are copied, others are decoded at once. For one of the others
        that cannot be read stands the next one of the table that can.
        """
        rows = self._as_rows(indices)
        held = self._held
        if held is None:
            return torch.from_numpy(self._decoded(rows))
        places = np.searchsorted(held.rows, rows)
        places[places == len(held.rows)] = 0
        missing = held.rows[places] != rows
        images = torch.from_numpy(held.pixels)[torch.from_numpy(places)]
        if missing.any():
            images[torch.from_numpy(missing)] = torch.from_numpy(self._decoded(rows[missing]))
        return images

    def hold(self, rows: np.ndarray, then: np.ndarray | None = None) -> None:
        """Have the images at ``rows`` at hand, and begin with those of ``then``.

        Waits for what is still to be decoded of ``rows``; nothing where these are held already.

        Parameters
        ----------
        rows : int64 (n,), the current window in any order
        then : int64 (m,), the next window, decoded in the background
        """
        current = np.unique(self._as_rows(rows))
        if len(current) == 0:
            raise UserError("expected at least 1 image to hold, found none")
        if not _is_of(self._held, current):
            self._begin(current)
            self._held, self._coming = self._arrived(), None
        if then is not None and len(then) > 0:
            following = np.unique(self._as_rows(then))
            if not _is_of(self._held, following):
                self._begin(following)

    def spread(self, count: int) -> np.ndarray:
        """About ``count`` rows from all over the table, ascending, int64 (n,).

        They lie in stretches that keep to one group where it is long enough, so that few groups
        are read: for statistics of sources too large to go through.
        """
        _check_count("a spread", count, "image")
        if count >= len(self):
            return np.arange(len(self))
        length = min(_STRETCH, count)
        stretches = -(-count // length)
        starts = np.arange(stretches) * (len(self) - length) // max(1, stretches - 1)
        group = np.searchsorted(self.groups, starts, side="right")
        within = self.groups[group] - length
        starts = np.where(within >= self.groups[group - 1], np.minimum(starts, within), starts)
        return np.unique(starts[:, None] + np.arange(length))

    def _begin(self, rows: np.ndarray) -> None:
        """Decode ``rows``, ascending, in the background, in place of anything else."""
        if _is_of(self._coming, rows):
            return
        if self._coming is not None:
            self._coming.dropped.set()
            self._wait(self._coming)
            self._coming = None
        self._coming = self._filler.start(rows)

    def _arrived(self) -> Window:
        """The window that comes, once it is complete."""
        window = self._coming
        assert window is not None
        self._wait(window)
        if window.error is not None:
            self._coming, error = None, window.error
            window.error = None  # its traceback would keep the window alive
            raise error
        return window

    def _wait(self, window: Window) -> None:
        try:
            while not window.ended.wait(timeout=1.0):  # without it, Windows hears no interrupt
                pass
        except BaseException:
            self.close()
            raise

    def _as_rows(self, indices: Indices) -> np.ndarray:
        """Indices as a list takes them, or a bool mask (N,), to rows 0..N-1, int64 (n,)."""
        array = indices.cpu().numpy() if isinstance(indices, torch.Tensor) else np.asarray(indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
            raise UserError(f"expected integer indices (n,), found {array.dtype} {array.shape}")
        if array.dtype.kind == "b" and array.size:
            if len(array) != len(self):
                raise UserError(f"expected a mask of {len(self)} images, found one of {len(array)}")
            return np.flatnonzero(array)
        rows = array.astype(np.int64)
        if ((rows < -len(self)) | (rows >= len(self))).any():
            wrong = rows[(rows < -len(self)) | (rows >= len(self))][0]
            raise IndexError(f"{self.name} has {len(self)} images, found index {wrong}")
        return np.where(rows < 0, rows + len(self), rows)

    def _decoded(self, rows: np.ndarray) -> np.ndarray:
        """Decode ``rows`` (n,), in any order, in threads; uint8 (n, channels, size, size)."""
        channels, size, _ = self.shape
        wanted, inverse = np.unique(rows, return_inverse=True)
        pixels = np.empty((len(wanted), *self.shape), dtype=np.uint8)
        parts = chunks_of(wanted, self.groups, min(CHUNK, max(1, -(-len(wanted) // cores()))))
        failures: dict[int, str] = {}

        pictures = self.table.pictures()

        def decode_part(part: slice) -> dict[int, str]:
            places = self.table.places(wanted[part])
            pixels[part], failed = decode(pictures, places, size, channels)
            return by_row(wanted[part], failed)

        with quiet_pillow(), ThreadPoolExecutor(cores()) as pool:
            for failed in pool.map(decode_part, parts):
                failures.update(failed)
        self._tally.add(wanted, failures)
        for row in failures:
            pixels[np.searchsorted(wanted, row)] = self._next_readable(row)
        return pixels[inverse]

    def _next_readable(self, row: int) -> np.ndarray:
        """The image of the next row that has one, after the last the first; (channels, size, size).

        It depends on the row alone, not on what else is asked for at the same time.
        """
        channels, size, _ = self.shape
        for step in range(1, len(self)):
            other = np.array([(row + step) % len(self)])
            pixels, failures = decode_rows(self.table, other, size=size, channels=channels)
            self._tally.add(other, failures)
            if not failures:
                return pixels[0]
        raise self._tally.nothing_readable(len(self))


def _is_of(window: Window | None, rows: np.ndarray) -> bool:
    return window is not None and np.array_equal(window.rows, rows)


def _check_count(what: str, count: int, unit: str) -> None:
    if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or count < 1:
        raise UserError(f"expected {what} of at least 1 {unit}, found {count!r}")
