"""Few-shot episodes as arrays of indices, all drawn at once from one seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eigenshot.errors import UserError
from eigenshot.randomness import numpy_generator


@dataclass(frozen=True)
class Episodes:
    """Indices into a table of features.

    ``support`` is ``(episodes, ways, shots)``, ``query`` is ``(episodes, ways, queries)``; the
    position along the second axis is the class within the episode.
    """

    support: np.ndarray
    query: np.ndarray

    def __len__(self) -> int:
        return len(self.support)


def draw_episodes(
    labels: np.ndarray,
    *,
    ways: int,
    shots: int,
    queries: int,
    episodes: int,
    seed: int,
    class_names: tuple[str, ...] = (),
) -> Episodes:
    """Draw ``episodes`` tasks of ``ways`` classes without replacement inside a task.

    Parameters
    ----------
    labels : ``(N,)`` integers.
    class_names : for error messages; the label itself is named without them.
    """
    for name, value, least in (
        ("ways", ways, 2),
        ("shots", shots, 1),
        ("queries", queries, 1),
        ("episodes", episodes, 1),
    ):
        if value < least:
            raise UserError(f"{name} must be at least {least}, found {value}")
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < ways:
        raise UserError(f"{ways}-way episodes need {ways} classes, found {len(classes)}")
    needed = shots + queries
    if counts.min() < needed:
        worst = int(counts.argmin())
        label = int(classes[worst])
        name = class_names[label] if label < len(class_names) else str(label)
        raise UserError(
            f"class '{name}' has {counts[worst]} images, but {shots} shots + {queries} queries "
            f"need {needed}; use fewer queries, or leave that class out"
        )
    members = [np.flatnonzero(labels == label) for label in classes]
    generator = numpy_generator(seed, "episodes", ways, shots, queries)
    # Sorting uniform keys draws without replacement, for all episodes in one call.
    chosen = generator.random((episodes, len(classes))).argsort(axis=1, kind="stable")[:, :ways]
    picked = np.empty((episodes, ways, needed), dtype=np.int64)
    for episode, row in enumerate(chosen):
        for way, position in enumerate(row):
            keys = generator.random(len(members[position]))
            picked[episode, way] = members[position][keys.argsort(kind="stable")[:needed]]
    return Episodes(picked[:, :, :shots], picked[:, :, shots:])
