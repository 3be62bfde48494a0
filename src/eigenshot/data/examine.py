"""One pass over all pictures of a table: sizes, channel sums and a digest of each.

Nothing here imports torch: worker processes load this.
"""

from __future__ import annotations

import hashlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from eigenshot.data.decode import FORMATS, UnreadableImage, read_image
from eigenshot.data.decoding import MISSING, as_file, process_pool
from eigenshot.data.encoded import Encoded
from eigenshot.errors import UserError

Progress = Callable[[int, int], None]

_CHUNK = 1024  # pictures a task: much more work than handing it over
_SERIAL = 2048  # fewer are looked at sooner than processes have started


@dataclass
class Facts:
    """What decoding found out, a row each; zeros where a picture cannot be read.

    Attributes
    ----------
    digests : uint64 (N,), of the pixels and the shape
    extents : int64 (N, 2), width and height
    pixels : int64 (N,), how many the sums are over
    sums, squares : int64 (N, 3), of each channel's values in 0..255 and of their squares
    failures : why a row cannot be read
    """

    digests: np.ndarray
    extents: np.ndarray
    pixels: np.ndarray
    sums: np.ndarray
    squares: np.ndarray
    failures: dict[int, str]

    def readable(self, rows: np.ndarray) -> np.ndarray:
        """Those of ``rows`` that could be decoded."""
        return rows[self.pixels[rows] > 0]


def _unknown(count: int) -> Facts:
    return Facts(
        digests=np.zeros(count, np.uint64),
        extents=np.zeros((count, 2), np.int64),
        pixels=np.zeros(count, np.int64),
        sums=np.zeros((count, 3), np.int64),
        squares=np.zeros((count, 3), np.int64),
        failures={},
    )


def examine(table: Encoded, progress: Progress | None = None) -> Facts:
    """The facts of every row, found on all cores."""
    facts = _unknown(len(table))
    done = 0
    for rows, found in _examined(table):
        for name in ("digests", "extents", "pixels", "sums", "squares"):
            getattr(facts, name)[rows] = getattr(found, name)
        facts.failures.update(found.failures)
        done += len(rows)
        if progress is not None:
            progress(done, len(table))
    return facts


def examine_rows(table: Encoded, rows: np.ndarray) -> Facts:
    """Decode some rows at their own size, in this thread; facts in the order of ``rows``.

    Of a picture that is not square the centred square is taken: a network is shown no more.
    """
    facts = _unknown(len(rows))
    with warnings.catch_warnings():
        # Pillow warns of odd metadata and large photographs, which are read all the same.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        for place, (row, content) in enumerate(zip(rows, table.read(rows), strict=True)):
            if content is None:
                facts.failures[int(row)] = MISSING
                continue
            width, height = _extent(content)
            try:
                square = read_image(as_file(content), size=min(width, height), channels=3)
            except UnreadableImage as error:
                facts.failures[int(row)] = error.reason
                continue
            digest = hashlib.blake2b(f"{width} {height}".encode(), digest_size=8)
            digest.update(square.tobytes())
            facts.digests[place] = int.from_bytes(digest.digest(), "little")
            facts.extents[place] = width, height
            facts.pixels[place] = square[0].size
            facts.sums[place] = square.sum(axis=(1, 2), dtype=np.int64)
            facts.squares[place] = np.square(square, dtype=np.int64).sum(axis=(1, 2))
    return facts


def _extent(content: bytes | Path) -> tuple[int, int]:
    """Width and height from the header; one pixel where that fails, as decoding will then."""
    try:
        with Image.open(as_file(content), formats=FORMATS) as image:
            return max(image.size[0], 1), max(image.size[1], 1)
    except Exception:
        return 1, 1


def _examined(table: Encoded) -> Iterator[tuple[np.ndarray, Facts]]:
    """Rows and their facts, in any order."""
    if len(table) < _SERIAL:
        for rows in _chunks(table):
            yield rows, examine_rows(table, rows)
        return
    pool = process_pool(initializer=_keep, initargs=(table,))
    finished = False
    try:
        tasks: dict[Future[Facts], np.ndarray] = {
            pool.submit(_examine_kept, rows): rows for rows in _chunks(table)
        }
        for task in as_completed(tasks):
            yield tasks[task], task.result()
        finished = True
    except BrokenExecutor as error:
        raise UserError(
            f"a process that decoded {table.name} was ended from outside, most likely for want of "
            "memory; end other programs or give it more memory, and run again"
        ) from error
    finally:
        pool.shutdown(wait=True, kill_workers=not finished)  # type: ignore[call-arg]


# The table of a worker process: it travels once, not with every task.
_kept: list[Encoded] = []


def _keep(table: Encoded) -> None:
    _kept[:] = [table]


def _examine_kept(rows: np.ndarray) -> Facts:
    return examine_rows(_kept[0], rows)


def _chunks(table: Encoded) -> Iterator[np.ndarray]:
    """All rows, in pieces that begin and end with a group where groups are not too large."""
    wanted = np.arange(0, len(table), _CHUNK)
    starts = table.groups[np.searchsorted(table.groups, wanted)]
    bounds = np.unique(np.append(starts, len(table)))
    for start, stop in itertools.pairwise(bounds.tolist()):
        for first in range(start, stop, 4 * _CHUNK):
            yield np.arange(first, min(first + 4 * _CHUNK, stop))
