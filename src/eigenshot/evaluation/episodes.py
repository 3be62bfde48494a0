"""Few-shot episodes as arrays of indices, all drawn at once from one seed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from eigenshot.errors import UserError, check_at_least
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
    check_at_least(2, ways=ways)
    check_at_least(1, shots=shots, queries=queries, episodes=episodes)
    check_at_least(0, seed=seed)
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < ways:
        way_out = f"use --ways {len(classes)} or fewer" if len(classes) > 1 else "add some"
        raise UserError(f"{ways}-way episodes need {ways} classes, found {len(classes)}; {way_out}")
    needed = shots + queries
    if counts.min() < needed:
        worst = int(counts.argmin())
        label = int(classes[worst])
        name = class_names[label] if label < len(class_names) else str(label)
        raise UserError(
            f"class '{name}' has {counts[worst]} images, but {shots} shots + {queries} queries "
            f"need {needed}; {_way_out(int(counts[worst]), shots)}, or leave that class out"
        )
    generator = numpy_generator(seed, "episodes", ways, shots, queries)
    # Sorting uniform keys draws without replacement, for all episodes in one call.
    chosen = generator.random((episodes, len(classes))).argsort(axis=1, kind="stable")[:, :ways]
    ranks = _distinct(counts[chosen].ravel(), needed, generator)
    # Images in order of their class; a class begins where the smaller ones end.
    members = np.argsort(labels, kind="stable")
    begins = np.cumsum(counts) - counts
    picked = members[begins[chosen].reshape(-1, 1) + ranks].reshape(episodes, ways, needed)
    return Episodes(picked[:, :, :shots], picked[:, :, shots:])


def check_episodes(
    labels: np.ndarray,
    *,
    ways: int,
    shots: Iterable[int],
    queries: int,
    class_names: tuple[str, ...] = (),
) -> None:
    """A UserError where no such tasks can be drawn of ``labels``, ``(N,)``.

    What most shots need comes first, so that who heeds it need not be told twice.
    """
    for count in sorted(shots, reverse=True):
        draw_episodes(
            labels,
            ways=ways,
            shots=count,
            queries=queries,
            episodes=1,
            seed=0,
            class_names=class_names,
        )


def _way_out(images: int, shots: int) -> str:
    """What can be asked for with classes of so many images."""
    if images < 2:
        return "add images to it"
    fewer = shots if shots < images else 1
    return (
        f"the smallest class allows {images} of both together, as with --shots {fewer} "
        f"--queries {images - fewer}"
    )


def _distinct(sizes: np.ndarray, needed: int, generator: np.random.Generator) -> np.ndarray:
    """``needed`` distinct numbers below each of ``sizes`` in random order, ``(len, needed)``.

    Floyd's sampling, one round for all rows: of the numbers up to ``top`` draw one, and take
    ``top`` itself where that one is taken already. Its order is not random, so it is shuffled.
    """
    taken = np.empty((len(sizes), needed), dtype=np.int64)
    uniform = generator.random((len(sizes), needed))
    for turn in range(needed):
        top = sizes - needed + turn
        drawn = (uniform[:, turn] * (top + 1)).astype(np.int64)
        again = (taken[:, :turn] == drawn[:, None]).any(axis=1)
        taken[:, turn] = np.where(again, top, drawn)
    order = generator.random(taken.shape).argsort(axis=1, kind="stable")
    return np.take_along_axis(taken, order, axis=1)
