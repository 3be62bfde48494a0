"""Tables of features and labels: checked before work, with sentences for what is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenshot.data.source import Source
from eigenshot.data.tables.encoded import Labelled
from eigenshot.errors import UserError, did_you_mean

_ROWS = 8192  # of a table that are checked at once


def unit_length(features: np.ndarray) -> np.ndarray:
    """Every row divided by its Euclidean length; a zero row stays zero. Shape ``(N, d)``."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(lengths > 0, lengths, 1.0)


def check_finite(features: np.ndarray) -> None:
    """Name the rows of ``(n, d)`` that are not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(features.sum()):  # as it is with sound features, and ten times as fast
            return
    broken = np.flatnonzero(~np.isfinite(features).all(axis=1))
    if len(broken):
        shown = ", ".join(map(str, broken[:5])) + (", …" if len(broken) > 5 else "")
        raise UserError(f"{len(broken)} feature rows hold NaN or infinity (rows {shown})")


def checked_features(
    features: np.ndarray | Tensor, labels: np.ndarray | Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Features ``(N, d)`` and labels as int64 ``(N,)``, or a sentence saying why not."""
    table = _on_host(features)
    if not np.issubdtype(table.dtype, np.floating):
        table = table.astype(np.float64)
    targets = np.asarray(_on_host(labels))
    if table.ndim != 2:
        raise UserError(f"features must have shape (N, d), found {table.shape}")
    if targets.shape != (len(table),):
        raise UserError(
            f"labels must have shape ({len(table)},) to match the features, found {targets.shape}"
        )
    if not np.issubdtype(targets.dtype, np.integer):
        raise UserError(f"labels must be integers, found {targets.dtype}")
    check_finite(table)
    return table, targets.astype(np.int64)


def checked_width(features: Any, width: int) -> np.ndarray:
    """Features ``(n, width)`` of an image or more as float32, or a sentence saying why not."""
    table = features.cpu() if isinstance(features, Tensor) else features
    table = np.asarray(table, dtype=np.float32)
    if table.ndim != 2 or not len(table):
        raise UserError(f"expected features (n, d) of an image or more, found {table.shape}")
    if table.shape[1] != width:
        raise UserError(
            f"expected features of width {width}, as the encoder makes them, found {table.shape[1]}"
        )
    check_finite(table)
    return table


def _on_host(values: np.ndarray | Tensor) -> np.ndarray:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    on_host = values.detach().cpu()
    array: np.ndarray = (on_host.float() if on_host.dtype == torch.bfloat16 else on_host).numpy()
    return array


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


def aligned_labels(train: Labelled, test: Labelled) -> tuple[np.ndarray, np.ndarray]:
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
