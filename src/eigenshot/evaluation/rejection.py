"""When an image is none of these: it is less like the support than the support is like itself.

The likeness of an image is the cosine between its feature and the nearest one of the support. An
image is unlike every class when its likeness is at most a threshold, which is read off the
support: the likeness of each support image to the nearest *other* one is what an image of a known
class has, and their q-quantile tolerates a false-alarm rate of q. The more images a class has, the
nearer is the nearest. So each size of class has a threshold of its own, made as if every class had
that many images, and an image is held against the threshold of the class it is nearest to.

The nearest image tells unknown characters from known ones better than the nearest class mean does
(``benchmarks/classify.py`` measures the rule). The classifier's own probability is no such rule: it
adds up to one over the known classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from eigenshot.errors import UserError
from eigenshot.evaluation.tables import unit_length

_FEWEST = 4  # likenesses from which a mean and a deviation are worth something
_CHUNK = 2048


@dataclass(frozen=True)
class RejectionRule:
    """Reject an image whose likeness is at most the threshold of the class it is nearest to.

    ``rate`` is the tolerated false-alarm rate and ``thresholds`` has one cosine a class;
    ``measured`` is the share of support images that the rule made of the others rejects, None
    where it cannot be measured; ``rule`` says in words where the thresholds come from.
    """

    rate: float
    thresholds: tuple[float, ...]
    measured: float | None
    rule: str

    def rejects(self, likeness: np.ndarray, nearest: np.ndarray) -> np.ndarray:
        """Which likenesses to the nearest classes, ``(m,)`` each, are too small; bool ``(m,)``."""
        rejected: np.ndarray = likeness <= np.array(self.thresholds)[nearest]
        return rejected


def likeness_to(features: np.ndarray, support: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest cosine of features ``(m, d)`` to a support ``(n, d)``, and its row; ``(m,)`` each."""
    queries, targets = _unit(features), _unit(support)
    likeness = np.empty(len(queries))
    row = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), _CHUNK):
        cosines = queries[start : start + _CHUNK] @ targets.T
        row[start : start + _CHUNK] = cosines.argmax(axis=1)
        likeness[start : start + _CHUNK] = cosines.max(axis=1)
    return likeness, row


def likeness_within(support: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How alike the support ``(n, d)`` is, by the number of images that a class could have.

    Returns
    -------
    across : largest cosine of each image to one of another class, ``(n,)``.
    within : column m − 1 has the largest cosine to the next m images of the same class, in cyclic
        order and to no more than there are; ``(n, largest class − 1)``, −1 where there are none.
    """
    table = _unit(support)
    counts = np.bincount(labels)
    across = np.empty(len(table))
    for start in range(0, len(table), _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, len(table)))
        cosines = table[rows] @ table.T
        cosines[labels[rows][:, None] == labels] = -np.inf
        across[rows] = cosines.max(axis=1)
    within = np.full((len(table), max(int(counts.max()) - 1, 1)), -1.0)
    for number in range(len(counts)):
        rows = np.flatnonzero(labels == number)
        own = table[rows]
        for ahead in range(1, len(rows)):
            within[rows, ahead - 1] = (own * np.roll(own, -ahead, axis=0)).sum(axis=1)
    return across, np.maximum.accumulate(within, axis=1)


def fit_rejection(support: np.ndarray, labels: np.ndarray, rate: float) -> RejectionRule:
    """The rule for a tolerated false-alarm ``rate``, from support features ``(n, d)``.

    Only images of classes of two or more have likenesses to learn from. With at least 1/rate − 1
    of them a threshold is their quantile; with four or more, the lower prediction bound of a
    normal distribution (Student's t); with fewer, the mean likeness of a support image to the
    nearest one of *another* class, for which the false-alarm rate is not known.
    """
    check_rate(rate)
    across, within = likeness_within(support, labels)
    counts = np.bincount(labels)
    several = counts[labels] >= 2
    known = int(several.sum())
    if known < _FEWEST:
        return RejectionRule(
            rate,
            (float(across.mean()),) * len(counts),
            None,
            "the mean likeness of a support image to the nearest of another class; too few "
            "classes have two images, so the false-alarm rate is unknown",
        )
    threshold, alarms = {}, 0
    for size in np.unique(counts):
        column = min(int(size), within.shape[1]) - 1
        likeness = np.maximum(across, within[:, column])[several]
        threshold[size] = _threshold(likeness, rate)
        alarms += int((_alarms(likeness, rate) & (counts[labels][several] == size)).sum())
    kind = "quantile" if _is_enough(known, rate) else "prediction bound"
    return RejectionRule(
        rate,
        tuple(threshold[size] for size in counts),
        alarms / known,
        f"the {rate:.1%} {kind} of {known} likenesses within the support",
    )


def check_rate(rate: float) -> None:
    """Refuse what is no tolerable false-alarm rate."""
    if not 0 < rate < 1:
        raise UserError(f"expected a false-alarm rate between 0 and 1, found {rate}")


def _alarms(known: np.ndarray, rate: float) -> np.ndarray:
    """Which of the likenesses ``(n,)`` are rejected by the rule that the others make."""
    count = len(known)
    order = np.argsort(known, kind="stable")
    tried = count
    if _is_enough(count - 1, rate):
        # A quantile of the others lies among the smallest; only those, and ties, can be below it.
        reach = min(int(np.ceil(rate * count)) + 1, count - 1)
        tried = int(np.searchsorted(known[order], known[order[reach]], side="right"))
    alarms = np.zeros(count, dtype=bool)
    for row in order[:tried]:
        alarms[row] = known[row] <= _threshold(np.delete(known, row), rate)
    return alarms


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
    return float(known.mean() + stdtrit(count - 1, rate) * spread)


def _unit(features: np.ndarray) -> np.ndarray:
    return unit_length(np.asarray(features, dtype=np.float64))
