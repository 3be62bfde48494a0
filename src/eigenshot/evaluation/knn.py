"""Nearest-neighbour accuracy: the quickest look at whether features carry classes.

Features stay in the precision in which they come, and similarities are made in tiles of queries
by training images, so memory grows with the two tables and never with their product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenshot.errors import UserError, check_positive
from eigenshot.evaluation.tables import checked_split, checked_table

_ROWS = 8192  # of a table that are converted at once
_BLOCK = 65_536  # training images compared at once


@dataclass(frozen=True)
class KnnResult:
    """Test accuracy in percent, how many neighbours voted, and the temperature of their votes.

    ``copies`` test images have the very features of a training image.
    """

    accuracy: float
    neighbours: int
    temperature: float
    copies: int = 0

    def __str__(self) -> str:
        plural = "" if self.neighbours == 1 else "s"
        return f"{self.neighbours:,} nearest neighbour{plural}  {self.accuracy:.2f} %"

    def summary(self) -> dict[str, Any]:
        """What goes into a result file."""
        return {**vars(self), "accuracy": round(self.accuracy, 4)}


def knn_accuracy(
    train_features: np.ndarray | Tensor,
    train_labels: np.ndarray | Tensor,
    test_features: np.ndarray | Tensor,
    test_labels: np.ndarray | Tensor,
    *,
    neighbours: int = 200,
    temperature: float = 0.1,
    chunk: int = 512,
    block: int = _BLOCK,
    device: torch.device | str = "cpu",
    class_names: Sequence[str] = (),
) -> float:
    """Percent of test images whose class wins the vote of their nearest training images.

    Votes are weighted by exp(cosine / temperature).

    Parameters
    ----------
    train_features, test_features : ``(N, d)`` and ``(M, d)``.
    train_labels, test_labels : ``(N,)`` and ``(M,)`` integers of one numbering.
    neighbours : how many vote; all training images where there are fewer.
    chunk, block : test and training images compared at once.
    class_names : for error messages; the label itself is named without them.
    """
    split = checked_split(
        train_features, train_labels, test_features, test_labels, class_names=class_names
    )
    check_positive(neighbours=neighbours, temperature=temperature, chunk=chunk, block=block)
    vectors = unit_rows(split.train, device)
    classes, truth = split.train_classes.to(device), split.test_classes.to(device)
    correct = 0
    for start in range(0, len(truth), chunk):
        queries = unit_rows(split.test[start : start + chunk], device)
        cosines, nearest = _nearest(queries, vectors, neighbours, block)
        winners = _vote(cosines, classes[nearest], len(split.names), temperature)
        correct += int((winners == truth[start : start + chunk]).sum())
    return 100.0 * correct / len(truth)


def leave_one_out_knn(
    features: np.ndarray | Tensor,
    labels: np.ndarray | Tensor,
    *,
    neighbours: int = 20,
    temperature: float = 0.1,
    chunk: int = 512,
    block: int = _BLOCK,
    device: torch.device | str = "cpu",
) -> float:
    """Percent of images whose class wins the vote of their nearest other images.

    Votes are weighted by exp(cosine / temperature).

    Parameters
    ----------
    features : ``(N, d)``.
    labels : ``(N,)`` integers.
    neighbours : how many vote; all others where there are fewer.
    chunk, block : images compared at once with how many others.
    """
    table, targets = checked_table(features, labels)
    check_positive(neighbours=neighbours, temperature=temperature, chunk=chunk, block=block)
    if len(table) < 2:
        raise UserError(f"expected at least 2 images, one to vote for another, found {len(table)}")
    vectors = unit_rows(table, device)
    known, positions = np.unique(targets, return_inverse=True)
    classes = torch.from_numpy(positions.astype(np.int64)).to(device)
    neighbours = min(neighbours, len(vectors) - 1)
    correct = 0
    for start in range(0, len(vectors), chunk):
        queries = vectors[start : start + chunk]
        cosines, nearest = _nearest(queries, vectors, neighbours, block, first_row=start)
        winners = _vote(cosines, classes[nearest], len(known), temperature)
        correct += int((winners == classes[start : start + chunk]).sum())
    return 100.0 * correct / len(vectors)


def _nearest(
    queries: Tensor, vectors: Tensor, neighbours: int, block: int, first_row: int | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and rows of the nearest ``vectors`` of each query, ``(queries, neighbours)`` both.

    Parameters
    ----------
    queries, vectors : ``(q, d)`` and ``(N, d)``, of unit length.
    first_row : where the queries stand among the vectors, if they do: none is its own neighbour.
    """
    best = queries.new_empty((len(queries), 0))
    rows = torch.empty((len(queries), 0), dtype=torch.int64, device=queries.device)
    for start in range(0, len(vectors), block):
        cosines = queries @ vectors[start : start + block].T
        if first_row is not None and -len(cosines) < first_row - start < cosines.shape[1]:
            cosines.diagonal(first_row - start).fill_(-torch.inf)
        found, places = cosines.topk(min(neighbours, cosines.shape[1]), dim=1)
        # The best so far against the best of this block.
        candidates = torch.cat([best, found], dim=1)
        best, chosen = candidates.topk(min(neighbours, candidates.shape[1]), dim=1)
        rows = torch.cat([rows, places + start], dim=1).gather(1, chosen)
    return best, rows


def _vote(cosines: Tensor, classes: Tensor, count: int, temperature: float) -> Tensor:
    """The class with the greatest weight, ``(q,)``, from two tables ``(q, neighbours)``."""
    # Measured from the nearest, so that no temperature overflows; the order of votes is the same.
    weights = ((cosines - cosines.amax(dim=1, keepdim=True)) / temperature).exp()
    votes = torch.zeros((len(cosines), count), device=cosines.device)
    return votes.scatter_add_(1, classes, weights).argmax(dim=1)


def unit_rows(table: Tensor, device: torch.device | str = "cpu") -> Tensor:
    """Every row of ``(N, d)`` divided by its length, float32; a zero row stays zero."""
    vectors = torch.empty(table.shape, dtype=torch.float32, device=device)
    for start in range(0, len(table), _ROWS):
        rows = table[start : start + _ROWS].to(device=device, dtype=torch.float64)
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        vectors[start : start + _ROWS] = rows / torch.where(lengths > 0, lengths, 1.0)
    return vectors
