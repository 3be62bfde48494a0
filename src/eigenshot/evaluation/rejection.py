"""When an image is none of these: it is less like the support than the support is like itself.

The likeness of an image is the cosine between its feature and the nearest one of the support. An
image is unlike every class when its likeness is at most a threshold, which is read off the
support: the likeness of each support image to the nearest *other* one, of whatever class, is what
an image of a known class has. Their q-quantile tolerates a false-alarm rate of q.

On glyphs, the nearest image tells unknown characters from known ones better than the nearest class
mean, the mean likeness to a class, or a likeness relative to the neighbour's own does (areas under
the curve 0.97, 0.96, 0.95 and 0.94 with five classes of five images); the classifier's own
probability cannot tell at all, as it adds up to one over the known classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats
from sklearn.preprocessing import normalize

from eigenshot.errors import UserError

_FEWEST = 4  # likenesses from which a mean and a deviation are worth something
_CHUNK = 2048


@dataclass(frozen=True)
class RejectionRule:
    """Reject an image whose largest cosine to the support is at most ``threshold``.

    ``rate`` is the tolerated false-alarm rate; ``measured`` the share of support images that the
    rule made of the others rejects, None where it cannot be measured; ``rule`` a sentence.
    """

    rate: float
    threshold: float
    measured: float | None
    rule: str

    def rejects(self, likeness: np.ndarray) -> np.ndarray:
        """Which of ``(m,)`` likenesses are too small, bool ``(m,)``."""
        rejected: np.ndarray = likeness <= self.threshold
        return rejected


def likeness_to(features: np.ndarray, support: np.ndarray) -> np.ndarray:
    """Largest cosine of each of ``(m, d)`` features to any of the support ``(n, d)``; ``(m,)``."""
    queries, targets = _unit(features), _unit(support)
    likeness = np.empty(len(queries))
    for start in range(0, len(queries), _CHUNK):
        likeness[start : start + _CHUNK] = (queries[start : start + _CHUNK] @ targets.T).max(axis=1)
    return likeness


def likeness_within(
    support: np.ndarray, labels: np.ndarray, *, other_class: bool = False
) -> np.ndarray:
    """Largest cosine of each support image to another one, or to one of another class; ``(n,)``."""
    table = _unit(support)
    likeness = np.empty(len(table))
    for start in range(0, len(table), _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, len(table)))
        cosines = table[rows] @ table.T
        if other_class:
            cosines[labels[rows][:, None] == labels] = -np.inf
        else:
            cosines[np.arange(len(rows)), rows] = -np.inf
        likeness[rows] = cosines.max(axis=1)
    return likeness


def fit_rejection(support: np.ndarray, labels: np.ndarray, rate: float) -> RejectionRule:
    """The rule for a tolerated false-alarm ``rate``, from support features ``(n, d)``.

    Only classes of two images or more have likenesses to learn from. With at least 1/rate − 1 of
    them the threshold is their quantile; with four or more, the lower prediction bound of a normal
    distribution (Student's t); with fewer, the mean likeness of a support image to the nearest one
    of *another* class, for which the false-alarm rate is not known.
    """
    check_rate(rate)
    several = np.bincount(labels)[labels] >= 2
    known = np.sort(likeness_within(support, labels)[several])
    count = len(known)
    if count >= _FEWEST:
        threshold = _threshold(known, rate)
        alarms = _alarms(known, rate)
        rule = (
            f"the {rate:.1%} quantile of {count} likenesses within the support"
            if _is_enough(count, rate)
            else f"the {rate:.1%} prediction bound from {count} likenesses within the support"
        )
        return RejectionRule(rate, threshold, alarms / count, rule)
    across = likeness_within(support, labels, other_class=True)
    return RejectionRule(
        rate,
        float(across.mean()),
        None,
        "the mean likeness of a support image to the nearest of another class; too few classes "
        "have two images, so the false-alarm rate is unknown",
    )


def check_rate(rate: float) -> None:
    """Refuse what is no tolerable false-alarm rate."""
    if not 0 < rate < 1:
        raise UserError(f"expected a false-alarm rate between 0 and 1, found {rate}")


def _alarms(known: np.ndarray, rate: float) -> int:
    """How many of the sorted likenesses are rejected by the rule that the others make."""
    count = len(known)
    tried = count
    if _is_enough(count - 1, rate):
        # A quantile of the others lies among the smallest; only those, and ties, can be below it.
        reach = min(int(np.ceil(rate * count)) + 1, count - 1)
        tried = int(np.searchsorted(known, known[reach], side="right"))
    return sum(
        bool(known[index] <= _threshold(np.delete(known, index), rate)) for index in range(tried)
    )


def _is_enough(count: int, rate: float) -> bool:
    return rate * (count + 1) >= 1


def _threshold(known: np.ndarray, rate: float) -> float:
    """The likeness below which a new image of a known class falls with probability ``rate``."""
    count = len(known)
    if _is_enough(count, rate):
        # Of n + 1 exchangeable values the new one is below the k-th of the others with
        # probability k / (n + 1): Weibull's plotting position.
        return float(np.quantile(known, rate, method="weibull"))
    spread = known.std(ddof=1) * np.sqrt(1 + 1 / count)
    return float(known.mean() + stats.t.ppf(rate, count - 1) * spread)


def _unit(features: np.ndarray) -> np.ndarray:
    unit: np.ndarray = normalize(np.asarray(features, dtype=np.float64))
    return unit
