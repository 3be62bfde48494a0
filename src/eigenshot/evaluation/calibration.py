"""Probabilities that mean what they say, from the support alone.

The support is judged by classifiers that did not see it. Leaving out a single image would make its
class the rarest one, and the unpenalised intercept answers to that: with a small C every held-out
image is then given to another class, however good the features are. So a part of *every* class is
left out at once, in proportion: with five images a class, the first of each, then the second of
each, and so on. All these problems are one batch.

Regularised logistic regression on few unit vectors is far from confident, and by how much depends
on C and on the number of images. Its logits are therefore measured in units of their own spread
over the support, which makes the held-out problems comparable with the full one, and one number,
the sharpness g, is chosen by held-out likelihood: p = softmax(g · logits / spread). In other
words, the temperature is spread / g.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import softmax

from eigenshot.errors import UserError
from eigenshot.evaluation.logistic import fit_logistic

MAX_PARTS = 10  # a class of more images is left out in tenths
DEFAULT_SHARPNESS = 3.0  # on unseen glyphs: 1.2 suits raw pixels, 5 a learned encoder
# The logarithm of the sharpness has a normal prior of this width about the default: it keeps a
# support without any held-out error from claiming certainty, and yields to a few dozen images.
_PRIOR_WIDTH = 1.0
# One label in fifty may be wrong: a mislabelled image must not make all the others unsure.
_WRONG_LABELS = 0.02
_CANDIDATES = np.geomspace(0.05, 200.0, 400)  # 2 % apart
_CHUNK_BYTES = 2**26


@dataclass(frozen=True)
class HeldOut:
    """Logits of support images by classifiers that did not see them.

    ``rows`` ``(m,)`` are the images judged: all of classes with two images or more. ``logits`` is
    ``(m, K)``, ``spread`` ``(m,)`` the spread of the logits of the classifier that judged, and
    ``parts`` the largest number of parts that a class was cut into.
    """

    rows: np.ndarray
    logits: np.ndarray
    spread: np.ndarray
    parts: int

    @property
    def scaled(self) -> np.ndarray:
        """Logits in units of their classifier's spread, ``(m, K)``."""
        scaled: np.ndarray = self.logits / self.spread[:, None]
        return scaled


def logit_spread(logits: np.ndarray) -> float:
    """Root mean square of logits ``(n, K)`` about their mean over the classes; never zero."""
    centred = logits - logits.mean(axis=1, keepdims=True)
    return max(float(np.sqrt(np.square(centred).mean())), 1e-12)


def hold_out(
    features: np.ndarray,
    labels: np.ndarray,
    *,
    C: float = 1.0,
    fit_intercept: bool = True,
    tol: float = 1e-6,
    balanced: bool = False,
    max_parts: int = MAX_PARTS,
) -> HeldOut:
    """Judge every support image by a classifier fitted without it.

    An image of a class of c images is left out together with a c-th part of every other class, so
    that the proportions of the classes stay; classes of one image are always kept and not judged.

    Parameters
    ----------
    features : ``(n, d)``.
    labels : ``(n,)``, whole numbers 0 … K−1, each of them present.
    balanced : whether all classes weigh the same, see `balance`.
    max_parts : the most parts a class is cut into.
    """
    counts = np.bincount(labels)
    rank = rank_within_class(labels)
    parts_of_image = np.minimum(counts, max_parts)[labels]
    logits = np.zeros((len(labels), len(counts)))
    spread = np.ones(len(labels))
    for parts in np.unique(parts_of_image[parts_of_image >= 2]):
        part = rank * parts // counts[labels]
        longest = len(counts) * int(counts.max()) if balanced else len(labels)
        chunk = _problems_at_once(longest, features.shape[1])
        for start in range(0, parts, chunk):
            chosen = np.arange(start, min(start + chunk, parts))
            kept = (part[None] != chosen[:, None]) | (counts[labels] == 1)
            rows, targets = _problems(labels, kept, balanced)
            fit = fit_logistic(
                torch.from_numpy(features)[torch.from_numpy(rows)],
                targets,
                C=C * balance(labels)[1] if balanced else C,
                fit_intercept=fit_intercept,
                tol=tol,
            )
            found = fit.decision_function(features).numpy()
            for index in range(len(chosen)):
                judged = ~kept[index] & (parts_of_image == parts)
                logits[judged] = found[index, judged]
                spread[judged] = logit_spread(found[index, kept[index]])
    rows = np.flatnonzero(parts_of_image >= 2)
    largest = int(parts_of_image.max()) if len(rows) else 0
    return HeldOut(rows, logits[rows], spread[rows], largest)


def balance(labels: np.ndarray) -> tuple[np.ndarray, float]:
    """Rows ``(K · largest,)`` in which every class is as frequent as the largest, and a factor.

    How many images of a class a person has at hand says nothing about how many are to come, but
    the intercept would believe it. So smaller classes are repeated, image after image, as often
    as the largest has images; C times the factor n / (K · largest) then is what C is for the n
    images themselves.
    """
    counts = np.bincount(labels)
    largest = int(counts.max())
    rows = [np.resize(np.flatnonzero(labels == number), largest) for number in range(len(counts))]
    return np.concatenate(rows), len(labels) / (len(counts) * largest)


def _problems(
    labels: np.ndarray, kept: np.ndarray, balanced: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Rows ``(B, m)`` of the images that each problem keeps, ``kept`` ``(B, n)``, and their labels.

    Shorter problems are padded with row 0 and label −1.
    """
    chosen = [np.flatnonzero(mask) for mask in kept]
    if balanced:
        chosen = [rows[balance(labels[rows])[0]] for rows in chosen]
    rows = np.zeros((len(kept), max(map(len, chosen))), dtype=np.int64)
    targets = np.full_like(rows, -1)
    for index, found in enumerate(chosen):
        rows[index, : len(found)] = found
        targets[index, : len(found)] = labels[found]
    return rows, targets


def rank_within_class(labels: np.ndarray) -> np.ndarray:
    """For each image, how many of its class come before it, ``(n,)``."""
    order = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[order], labels[order])
    rank = np.empty(len(labels), dtype=np.int64)
    rank[order] = np.arange(len(labels)) - first
    return rank


def _problems_at_once(images: int, width: int) -> int:
    """How many held-out problems fit the memory: features, their products and working copies."""
    return max(1, _CHUNK_BYTES // (8 * images * (3 * width + 3 * min(images, width))))


def choose_sharpness(scaled: np.ndarray, labels: np.ndarray) -> float:
    """The sharpness of largest likelihood and prior, for logits ``(m, K)`` in units of spread.

    Without any held-out image (m = 0) it is `DEFAULT_SHARPNESS`.
    """
    if not len(labels):
        return DEFAULT_SHARPNESS
    rows = np.arange(len(labels))
    doubt = _WRONG_LABELS / scaled.shape[1]
    costs = [
        -np.log(
            (1 - _WRONG_LABELS) * softmax(sharpness * scaled, axis=1)[rows, labels] + doubt
        ).sum()
        + 0.5 * (np.log(sharpness / DEFAULT_SHARPNESS) / _PRIOR_WIDTH) ** 2
        for sharpness in _CANDIDATES
    ]
    return float(_CANDIDATES[int(np.argmin(costs))])


def tempered(logits: np.ndarray, temperature: float | np.ndarray) -> np.ndarray:
    """Probabilities ``(m, K)`` of logits divided by a temperature, one or one a row ``(m, 1)``."""
    probabilities: np.ndarray = softmax(logits / temperature, axis=1)
    return probabilities


def expected_calibration_error(
    probabilities: np.ndarray, labels: np.ndarray, bins: int = 15
) -> float:
    """Mean distance of confidence and accuracy, over equal bins of confidence, in [0, 1].

    Parameters
    ----------
    probabilities : ``(m, K)``.
    labels : ``(m,)``, the true columns.
    bins : how many; a few images fill few of them, and the value is then too large by chance.
    """
    table, truth = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if table.ndim != 2 or truth.shape != (len(table),) or not len(table):
        raise UserError(
            "expected probabilities (m, K) and labels (m,) of at least one image, "
            f"found {table.shape} and {truth.shape}"
        )
    if bins < 1:
        raise UserError(f"expected at least one bin, found {bins}")
    confidence = table.max(axis=1)
    correct = table.argmax(axis=1) == truth
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    surplus = np.bincount(place, weights=confidence - correct, minlength=bins)
    return float(np.abs(surplus).sum() / len(table))


def wilson_interval(successes: int, trials: int, deviations: float = 1.96) -> tuple[float, float]:
    """Wilson's interval of a proportion, 95 % by default; within [0, 1] also for few trials."""
    if trials < 1 or not 0 <= successes <= trials:
        raise UserError(f"expected 0 to {trials} successes of 1 or more, found {successes}")
    share, squared = successes / trials, deviations**2
    middle = (share + squared / (2 * trials)) / (1 + squared / trials)
    half = (
        deviations
        * np.sqrt(share * (1 - share) / trials + squared / (4 * trials**2))
        / (1 + squared / trials)
    )
    return max(0.0, float(middle - half)), min(1.0, float(middle + half))
