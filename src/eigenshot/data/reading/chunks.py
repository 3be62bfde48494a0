"""Decoding a table in chunks on all cores, into memory or a file; what could not be read.

Nothing here imports torch: worker processes load this module.
"""

from __future__ import annotations

import contextlib
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eigenshot.data.reading.picture import check_options
from eigenshot.data.reading.unreadable import check_max_unreadable, check_unreadable
from eigenshot.data.reading.workers import Progress, by_row, decode, decode_rows, run_tasks
from eigenshot.data.tables.encoded import Encoded, Pictures, Unreadable
from eigenshot.errors import UserError
from eigenshot.machine import cores

# A chunk is what an interrupt can cost, and what is sent to a worker at a time.
CHUNK_BYTES, _CHUNK_ROWS = 4 * 2**20, 512

# Few but large photographs still spread over many cores.
_FEWEST_CHUNKS, _SMALLEST_CHUNK = 64, 16

# Workers take about half a second to start; below this many seconds of work they do not pay.
_WORTH_PROCESSES = 2.0
_PROBED_ROWS = 8

IN_FILE = np.empty(0, dtype=np.uint8)


class WriteFailed(OSError):
    """The cache, not the table, could not be written."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Tell failures of the cache from failures of what is read."""
    try:
        yield
    except OSError as error:
        raise WriteFailed(error.errno, error.strerror) from error


@dataclass(frozen=True)
class Decoded:
    """A chunk that is done: its rows, the crc32 of their pixels, and why some failed.

    ``pixels`` (n, channels, size, size), black where a row failed, are empty if in a file.
    """

    rows: range
    crc: int
    failures: dict[int, str]
    pixels: np.ndarray


def plan_chunks(groups: np.ndarray, image_bytes: int) -> list[range]:
    """Consecutive rows a chunk: whole groups where they are small, even parts of large ones.

    ``groups`` (G + 1,) bounds them as in `Encoded`. The plan depends on nothing else, so that
    another run of the same work finds its chunks again.
    """
    total = int(groups[-1]) if len(groups) else 0
    limit = min(_CHUNK_ROWS, max(_SMALLEST_CHUNK, -(-total // _FEWEST_CHUNKS)))
    limit = max(1, min(limit, CHUNK_BYTES // image_bytes))
    chunks: list[range] = []
    for start, stop in zip(groups[:-1].tolist(), groups[1:].tolist(), strict=True):
        if chunks and stop - chunks[-1].start <= limit:
            chunks[-1] = range(chunks[-1].start, stop)
            continue
        parts = -(-(stop - start) // limit)
        bounds = [start + (stop - start) * part // parts for part in range(parts + 1)]
        chunks.extend(map(range, bounds[:-1], bounds[1:]))
    return chunks


def decode_chunks(
    table: Encoded,
    chunks: Sequence[range],
    *,
    size: int,
    channels: int,
    file: Path | None = None,
    workers: int | None = None,
) -> Generator[Decoded, None, None]:
    """Decode ``chunks`` on all cores and yield each as it is done, in any order.

    The pixels are written to their place in ``file``, or come with the chunk where there is none.
    Without ``workers``, processes are started only for work that is worth it.
    """
    if workers is None and len(chunks) > 1:
        workers = cores() if _seconds(table, chunks, size, channels) > _WORTH_PROCESSES else 1
    workers = min(workers or 1, len(chunks))
    if workers <= 1:
        for rows in chunks:
            pixels, failures = decode_rows(table, rows, size=size, channels=channels)
            yield _stored(rows, pixels, failures, file)
        return
    tasks = ((table.places(rows), rows, size, channels, file) for rows in chunks)
    yield from run_tasks(table, _decode_chunk, tasks, workers)


def decode_table(
    table: Encoded,
    *,
    size: int,
    channels: int,
    max_unreadable: float = 0.1,
    progress: Progress | None = None,
    workers: int | None = None,
) -> tuple[np.ndarray, np.ndarray, Unreadable]:
    """The readable pictures of ``table`` in memory, without the cache.

    Returns uint8 (N, channels, size, size), the rows they come from, int64 (N,), and what was
    skipped as (place, reason). Parameters are those of
    `eigenshot.data.reading.pixelcache.cached_pixels`.
    """
    check_request(table, size, channels, max_unreadable)
    pixels = np.empty((len(table), channels, size, size), dtype=np.uint8)
    chunks = plan_chunks(table.groups, pixels[0].nbytes)
    failures: dict[int, str] = {}
    done = 0
    decoded = decode_chunks(table, chunks, size=size, channels=channels, workers=workers)
    with contextlib.closing(decoded):
        for chunk in decoded:
            pixels[chunk.rows.start : chunk.rows.stop] = chunk.pixels
            failures |= chunk.failures
            done += len(chunk.rows)
            if progress is not None:
                progress(done, len(table))
    unreadable = describe_failures(table, failures)
    check_unreadable(table, unreadable, max_unreadable)
    kept = other_rows(len(table), failures)
    if failures:
        for target, row in enumerate(kept):  # in place: a second array might not fit
            pixels[target] = pixels[row]
    return pixels[: len(kept)], kept, unreadable


def check_request(table: Encoded, size: int, channels: int, max_unreadable: float) -> None:
    """Refuse options that make no sense, and a table without pictures, before the work."""
    check_options(size, channels)
    check_max_unreadable(max_unreadable)
    if len(table) == 0:
        raise UserError(f"{table.name} has no images")


def other_rows(total: int, failures: dict[int, str]) -> np.ndarray:
    """int64, the rows of 0..total-1 that did not fail, ascending."""
    keep = np.ones(total, dtype=bool)
    keep[list(failures)] = False
    return np.flatnonzero(keep)


def describe_failures(table: Encoded, failures: dict[int, str]) -> Unreadable:
    """The place and reason of each row that failed, in order of rows."""
    return tuple((table.describe(row), failures[row]) for row in sorted(failures))


def _seconds(table: Encoded, chunks: Sequence[range], size: int, channels: int) -> float:
    """About how long one core would take, from the first few rows."""
    rows = chunks[0][:_PROBED_ROWS]
    start = time.perf_counter()
    decode_rows(table, rows, size=size, channels=channels)
    return (time.perf_counter() - start) / len(rows) * sum(map(len, chunks))


def _decode_chunk(
    pictures: Pictures, places: Any, rows: range, size: int, channels: int, file: Path | None
) -> Decoded:
    pixels, failures = decode(pictures, places, size, channels)
    return _stored(rows, pixels, by_row(rows, failures), file)


def _stored(rows: range, pixels: np.ndarray, failed: dict[int, str], file: Path | None) -> Decoded:
    # A reason may quote a file name that is not valid Unicode; it must go into JSON.
    failures = {
        row: reason.encode("utf-8", "backslashreplace").decode() for row, reason in failed.items()
    }
    crc = zlib.crc32(pixels.data)
    if file is None:
        return Decoded(rows, crc, failures, pixels)
    # Not through a memory map: a failing disk is an error here, and a dead process there.
    with writing(), file.open("r+b") as handle:
        handle.seek(rows.start * pixels[0].nbytes)
        handle.write(pixels.data)
    return Decoded(rows, crc, failures, IN_FILE)
