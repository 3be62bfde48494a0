"""Parquet shards, as the Hugging Face hub lays data sets out, as a table of encoded pictures.

Nothing here imports torch: worker processes load it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eigenshot.data.tables.columns import (
    ShardLabels,
    check_image_type,
    choose_image_column,
    choose_label_column,
    image_columns,
    label_kind,
    to_labels,
    unite_labels,
    unusable_labels,
)
from eigenshot.data.tables.encoded import PlainTable, digest_of
from eigenshot.data.tables.parquet import (
    MAX_STRETCH,
    READ_FAILURES,
    PictureReader,
    RowGroups,
    check_file,
    open_parquet,
    read_error,
    row_groups_of,
)
from eigenshot.data.tables.shard_names import find_shards
from eigenshot.errors import UserError

__all__ = [
    "ShardTable",
    "broken_shards",
    "columns_of",
    "find_shards",
    "holds_images",
    "open_shards",
]


class ShardTable(PlainTable):
    """The pictures of some parquet files, in order; made by `open_shards`.

    Attributes
    ----------
    name : a short description for people
    shards : the files; one without rows is among them
    shard_starts : int64 (S + 1,), file s is the rows ``shard_starts[s]`` to ``shard_starts[s + 1]``
    labels : int64 (N,), indices into ``class_names``, -1 where the label is unknown; None when it
        is unknown for all
    class_names : one name a class; empty when unlabelled
    groups : int64 (G + 1,), the files' row groups, cut to at most 4096 rows
    encoded_bytes : the size of all files together
    note : what the reader of a log should know of it, or None
    faults : what is wrong with the files as a whole
    """

    def __init__(
        self,
        name: str,
        reader: PictureReader,
        labels: np.ndarray | None,
        class_names: Sequence[str],
        *,
        times: Sequence[int] = (),
        note: str | None = None,
        faults: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.note = note
        self.faults = faults
        self._times = list(times)
        self.labels = labels
        self.class_names = tuple(class_names)
        self.shards = reader.shards
        self.encoded_bytes = sum(reader.sizes)
        self._reader = reader
        starts = reader.groups.starts
        first_groups = np.searchsorted(reader.groups.shards, np.arange(len(self.shards) + 1))
        self.shard_starts = starts[first_groups]
        cuts = [np.arange(*bounds, MAX_STRETCH) for bounds in pairwise(starts)]
        self.groups = np.append(np.concatenate(cuts), starts[-1]).astype(np.int64)

    def __len__(self) -> int:
        return int(self.shard_starts[-1])

    def __repr__(self) -> str:
        kind = f"{len(self.class_names)} classes" if self.labels is not None else "unlabelled"
        return f"<{self.name}: {len(self)} images in {len(self.shards)} shards, {kind}>"

    def read(self, rows: Sequence[int] | np.ndarray) -> list[bytes | None]:
        """The encoded pictures at ``rows`` in that order; None where a row has none.

        A row may come more than once. A row that has only a path is read from the file of that
        name beside its shard, where there is one.
        """
        return self._reader.read(self.places(rows))

    def pictures(self) -> PictureReader:
        """Files and row groups, without labels."""
        return self._reader

    def places(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """The rows themselves, int64 (n,)."""
        wanted = np.asarray(rows, dtype=np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(f"expected rows in 0..{len(self) - 1}, found {rows}")
        return wanted

    @property
    def origin(self) -> str:
        """The name, and the folder of the first file."""
        return f"{self.name} in {self.shards[0].parent}"

    def describe(self, row: int) -> str:
        """``"train-00000-of-00002.parquet, row 17"``: the row counts within the file."""
        shard = int(np.searchsorted(self.shard_starts, row, side="right")) - 1
        path = self.shards[shard]
        same_name = sum(other.name == path.name for other in self.shards) > 1
        shown = f"{path.parent.name}/{path.name}" if same_name else path.name
        return f"{shown}, row {row - int(self.shard_starts[shard])}"

    @cached_property
    def identity(self) -> str:
        """Digest of what the fingerprint has of the pictures, and of each file's time of change.

        Neither digest reads every picture, so that one replaced by another of the same size shows
        in the time alone.
        """
        return digest_of(self._reader.digests(), self._times)

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of labels, class names, and of each file its size, its footer and the first
        4 KiB of every row group's pictures; of no path and no time, nor of pictures that lie in
        files beside the shards.
        """
        return digest_of(self._reader.digests(), self.labels, list(self.class_names))


def open_shards(
    paths: Sequence[Path],
    *,
    name: str,
    image_column: str | None = None,
    label_columns: Sequence[str] | None = None,
    note: str | None = None,
) -> ShardTable:
    """A table of the pictures in some parquet files, in the given order. No picture is read yet.

    Classes are united by name over the files, each of which may number its own.

    Parameters
    ----------
    name : a short description for people
    image_column : by default the one that the metadata calls an image, or the likeliest by type
    label_columns : the first of these that is there holds the labels, none if empty; by default a
        class label of the metadata, or a column with a usual name
    note : what else the reader of a log should know of it
    """
    shards = tuple(Path(path).expanduser().absolute() for path in paths)
    first: _Columns | None = None
    sizes, times = [], []
    groups: list[tuple[int, int, int, int, int]] = []
    labels: list[tuple[str, ShardLabels]] = []
    for number, path in enumerate(shards):
        with open_parquet(path) as file:
            sizes.append(check_file(path))
            times.append(path.stat().st_mtime_ns)
            if file.metadata.num_rows == 0:
                continue
            schema = file.schema_arrow
            if first is None:
                image = choose_image_column(schema, str(path), image_column)
                label = choose_label_column(schema, str(path), label_columns)
                unusable = None if label_columns is not None else unusable_labels(schema)
                first = _Columns(path, image, label, unusable)
            else:
                _check_same_columns(first, schema, path, label_columns)
            groups += [(number, *group) for group in row_groups_of(file, path, first.image)]
            if first.label is not None:
                labels.append((str(path), _read_labels(file, path, first.label)))
    if first is None:
        files = "1 file" if len(shards) == 1 else f"{len(shards)} files"
        raise UserError(f"{name} has no images: expected parquet shards with rows, found {files}")
    of_shard, rows, indices, offsets, stretches = np.array(groups, dtype=np.int64).T
    starts = np.concatenate([[0], np.cumsum(rows)])
    row_groups = RowGroups(starts, of_shard, indices, offsets, stretches)
    reader = PictureReader(shards, tuple(sizes), first.image, row_groups)
    united, class_names = unite_labels(labels)
    faults = () if first.unusable is None else (first.unusable,)
    return ShardTable(
        name,
        reader,
        united,
        class_names,
        times=times,
        note="; ".join(filter(None, (note, *faults))) or None,
        faults=faults,
    )


def holds_images(path: Path) -> bool:
    """Whether a parquet file has a column that may hold encoded pictures."""
    with open_parquet(path) as file:
        return bool(image_columns(file.schema_arrow))


def columns_of(path: Path) -> tuple[str, ...]:
    """The names of a parquet file's columns."""
    with open_parquet(path) as file:
        return tuple(file.schema_arrow.names)


def broken_shards(
    paths: Sequence[Path], label_columns: Sequence[str] | None = None
) -> dict[Path, str]:
    """Which files cannot be opened by themselves, and why; label columns that are missing pass."""
    broken = {}
    for path in paths:
        try:
            present = columns_of(path)
            wanted = None if label_columns is None else [c for c in label_columns if c in present]
            with open_parquet(path) as file:
                empty = file.metadata.num_rows == 0
            if not empty:
                open_shards([path], name=path.name, label_columns=wanted)
        except UserError as error:
            broken[path] = str(error)
    return broken


class _Columns(NamedTuple):
    """The columns chosen, the file they were chosen by, and why another holds no labels."""

    path: Path
    image: str
    label: str | None
    unusable: str | None


def _check_same_columns(
    first: _Columns, schema: pa.Schema, path: Path, label_columns: Sequence[str] | None
) -> None:
    """Refuse a file that lacks a column in use, or has labels where the first file has none."""
    needed = [column for column in (first.image, first.label) if column is not None]
    same = all(column in schema.names for column in needed)
    if same and first.label is None:
        same = choose_label_column(schema, str(path), label_columns) is None
    if not same:
        found = ", ".join(schema.names) or "none"
        labels = "no labels" if first.label is None else f"labels in '{first.label}'"
        raise UserError(
            f"{path} has other columns than {first.path.name}: found {found}, expected images in "
            f"'{first.image}' and {labels}; open shards of one layout"
        )
    check_image_type(schema, str(path), first.image)


def _read_labels(file: pq.ParquetFile, path: Path, column: str) -> ShardLabels:
    label_kind(file.schema_arrow, str(path), column)  # before nested columns are read in vain
    try:
        values = file.read(columns=[column], use_threads=False).column(column)
        if len(values) != file.metadata.num_rows:
            raise pa.ArrowInvalid("other rows than the footer promises")
        return to_labels(values, file.schema_arrow, str(path), column)
    except UserError:
        raise
    except READ_FAILURES as error:
        raise read_error(path, f"column '{column}'", error) from error
