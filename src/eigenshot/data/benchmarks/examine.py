"""One pass over all pictures of a table: sizes, channel sums and a digest of each.

Nothing here imports torch: worker processes load this.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from eigenshot.data.reading.picture import FORMATS, UnreadableImage, read_image
from eigenshot.data.reading.workers import (
    MISSING,
    Progress,
    as_file,
    by_row,
    quiet_pillow,
    run_tasks,
)
from eigenshot.data.tables.encoded import Encoded, Pictures

_CHUNK = 1024  # pictures a task: much more work than handing it over
_SERIAL = 2048  # fewer are looked at sooner than processes have started
_COUNTED = 2**20  # pixels counted at a time: counting widens each to eight bytes
_VALUES = np.arange(256)


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
        return rows[self.is_readable(rows)]

    def is_readable(self, rows: np.ndarray) -> np.ndarray:
        """Which of ``rows`` (n,) could be decoded, bool (n,)."""
        decoded: np.ndarray = self.pixels[rows] > 0
        return decoded


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
            getattr(facts, name)[rows.start : rows.stop] = getattr(found, name)
        facts.failures.update(by_row(rows, found.failures))
        done += len(rows)
        if progress is not None:
            progress(done, len(table))
    return facts


def examine_places(pictures: Pictures, places: Any, rows: range) -> tuple[range, Facts]:
    """Decode some pictures at their own size, in this thread; ``rows`` and the facts of each.

    Of a picture that is not square the centred square is taken: a network is shown no more. The
    failures are by position among ``rows``.
    """
    facts = _unknown(len(rows))
    for position, content in enumerate(pictures.read(places)):
        if content is None:
            facts.failures[position] = MISSING
            continue
        width, height = _extent(content)
        try:
            square = read_image(as_file(content), size=min(width, height), channels=3)
        except UnreadableImage as error:
            facts.failures[position] = error.reason
            continue
        digest = hashlib.blake2b(f"{width} {height}".encode(), digest_size=8)
        digest.update(square.data)
        facts.digests[position] = int.from_bytes(digest.digest(), "little")
        facts.extents[position] = width, height
        facts.pixels[position] = square[0].size
        counts = np.stack([_histogram(channel.reshape(-1)) for channel in square])
        facts.sums[position] = counts @ _VALUES
        facts.squares[position] = counts @ _VALUES**2
    return rows, facts


def _histogram(values: np.ndarray) -> np.ndarray:
    """How often each value occurs among uint8 (n,), int64 (256,)."""
    counts = np.zeros(256, np.int64)
    for start in range(0, len(values), _COUNTED):
        counts += np.bincount(values[start : start + _COUNTED], minlength=256)
    return counts


def _extent(content: bytes | Path) -> tuple[int, int]:
    """Width and height from the header; one pixel where that fails, as decoding will then."""
    try:
        with Image.open(as_file(content), formats=FORMATS) as image:
            return max(image.size[0], 1), max(image.size[1], 1)
    except Exception:
        return 1, 1


def _examined(table: Encoded) -> Iterator[tuple[range, Facts]]:
    """Rows and their facts, in any order."""
    tasks = ((table.places(rows), rows) for rows in _chunks(table))
    if len(table) >= _SERIAL:
        yield from run_tasks(table, examine_places, tasks)
        return
    for places, rows in tasks:
        with quiet_pillow():
            found = examine_places(table.pictures(), places, rows)
        yield found


def _chunks(table: Encoded) -> Iterator[range]:
    """All rows, in pieces that begin and end with a group where groups are not too large."""
    wanted = np.arange(0, len(table), _CHUNK)
    starts = table.groups[np.searchsorted(table.groups, wanted)]
    bounds = np.unique(np.append(starts, len(table)))
    for start, stop in itertools.pairwise(bounds.tolist()):
        for first in range(start, stop, 4 * _CHUNK):
            yield range(first, min(first + 4 * _CHUNK, stop))
