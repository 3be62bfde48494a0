"""Labelled images without those whose label is unknown."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch

from eigenshot.data.benchmarks.findings import count_images
from eigenshot.data.source import Indices, Source, to_indices
from eigenshot.data.tables.encoded import Labelled, digest_of
from eigenshot.errors import UserError
from eigenshot.reporter import Reporter


def known_rows(table: Labelled, labels: np.ndarray) -> np.ndarray:
    """The rows of ``table`` whose label is known, int64 (n,); a UserError where there is none."""
    rows = np.flatnonzero(labels >= 0)
    if len(rows) == 0:
        raise UserError(f"not one image of {table.name} has a known label")
    return rows


def with_known_labels(source: Source, reporter: Reporter | None = None) -> Source:
    """``source`` itself where all labels are known, else the images whose label is.

    How many were left out is told. A source without labels stays as it is.
    """
    if source.labels is None or (source.labels >= 0).all():
        return source
    rows = known_rows(source, source.labels)
    if reporter is not None:
        unknown = count_images(len(source) - len(rows))
        reporter.note(f"{source.name}: left out {unknown} without a known label")
    return RowsOf(source, rows)


class RowsOf:
    """Some images of a source, which keeps them: nothing is copied.

    Parameters
    ----------
    source : where the images are; whatever else it has, such as ``reader``, this has too
    rows : int64 (n,)
    """

    def __init__(self, source: Source, rows: np.ndarray) -> None:
        self.source = source
        self.rows = rows
        self.name = source.name
        self.shape = source.shape
        self.labels = None if source.labels is None else source.labels[rows]
        self.class_names = source.class_names
        self.reader = getattr(source, "reader", "resident")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def unreadable(self) -> Any:
        """(place, reason) of what cannot be read, as far as it is known by now."""
        return getattr(self.source, "unreadable", ())

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of the source's own and of the rows."""
        return digest_of(self.source.fingerprint, self.rows)

    def images(self, indices: Indices) -> torch.Tensor:
        """The images at ``indices``, uint8 (n, channels, height, width)."""
        return self.source.images(self.rows[to_indices(indices)])
