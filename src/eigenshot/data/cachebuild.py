"""Decoding a table in chunks on all cores, into a file that survives being interrupted.

Nothing here imports torch: worker processes load this module.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from eigenshot.data.decoding import cores, decode_of_table, decode_rows, table_pool
from eigenshot.data.encoded import Encoded, digest_of
from eigenshot.errors import UserError
from eigenshot.files import remove_leftovers, write_text

Progress = Callable[[int, int], None]

# A chunk is what an interrupt can cost, and what is sent to a worker at a time.
_CHUNK_BYTES, _CHUNK_ROWS = 4 * 2**20, 512

# Few but large photographs still spread over many cores.
_FEWEST_CHUNKS, _SMALLEST_CHUNK = 64, 16

# Workers take about half a second to start; below this many seconds of work they do not pay.
_WORTH_PROCESSES = 2.0
_PROBED_ROWS = 8

_IN_FILE = np.empty(0, dtype=np.uint8)


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
    limit = max(1, min(limit, _CHUNK_BYTES // image_bytes))
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
    pool: Any = table_pool(table, workers)
    finished = False
    try:
        tasks = ((_decode_in_worker, rows, size, channels, file) for rows in chunks)
        running = {pool.submit(*task) for task in islice(tasks, 3 * workers)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {pool.submit(*task) for task in islice(tasks, len(done))}
            while done:  # popped, so that pixels are not held any longer than needed
                yield done.pop().result()
        finished = True
    except BrokenExecutor as error:
        raise UserError(
            f"a process that decoded {table.name} was ended from outside, most likely for want of "
            "memory; end other programs or give it more memory, and run again"
        ) from error
    finally:
        pool.shutdown(wait=True, kill_workers=not finished)


def _seconds(table: Encoded, chunks: Sequence[range], size: int, channels: int) -> float:
    """About how long one core would take, from the first few rows."""
    rows = chunks[0][:_PROBED_ROWS]
    start = time.perf_counter()
    decode_rows(table, rows, size=size, channels=channels)
    return (time.perf_counter() - start) / len(rows) * sum(map(len, chunks))


def _decode_in_worker(rows: range, size: int, channels: int, file: Path | None) -> Decoded:
    pixels, failures = decode_of_table(np.arange(rows.start, rows.stop), size, channels)
    return _stored(rows, pixels, failures, file)


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
    return Decoded(rows, crc, failures, _IN_FILE)


class Partial:
    """A file of pixels that is being filled, and the journal of its finished chunks beside it.

    Whatever a killed process leaves is taken up again as far as it proves to be whole.

    Parameters
    ----------
    stem : what the names of the two files have in common; it stands for all that decides the
        content
    """

    def __init__(self, stem: Path, table: Encoded, *, size: int, channels: int) -> None:
        self._file, self._journal = stem.with_suffix(".partial"), stem.with_suffix(".journal")
        self.squeezed = stem.with_suffix(".squeezed")
        self._table, self._size, self._channels = table, size, channels
        self._image_bytes = channels * size**2
        chunks = plan_chunks(table.groups, self._image_bytes)
        self._chunks = {rows.start: rows for rows in chunks}
        self._settings = [stem.name, len(table), size, channels, digest_of(list(self._chunks))]
        self._done: dict[int, Decoded] = {}

    def fill(self, *, workers: int | None, progress: Progress | None) -> dict[int, str]:
        """Decode what is not there yet; the reasons by row of all that failed."""
        self._take_up()
        with writing():
            _allocate(self._file, len(self._table) * self._image_bytes)
            lines = [json.dumps(self._settings) + "\n", *map(_journal_line, self._done.values())]
            write_text(self._journal, "".join(lines))
            handle = self._journal.open("ab", buffering=0)
        count, total = sum(len(chunk.rows) for chunk in self._done.values()), len(self._table)
        missing = [rows for start, rows in self._chunks.items() if start not in self._done]
        decoded = decode_chunks(
            self._table,
            missing,
            size=self._size,
            channels=self._channels,
            file=self._file,
            workers=workers,
        )
        with handle, contextlib.closing(decoded):
            if progress is not None and self._done:
                progress(count, total)
            for chunk in decoded:
                self._done[chunk.rows.start] = chunk
                with writing():
                    handle.write(_journal_line(chunk).encode("ascii"))
                count += len(chunk.rows)
                if progress is not None:
                    progress(count, total)
        return {
            row: reason
            for start in self._chunks
            for row, reason in sorted(self._done[start].failures.items())
        }

    def squeeze(self) -> list[tuple[int, int]]:
        """Close the gaps of failed rows in the file, then called ``squeezed``, and sync it.

        Returns the rows and crc32 of each chunk. A kill in the middle is safe: a chunk that was
        overwritten no longer has its checksum.
        """
        kept, end = [], 0
        with writing():
            # Workers of a killed process may live a little longer, and must not find it any more.
            os.replace(self._file, self.squeezed)
        with writing(), self.squeezed.open("r+b") as handle:
            for start in self._chunks:
                chunk = self._done[start]
                count, crc = len(chunk.rows) - len(chunk.failures), chunk.crc
                if chunk.failures or end != start:
                    pixels = np.frombuffer(self._read(handle, chunk.rows), dtype=np.uint8)
                    pixels = pixels.reshape(-1, self._image_bytes)
                    pixels = pixels[[row not in chunk.failures for row in chunk.rows]]
                    crc = zlib.crc32(pixels.data)
                    handle.seek(end * self._image_bytes)
                    handle.write(pixels.data)
                kept.append((count, crc))
                end += count
            handle.truncate(end * self._image_bytes)
            handle.flush()
            os.fsync(handle.fileno())
        return kept

    def remove(self) -> None:
        """Give up what has been decoded so far."""
        for file in (self._file, self.squeezed, self._journal):
            with contextlib.suppress(OSError):
                file.unlink()

    def _read(self, handle: IO[bytes], rows: range) -> bytes:
        handle.seek(rows.start * self._image_bytes)
        return handle.read(len(rows) * self._image_bytes)

    def _take_up(self) -> None:
        """Find the chunks that an earlier process has finished, or start afresh."""
        with writing():
            remove_leftovers(self._journal.parent, self._journal.name)
        with contextlib.suppress(OSError):
            os.replace(self.squeezed, self._file)
        try:
            head, *lines = self._journal.read_text(encoding="ascii", errors="replace").splitlines()
            if json.loads(head) != self._settings:
                raise ValueError("a journal of other work")
            with self._file.open("rb") as handle:
                for chunk in filter(None, map(self._parse, lines)):
                    if zlib.crc32(self._read(handle, chunk.rows)) == chunk.crc:
                        self._done[chunk.rows.start] = chunk
        except (OSError, ValueError):
            self._done = {}
            self.remove()

    def _parse(self, line: str) -> Decoded | None:
        """A line of the journal; None where it is torn or makes no sense."""
        try:
            start, crc, failures = json.loads(line)
            rows, failures = self._chunks[start], {int(row): str(why) for row, why in failures}
        except (ValueError, TypeError, KeyError):
            return None
        sound = all(row in rows for row in failures)
        return Decoded(rows, crc, failures, _IN_FILE) if sound else None


def _journal_line(chunk: Decoded) -> str:
    return json.dumps([chunk.rows.start, chunk.crc, list(chunk.failures.items())]) + "\n"


def _allocate(file: Path, size: int) -> None:
    """Claim all of the space before the work; what ``file`` holds already stays."""
    with file.open("ab") as handle:
        status = os.fstat(handle.fileno())
        missing = size - getattr(status, "st_blocks", 0) * 512
        if missing > shutil.disk_usage(file.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        try:
            os.posix_fallocate(handle.fileno(), 0, size)
        except (AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            for start in range(status.st_size, size, _CHUNK_BYTES):
                handle.write(bytes(min(_CHUNK_BYTES, size - start)))
        handle.truncate(size)
