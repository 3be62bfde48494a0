"""Nearest-neighbour accuracy: the quickest look at whether features carry classes.

Features stay in the precision in which they come, and similarities are made in tiles of queries
by training images, so memory grows with the two tables and never with their product.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from eigenshot.data.source import Source
from eigenshot.errors import UserError, did_you_mean
from eigenshot.evaluation.fewshot import checked_features

_ROWS = 8192  # of a table that are converted or checked at once
_BLOCK = 65_536  # training images compared at once


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


def check_positive(**values: float) -> None:
    """Refuse the first value that is not above zero, by its name."""
    for name, value in values.items():
        if not value > 0:
            raise UserError(f"{name} must be positive, found {value}")


@dataclass(frozen=True)
class Split:
    """Checked features ``(N, d)`` and ``(M, d)`` with classes ``(N,)`` and ``(M,)`` in 0 … K−1.

    ``names`` are those of the K classes.
    """

    train: Tensor
    train_classes: Tensor
    test: Tensor
    test_classes: Tensor
    names: tuple[str, ...]


def checked_split(
    train_features: np.ndarray | Tensor,
    train_labels: np.ndarray | Tensor,
    test_features: np.ndarray | Tensor,
    test_labels: np.ndarray | Tensor,
    *,
    class_names: Sequence[str] = (),
) -> Split:
    """Training and test tables that fit each other, or a sentence saying why they do not."""
    train, train_targets = checked_table(train_features, train_labels, role="training")
    test, test_targets = checked_table(test_features, test_labels, role="test")
    if train.shape[1] != test.shape[1]:
        raise UserError(
            "expected training and test features of one width, "
            f"found {train.shape[1]} and {test.shape[1]}: are they of the same encoder?"
        )
    train_classes, test_classes, names = class_positions(
        train_targets, test_targets, class_names=class_names
    )
    return Split(train, train_classes, test, test_classes, names)


def class_positions(
    train_labels: np.ndarray, test_labels: np.ndarray, *, class_names: Sequence[str] = ()
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Labels ``(N,)`` and ``(M,)`` as positions among the training classes, and their names."""

    def name(label: int) -> str:
        return class_names[label] if 0 <= label < len(class_names) else str(label)

    known, train_classes = np.unique(train_labels, return_inverse=True)
    if len(known) < 2:
        found = f"only '{name(int(known[0]))}'" if len(known) else "no image"
        raise UserError(f"expected training images of at least 2 classes, found {found}")
    if len(test_labels) == 0:
        raise UserError("expected at least one test image, found none")
    unknown = np.flatnonzero(~np.isin(test_labels, known))
    if len(unknown):
        row = int(unknown[0])
        raise UserError(
            f"{len(unknown)} test images have a class without a training image: "
            f"'{name(int(test_labels[row]))}' in row {row}"
        )
    return (
        torch.from_numpy(train_classes.astype(np.int64)),
        torch.from_numpy(np.searchsorted(known, test_labels).astype(np.int64)),
        tuple(name(int(label)) for label in known),
    )


def aligned_labels(train: Source, test: Source) -> tuple[np.ndarray, np.ndarray]:
    """Labels of both sources in the numbering of ``train``, ``(N,)`` and ``(M,)``.

    Two folders number their classes each for itself, so where both have names, names decide.
    """
    for source, role in ((train, "training"), (test, "test")):
        if source.labels is None:
            raise UserError(f"'{source.name}' has no labels, but the {role} images need them")
    assert train.labels is not None
    assert test.labels is not None
    if not train.class_names or not test.class_names or train.class_names == test.class_names:
        return train.labels, test.labels
    position = {name: number for number, name in enumerate(train.class_names)}
    for label in np.unique(test.labels):
        name = test.class_names[label]
        if name not in position:
            raise UserError(
                f"test class '{name}' is not among the training classes"
                f"{did_you_mean(name, position)}"
            )
    numbers = np.array([position.get(name, -1) for name in test.class_names], dtype=np.int64)
    return train.labels, numbers[test.labels]


def source_classes(train: Source, test: Source) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """`class_positions` of two labelled sources."""
    return class_positions(*aligned_labels(train, test), class_names=train.class_names)


def checked_table(
    features: np.ndarray | Tensor, labels: np.ndarray | Tensor, *, role: str = ""
) -> tuple[Tensor, np.ndarray]:
    """Features ``(N, d)`` as they are, unconverted, and labels as int64 ``(N,)``.

    Sound features are not copied; what is wrong with others, `checked_features` says.
    """
    table, targets = _as_tensor(features), _as_tensor(labels).cpu().numpy()
    sound = table.ndim == 2 and targets.shape == (len(table),) and targets.dtype.kind in "iu"
    if not sound or not all(bool(torch.isfinite(rows).all()) for rows in table.split(_ROWS)):
        try:
            checked_features(features, labels)
        except UserError as error:
            raise UserError(f"{role} features: {error}" if role else str(error)) from None
    return table, targets.astype(np.int64)


def _as_tensor(values: np.ndarray | Tensor) -> Tensor:
    """A tensor that shares the memory of ``values`` where it can."""
    if isinstance(values, Tensor):
        return values.detach()
    array = np.ascontiguousarray(values)
    if array.dtype.kind not in "biuf":
        raise UserError(f"expected features and labels that are numbers, found {array.dtype}")
    with warnings.catch_warnings():
        # An array mapped from a file is not writable, which is well: it is only read here.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)
