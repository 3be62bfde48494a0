"""Tables of pictures that are still encoded: what shards and folders have in common.

Nothing here imports torch: a table travels to worker processes, which decode.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from eigenshot.errors import UserError


class Encoded(Protocol):
    """A table of encoded pictures with optional labels. It can be pickled, and is cheap to.

    Reading is by row, in any order; rows of one group lie together and are cheapest together.
    """

    @property
    def name(self) -> str:
        """A short description for people."""

    @property
    def labels(self) -> np.ndarray | None:
        """int64 (N,), indices into ``class_names``; None when unlabelled."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name a class; empty when unlabelled."""

    @property
    def groups(self) -> np.ndarray:
        """int64 (G + 1,): group g is the rows ``groups[g]`` to ``groups[g + 1]``."""

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

    def describe(self, row: int) -> str:
        """Where a picture lies, for a message: a file, or a shard and its row."""


class Selection:
    """Some rows of a table, with labels of their own.

    Parameters
    ----------
    table : where the pictures are
    rows : int64 (n,), ascending: groups stay together
    labels : int64 (n,) or None; class_names : what they index
    name : a short description for people
    """

    def __init__(
        self,
        table: Encoded,
        rows: np.ndarray,
        labels: np.ndarray | None,
        class_names: Sequence[str],
        name: str,
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
        self.groups = np.unique(np.searchsorted(self.rows, table.groups))

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Sequence[int] | np.ndarray) -> Sequence[bytes | Path | None]:
        """The encoded pictures at ``rows`` of the selection, in that order."""
        return self.table.read(self.rows[np.asarray(rows, dtype=np.int64)])

    def describe(self, row: int) -> str:
        """Where a picture lies, for a message."""
        return self.table.describe(int(self.rows[row]))

    @property
    def identity(self) -> str:
        """Digest of the table's own and of what is chosen of it."""
        return digest_of(self.table.identity, self.rows)

    @property
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


def select_classes(table: Encoded, names: Sequence[str], name: str) -> Selection:
    """The pictures of the classes called ``names``, numbered in that order."""
    if table.labels is None:
        raise UserError(f"{table.name} has no labels to choose classes by")
    number = {known: index for index, known in enumerate(table.class_names)}
    missing = [wanted for wanted in names if wanted not in number]
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise UserError(f"{table.name} lacks {len(missing)} of {len(names)} classes: {shown}")
    renumbered = np.full(len(table.class_names), -1, dtype=np.int64)
    renumbered[[number[wanted] for wanted in names]] = np.arange(len(names))
    # A label of -1 is unknown, and must not count from the end.
    own = np.where(table.labels >= 0, renumbered[table.labels], -1)
    rows = np.flatnonzero(own >= 0)
    return Selection(table, rows, own[rows], names, name)
