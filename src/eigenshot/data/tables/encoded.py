"""Tables of pictures that are still encoded: what shards and folders have in common.

Nothing here imports torch: worker processes, which decode, load it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from eigenshot.errors import UserError

Unreadable = tuple[tuple[str, str], ...]  # (place, reason) of what cannot be read


class Pictures(Protocol):
    """The part of a table that a worker process needs: small, however many rows there are."""

    def read(self, places: Any) -> Sequence[bytes | Path | None]:
        """The encoded pictures at ``places`` in that order, as `Encoded.places` gives them."""


@dataclass(frozen=True)
class Labelling:
    """What is known of some rows: labels (n,) or None, class names, paths (n,) or None, a note."""

    labels: np.ndarray | None
    class_names: tuple[str, ...]
    paths: tuple[str, ...] | None
    note: str | None


class Labelled(Protocol):
    """What may have labels, whether its pictures are at hand or not."""

    @property
    def name(self) -> str:
        """A short description for people."""

    @property
    def labels(self) -> np.ndarray | None:
        """int64 (N,), indices into ``class_names``, -1 where unknown; None when unlabelled."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name a class; empty when unlabelled."""


class Encoded(Labelled, Protocol):
    """A table of encoded pictures with optional labels.

    Reading is by row, in any order; rows of one group lie together and are cheapest together.
    """

    @property
    def origin(self) -> str:
        """Name and place: a later state of the same data has the same."""

    @property
    def groups(self) -> np.ndarray:
        """int64 (G + 1,): group g is the rows ``groups[g]`` to ``groups[g + 1]``."""

    @property
    def note(self) -> str | None:
        """What the reader of a log should know of it, or None."""

    @property
    def faults(self) -> tuple[str, ...]:
        """What is wrong with the table as a whole, a sentence each."""

    @property
    def unlistable(self) -> Unreadable:
        """(place, reason) of parts that could not be looked into."""

    @property
    def lasting(self) -> bool:
        """Whether a decoded copy on disk pays even where the images fit into memory."""

    @property
    def identity(self) -> str:
        """Hex digest that changes when a decoded copy can no longer be trusted."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of the content, as far as it is cheap to know; of no place and no time."""

    def __len__(self) -> int:
        """How many pictures, N."""

    def read(self, rows: Sequence[int] | np.ndarray) -> Sequence[bytes | Path | None]:
        """The encoded pictures at ``rows`` in that order: bytes or a file, None where none is."""

    def pictures(self) -> Pictures:
        """What reads the pictures in another process, without labels and lists of rows."""

    def places(self, rows: Sequence[int] | np.ndarray) -> Any:
        """What `pictures` takes for ``rows``: a sequence with an entry a row."""

    def describe(self, row: int) -> str:
        """Where a picture lies, for a message: a file, or a shard and its row."""

    def labelling(self, rows: np.ndarray, unreadable: Unreadable) -> Labelling:
        """What is known of ``rows`` (n,) where the others are ``unreadable``."""


class PlainTable:
    """What most tables have in common."""

    name: str
    note: str | None = None
    faults: tuple[str, ...] = ()
    unlistable: Unreadable = ()
    lasting = True

    @property
    def origin(self) -> str:
        """The name: nothing else is known of where it comes from."""
        return self.name

    def pictures(self: Encoded) -> Pictures:
        """The table itself."""
        return self

    def places(self, rows: Sequence[int] | np.ndarray) -> Any:
        """The rows themselves, int64 (n,)."""
        return np.asarray(rows, dtype=np.int64)

    def labelling(self: Encoded, rows: np.ndarray, unreadable: Unreadable) -> Labelling:
        """The labels of ``rows``; all classes are kept, whatever could not be read."""
        labels = None if self.labels is None else self.labels[rows]
        return Labelling(labels, self.class_names, None, self.note)


class Selection(PlainTable):
    """Some rows of a table, with labels of their own.

    Parameters
    ----------
    table : where the pictures are
    rows : int64 (n,), ascending: groups stay together
    labels : int64 (n,), -1 where unknown, or None; class_names : what they index
    name : a short description for people
    note : what the reader of a log should know of it, or None
    """

    def __init__(
        self,
        table: Encoded,
        rows: np.ndarray,
        labels: np.ndarray | None,
        class_names: Sequence[str],
        name: str,
        note: str | None = None,
    ) -> None:
        self.table = table
        self.rows = np.asarray(rows, dtype=np.int64)
        if len(self.rows) == 0:
            raise UserError(f"{name} has no images")
        if (np.diff(self.rows) <= 0).any():
            raise ValueError("expected ascending rows")
        self.labels = labels
        self.class_names = tuple(class_names)
        self.name = name
        self.note = note
        self.faults = table.faults
        self.unlistable = table.unlistable
        self.groups = np.unique(np.searchsorted(self.rows, table.groups))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def origin(self) -> str:
        """Its own name, and where the table comes from."""
        return f"{self.name} of {self.table.origin}"

    def read(self, rows: Sequence[int] | np.ndarray) -> Sequence[bytes | Path | None]:
        """The encoded pictures at ``rows`` of the selection, in that order."""
        return self.table.read(self.rows[np.asarray(rows, dtype=np.int64)])

    def pictures(self) -> Pictures:
        """Those of the table: which rows are chosen is known here alone."""
        return self.table.pictures()

    def places(self, rows: Sequence[int] | np.ndarray) -> Any:
        """What the table's `pictures` takes for ``rows`` of the selection."""
        return self.table.places(self.rows[np.asarray(rows, dtype=np.int64)])

    def describe(self, row: int) -> str:
        """Where a picture lies, for a message."""
        return self.table.describe(int(self.rows[row]))

    @cached_property
    def identity(self) -> str:
        """Digest of the table's own and of what is chosen of it."""
        return digest_of(self.table.identity, self.rows)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the table's own, of what is chosen of it, and of the labels."""
        return digest_of(self.table.fingerprint, self.rows, self.labels, list(self.class_names))


def digest_of(*parts: object) -> str:
    """Hex digest of texts, plain values and arrays, in order."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(json.dumps([part.dtype.str, list(part.shape)]).encode("ascii"))
            digest.update(np.ascontiguousarray(part).tobytes())
        else:  # json keeps neighbours apart and escapes what is not valid Unicode
            digest.update(json.dumps(part).encode("ascii"))
    return digest.hexdigest()
