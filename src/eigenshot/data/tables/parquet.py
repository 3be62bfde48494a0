"""Pictures out of parquet files: row group by row group, a bounded amount in memory.

Nothing here imports torch: worker processes load it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eigenshot.data.tables.columns import picture_leaves
from eigenshot.data.tables.encoded import digest_of
from eigenshot.errors import CorruptFileError, UserError

MAX_STRETCH = 4096  # rows read at once
READ_FAILURES = (pa.ArrowException, OSError, UnicodeDecodeError)

_PIECE_BYTES = 32 * 2**20  # what one piece should hold at most, by the average of its row group
_KEPT_BYTES = 64 * 2**20  # pieces kept in memory
_KEPT_FILES = 8
_HEAD = 4096  # bytes of each row group's pictures that enter the digest

Value = TypeVar("Value")


def open_parquet(path: Path) -> pq.ParquetFile:
    """The parquet file at ``path``, its footer read; an error for people where that fails."""
    check_file(path)
    try:
        # A buffer streams a row group's pages; without one the whole column chunk is read at once.
        return pq.ParquetFile(
            path, buffer_size=2**20, pre_buffer=False, page_checksum_verification=True
        )
    except READ_FAILURES as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise _system_error(path, error) from error
        raise CorruptFileError(_why_not_parquet(path)) from error


def check_file(path: Path, size: int | None = None) -> int:
    """The size of a file in bytes; an error where it is gone, or is no longer of ``size``."""
    try:
        found = path.stat().st_size
    except OSError as error:
        raise _system_error(path, error) from error
    if not path.is_file():
        raise UserError(f"expected a parquet file, found a folder or device: {path}")
    if size is not None and found != size:
        raise CorruptFileError(
            f"{path} has changed since it was opened, from {size} to {found} bytes; start again"
        )
    return found


def _system_error(path: Path, error: OSError) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"no such parquet file: {path}")
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return UserError(f"cannot read {path}: {reason}")


def read_error(path: Path, part: str, error: Exception) -> UserError:
    """What to tell people when ``part`` of an open parquet file failed with one of `READ_FAILURES`.

    Damage surfaces as nearly all of them; the exceptions are told apart.
    """
    if isinstance(error, OSError) and error.errno is not None:
        return _system_error(path, error)
    if isinstance(error, NotImplementedError):
        reason = str(error).partition("\n")[0]
        return UserError(f"pyarrow {pa.__version__} cannot read {part} of {path}: {reason}")
    return CorruptFileError(f"{part} of {path} cannot be read, it is damaged; fetch the file again")


def _why_not_parquet(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(40)
    if not start:
        return f"{path} is empty, expected a parquet file; fetch it again"
    if start.startswith(b"version https://git-lfs"):
        return f"{path} is a Git LFS pointer, not the data; run 'git lfs pull', or fetch it again"
    if start.startswith(b"PAR1"):
        return f"{path} is damaged or was cut short; fetch it again"
    return f"{path} is not a parquet file, or is damaged; fetch it again"


@dataclass(frozen=True)
class RowGroups:
    """The row groups of some files, in order, without the empty ones.

    Attributes
    ----------
    starts : int64 (R + 1,), row group r is the rows ``starts[r]`` to ``starts[r + 1]``
    shards : int64 (R,), the file of each
    indices : int64 (R,), its number within the file
    offsets : int64 (R,), where its pictures begin in the file, in bytes
    stretches : int64 (R,), the rows of it that are read at once
    """

    starts: np.ndarray
    shards: np.ndarray
    indices: np.ndarray
    offsets: np.ndarray
    stretches: np.ndarray


def row_groups_of(
    file: pq.ParquetFile, path: Path, image_column: str
) -> list[tuple[int, int, int, int]]:
    """(rows, index, offset, stretch) of each row group that is not empty; see `RowGroups`."""
    leaf = picture_leaves(file.schema_arrow, image_column)[0]
    places = [file.schema.column(place).path for place in range(len(file.schema))]
    found = []
    for index in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(index)
        if group.num_rows == 0:
            continue
        chunk = group.column(places.index(leaf))
        offset = chunk.data_page_offset
        if chunk.has_dictionary_page:
            offset = min(offset, chunk.dictionary_page_offset)
        average = max(1, chunk.total_uncompressed_size // group.num_rows)
        stretch = min(MAX_STRETCH, group.num_rows, max(1, _PIECE_BYTES // average))
        found.append((group.num_rows, index, offset, stretch))
    # Nothing guards a footer against flipped bits but that its numbers agree.
    total = sum(rows for rows, _, _, _ in found)
    if total != file.metadata.num_rows or np.min(found) < 0:
        raise CorruptFileError(f"{path} is damaged, its footer contradicts itself; fetch it again")
    return found


class PictureReader:
    """Reads encoded pictures by row; threads may share it, and pickling leaves open files behind.

    A stretch of rows is decompressed at a time and the last few are kept, so that small reads
    close to each other cost one.
    """

    def __init__(
        self, shards: tuple[Path, ...], sizes: tuple[int, ...], column: str, groups: RowGroups
    ) -> None:
        self.shards, self.sizes, self.column, self.groups = shards, sizes, column, groups
        self._lock = threading.Lock()
        self._files: _Recent[pq.ParquetFile] = _Recent(_KEPT_FILES)
        self._pieces: _Recent[_Piece] = _Recent(_KEPT_BYTES)
        self._cursor: _Cursor | None = None

    def __reduce__(self) -> tuple[type[PictureReader], tuple[object, ...]]:
        return PictureReader, (self.shards, self.sizes, self.column, self.groups)

    def read(self, rows: np.ndarray) -> list[bytes | None]:
        """The pictures at ``rows``, int64 (n,), in that order; None where there is none."""
        contents: list[bytes | None] = [None] * len(rows)
        group_of = np.searchsorted(self.groups.starts, rows, side="right") - 1
        within = rows - self.groups.starts[group_of]
        number, place = np.divmod(within, self.groups.stretches[group_of])
        wanted = zip(group_of.tolist(), number.tolist(), place.tolist(), strict=True)
        current, piece = None, None
        for target, (group, piece_number, row) in sorted(enumerate(wanted), key=lambda at: at[1]):
            if piece is None or current != (group, piece_number):
                current = (group, piece_number)
                with self._lock:
                    piece = self._pieces.get(current) or self._advance(group, piece_number)
            contents[target] = piece.contents[row].as_py() or self._beside(piece, group, row)
        return contents

    def digests(self) -> list[str]:
        """Of each file: its size, its footer, and the first bytes of each row group's pictures."""
        found = []
        for shard, (path, size) in enumerate(zip(self.shards, self.sizes, strict=True)):
            check_file(path, size)
            parts: list[bytes] = []
            try:
                with path.open("rb", buffering=0) as file:
                    file.seek(size - 8)  # the length of the footer, then "PAR1"
                    footer = int.from_bytes(file.read(4), "little") + 8
                    places = [(max(0, size - footer), footer)]
                    offsets = self.groups.offsets[self.groups.shards == shard]
                    places += [(offset, _HEAD) for offset in offsets.tolist()]
                    for offset, length in places:
                        file.seek(offset)
                        parts.append(file.read(length))
            except OSError as error:
                raise _system_error(path, error) from error
            found.append(digest_of(size, *(np.frombuffer(part, np.uint8) for part in parts)))
        return found

    def _advance(self, group: int, number: int) -> _Piece:
        """Piece ``number`` of a row group, which is read from where the last reading stopped."""
        cursor = self._cursor
        self._cursor = None  # a failure leaves nothing half read behind
        path = self.shards[self.groups.shards[group]]
        try:
            if cursor is None or cursor.group != group or cursor.following > number:
                cursor = _Cursor(group, 0, self._batches(group))
            while cursor.following <= number:
                piece = _to_piece(next(cursor.batches).column(0))
                if len(piece.contents) != self._rows_of(group, cursor.following):
                    raise StopIteration
                self._pieces.put((group, cursor.following), piece, piece.size)
                cursor.following += 1
        except UserError:
            raise
        except (*READ_FAILURES, StopIteration) as error:  # the latter: fewer rows than promised
            raise read_error(path, f"row group {self.groups.indices[group]}", error) from error
        if self._rows_of(group, cursor.following) > 0:
            self._cursor = cursor
        return piece

    def _rows_of(self, group: int, number: int) -> int:
        rows = int(self.groups.starts[group + 1] - self.groups.starts[group])
        stretch = int(self.groups.stretches[group])
        return max(0, min(stretch, rows - number * stretch))

    def _batches(self, group: int) -> Iterator[pa.RecordBatch]:
        shard = int(self.groups.shards[group])
        file = self._files.get(shard)
        if file is None:
            check_file(self.shards[shard], self.sizes[shard])
            file = open_parquet(self.shards[shard])
            self._files.put(shard, file)
        batches: Iterator[pa.RecordBatch] = file.iter_batches(
            batch_size=int(self.groups.stretches[group]),
            row_groups=[int(self.groups.indices[group])],
            columns=picture_leaves(file.schema_arrow, self.column),
            use_threads=False,  # one column has nothing to share out, and workers fill the cores
        )
        return batches

    def _beside(self, piece: _Piece, group: int, row: int) -> bytes | None:
        """A picture that the row only names: a file beside the shard, or below."""
        named = None if piece.paths is None else piece.paths[row].as_py()
        # Data from elsewhere must not name other files of this machine.
        if not named or PurePosixPath(named).is_absolute() or ".." in PurePosixPath(named).parts:
            return None
        path = self.shards[self.groups.shards[group]].parent / named
        try:
            return (path.read_bytes() or None) if path.is_file() else None
        except (OSError, ValueError):  # ValueError: a name that no file can have
            return None


@dataclass(frozen=True)
class _Piece:
    """Some rows in memory: their bytes, and the paths where the column has them."""

    contents: pa.Array
    paths: pa.Array | None
    size: int


def _to_piece(column: pa.Array) -> _Piece:
    if not pa.types.is_struct(column.type):
        return _Piece(column, None, column.nbytes)
    # Flattening carries the rows that are null as a whole over to the parts.
    names = [column.type.field(number).name for number in range(column.type.num_fields)]
    parts = dict(zip(names, column.flatten(), strict=True))
    return _Piece(parts["bytes"], parts.get("path"), column.nbytes)


@dataclass
class _Cursor:
    """A row group that is being read, and the number of the piece that comes next."""

    group: int
    following: int
    batches: Iterator[pa.RecordBatch]


class _Recent(Generic[Value]):
    """The values used last, up to a total weight; the newest is kept in any case."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self.entries: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()

    def get(self, key: Hashable) -> Value | None:
        if key not in self.entries:
            return None
        self.entries.move_to_end(key)
        return self.entries[key][0]

    def put(self, key: Hashable, value: Value, weight: int = 1) -> None:
        if key in self.entries:
            self.total -= self.entries.pop(key)[1]
        self.entries[key] = (value, weight)
        self.total += weight
        while self.total > self.limit and len(self.entries) > 1:
            self.total -= self.entries.popitem(last=False)[1][1]
