"""A file of pixels that is being filled by one process at a time, and survives its end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from eigenshot.data.cache import CacheUnavailable, mebibytes
from eigenshot.data.reading.chunks import (
    CHUNK_BYTES,
    IN_FILE,
    Decoded,
    decode_chunks,
    plan_chunks,
    writing,
)
from eigenshot.data.reading.workers import Progress
from eigenshot.data.tables.encoded import Encoded, digest_of
from eigenshot.files import remove_leftovers, write_text

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        plan = digest_of(list(self._chunks))
        self._settings = [stem.name, len(table), size, channels, plan, table.origin]
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

    def exists(self) -> bool:
        """Whether there is anything to go on from."""
        return self._file.exists()

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
        return Decoded(rows, crc, failures, IN_FILE) if sound else None


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
            for start in range(status.st_size, size, CHUNK_BYTES):
                handle.write(bytes(min(CHUNK_BYTES, size - start)))
        handle.truncate(size)


def unavailable(folder: Path, name: str, error: OSError, need: int) -> CacheUnavailable:
    """The error for ``need`` bytes that ``folder`` does not take."""
    reason = (error.strerror or "it cannot be written").lower()
    if error.errno in _NO_ROOM:
        free = shutil.disk_usage(folder).free
        return CacheUnavailable(
            f"{folder} has no room for the decoded images of {name} ({reason}): "
            f"{mebibytes(need)} are needed, {mebibytes(free)} are free; set EIGENSHOT_CACHE to "
            "another folder, or stream the images: --set data.reader=streamed"
        )
    return CacheUnavailable(
        f"cannot write decoded images of {name} to {folder}: {reason}; set EIGENSHOT_CACHE to a "
        "folder that can be written to"
    )
