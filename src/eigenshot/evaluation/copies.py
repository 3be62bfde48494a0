"""Images that are there twice, told by their features, which are there anyway.

The features of copies differ by rounding alone: how many images go through a network at once moves
their last digits. In bf16 it moves the third digit, so copies may go unnoticed there.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial import KDTree

from eigenshot.evaluation.tables import unit_length
from eigenshot.randomness import numpy_generator

# Of features of unit length. Rounding in float32 moves them by 1e-6, another image by far more.
_DISTANCE = 1e-5
_DIRECTIONS = 8  # in which two images hardly agree by chance, and a tree is still quick
_ROWS = 8192  # of a table that are worked on at once


def copies_among(queries: np.ndarray, table: np.ndarray) -> np.ndarray:
    """The row of ``table`` that each query is a copy of, int64 ``(m,)``; −1 where it is of none.

    Parameters
    ----------
    queries, table : finite features of one encoder, ``(m, d)`` and ``(n, d)``.
    """
    found = np.full(len(queries), -1, dtype=np.int64)
    if not len(table) or not len(queries):
        return found
    # Of images that are as near along all directions, which other ones hardly are, one is tried.
    distance, nearest = KDTree(_along_some(table)).query(
        _along_some(queries), distance_upper_bound=_DISTANCE
    )
    candidates = np.flatnonzero(np.isfinite(distance))
    for start in range(0, len(candidates), _ROWS):
        rows = candidates[start : start + _ROWS]
        apart = _unit(queries[rows]) - _unit(table[nearest[rows]])
        same = rows[np.linalg.norm(apart, axis=1) <= _DISTANCE]
        found[same] = nearest[same]
    return found


def twins_across(features: np.ndarray, labels: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of rows of ``(n, d)`` that are copies with different labels ``(n,)``.

    Each image is paired with one of a class before its own at most.
    """
    pairs = []
    projected = _along_some(features)
    near = KDTree(projected).query_ball_point(projected, _DISTANCE, return_length=True)
    rows = np.flatnonzero(near > 1)  # few, as a rule: the others have no copy at all
    for label in np.unique(labels[rows]):
        own, before = rows[labels[rows] == label], rows[labels[rows] < label]
        copies = copies_among(features[own], features[before])
        pairs += [
            (int(before[copy]), int(row))
            for row, copy in zip(own, copies, strict=True)
            if copy >= 0
        ]
    return pairs


def _along_some(features: np.ndarray) -> np.ndarray:
    """Features ``(n, d)`` of unit length along a few orthonormal directions, ``(n, k)``.

    Nothing is farther apart there than in all of them. The directions are the same for every table.
    """
    width = features.shape[1]
    generator = numpy_generator(0, "copies", width)
    directions = np.linalg.qr(generator.normal(size=(width, min(width, _DIRECTIONS))))[0]
    parts = range(0, len(features), _ROWS)
    return np.concatenate([_unit(features[at : at + _ROWS]) @ directions for at in parts])


def _unit(features: np.ndarray) -> np.ndarray:
    return unit_length(np.asarray(features, dtype=np.float64))
