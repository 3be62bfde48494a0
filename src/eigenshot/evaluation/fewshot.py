"""Few-shot accuracy of frozen features, over thousands of tasks in one batched computation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import stdtrit
from torch import Tensor

from eigenshot.errors import UserError, check_strength
from eigenshot.evaluation.classifiers import Classifier, get_classifier
from eigenshot.evaluation.episodes import Episodes, draw_episodes
from eigenshot.evaluation.sharded import put_together, share
from eigenshot.evaluation.tables import checked_features
from eigenshot.evaluation.transforms import Transform, transform_features

Interval = Literal["normal", "student"]
# Of gathered features: on a CPU larger pieces cost fresh pages, on a GPU smaller ones launches.
_CHUNK_BYTES = {"cpu": 24 * 2**20, "cuda": 2**30}


@dataclass(frozen=True)
class FewShotResult:
    """Accuracy over episodes, in percent, with the half-width of its 95 % interval.

    ``per_episode`` is ``(episodes,)``, in percent too.
    """

    accuracy: float
    ci95: float
    per_episode: np.ndarray
    ways: int
    shots: int
    queries: int
    classifier: str = "logistic"
    transductive: bool = False

    def __str__(self) -> str:
        marked = " (transductive)" if self.transductive else ""
        return f"{self.accuracy:.2f} ± {self.ci95:.2f} %{marked}"

    def summary(self) -> dict[str, float | int]:
        """What goes into a result file."""
        return {
            "accuracy": round(self.accuracy, 4),
            "ci95": round(self.ci95, 4),
            "episodes": len(self.per_episode),
        }


def evaluate_fewshot(
    features: np.ndarray | Tensor,
    labels: np.ndarray | Tensor,
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 15,
    episodes: int = 1000,
    C: float = 1.0,
    normalize: bool = True,
    seed: int = 0,
    classifier: str = "logistic",
    options: dict[str, Any] | None = None,
    transform: Transform | None = None,
    base_mean: np.ndarray | Tensor | None = None,
    support_views: np.ndarray | Tensor | None = None,
    interval: Interval = "normal",
    class_names: tuple[str, ...] = (),
    device: torch.device | str | None = None,
    together: bool = False,
) -> FewShotResult:
    """Accuracy of a small classifier over seeded few-shot episodes.

    Parameters
    ----------
    features : ``(N, d)``.
    labels : ``(N,)`` integers.
    ways, shots, queries : classes a task, and support and query images a class.
    C : inverse strength of the L2 penalty of ``logistic`` and ``ridge``, as in scikit-learn.
    normalize : scale every feature vector to unit length; `transform` overrides it.
    seed : of the episodes; the same seed gives the same tasks for every encoder.
    classifier : a name of `eigenshot.evaluation.classifiers.CLASSIFIERS`.
    options : further options of the classifier.
    transform : ``"none"``, ``"l2"``, ``"power"`` or ``"centre"``, the last with `base_mean`
        ``(d,)``, the mean feature of the training images.
    support_views : ``(N, k, d)``, features of k random views of each image; they join the support.
    interval : ``"normal"`` or ``"student"`` (Student's t, wider for few episodes).
    device : where to compute; by default where the features are.
    together : several processes call this at the same time with the same features. Each works on
        its share of the episodes; all return the result of all.

    Returns
    -------
    FewShotResult
        mean accuracy and the half-width of its 95 % interval, in percent.
    """
    table, targets = checked_features(features, labels)
    check_strength(C)
    check_interval(interval, episodes)
    chosen, checked = get_classifier(classifier, _with_strength(classifier, C, options))
    tasks = draw_episodes(
        targets,
        ways=ways,
        shots=shots,
        queries=queries,
        episodes=episodes,
        seed=seed,
        class_names=class_names,
    )
    if device is None and isinstance(features, Tensor):
        device = features.device
    prepared = _Prepared(
        table, transform or ("l2" if normalize else "none"), base_mean, support_views, device
    )
    per_episode = 100.0 * _accuracies(prepared, tasks, chosen, checked, together)
    return FewShotResult(
        accuracy=float(per_episode.mean()),
        ci95=half_width(per_episode, interval),
        per_episode=per_episode,
        ways=ways,
        shots=shots,
        queries=queries,
        classifier=classifier,
        transductive=chosen.transductive,
    )


def _with_strength(classifier: str, C: float, options: dict[str, Any] | None) -> dict[str, Any]:
    given = dict(options or {})
    return {"C": C, **given} if get_classifier(classifier, {})[0].has_strength else given


class _Prepared:
    """Transformed features on the device, ready to be gathered."""

    def __init__(
        self,
        table: np.ndarray,
        transform: Transform,
        base_mean: np.ndarray | Tensor | None,
        support_views: np.ndarray | Tensor | None,
        device: torch.device | str | None,
    ) -> None:
        # Sums over hundreds of features are exact enough in float32; small systems are float64.
        features = torch.as_tensor(table, device=device).float()
        mean = None if base_mean is None else torch.as_tensor(base_mean).to(features)
        self.features = transform_features(features, transform, mean)
        self.views: Tensor | None = None
        if support_views is not None:
            views = torch.as_tensor(support_views).to(features)
            if views.ndim != 3 or (views.shape[0], views.shape[2]) != tuple(features.shape):
                raise UserError(
                    f"expected support views of shape ({len(features)}, k, {features.shape[1]}), "
                    f"found {tuple(views.shape)}"
                )
            self.views = transform_features(views, transform, mean)

    def support(self, indices: Tensor) -> Tensor:
        """Features of the support ``(B, ways·shots)``, their views among them: ``(B, n, d)``."""
        plain = rows_of(self.features, indices)
        if self.views is None:
            return plain
        together = torch.cat([plain[:, :, None], self.views[indices]], dim=2)
        return together.flatten(1, 2)

    @property
    def copies(self) -> int:
        """Rows of support for one image."""
        return 1 if self.views is None else 1 + self.views.shape[1]


def rows_of(table: Tensor, indices: Tensor) -> Tensor:
    """``table[indices]`` for ``(N, d)`` and ``(B, n)``, twice as fast."""
    return table.index_select(0, indices.flatten()).view(*indices.shape, table.shape[1])


def _accuracies(
    prepared: _Prepared,
    tasks: Episodes,
    classifier: Classifier,
    options: dict[str, Any],
    together: bool,
) -> np.ndarray:
    """Share of right answers of each task, ``(episodes,)``; in chunks, so memory is bounded."""
    _, ways, shots = tasks.support.shape
    queries = tasks.query.shape[2]
    device = prepared.features.device
    rows = ways * (shots * prepared.copies + queries)
    chunk = max(1, _CHUNK_BYTES[device.type] // (4 * rows * prepared.features.shape[1]))
    labels = torch.arange(ways, device=device).repeat_interleave(shots * prepared.copies)
    answers = torch.arange(ways, device=device).repeat_interleave(queries)
    # Made first: small results kept between large pieces would leave the heap full of holes.
    shares = np.empty(len(tasks))
    own = share(len(tasks), chunk) if together else slice(0, len(tasks))
    for start in range(own.start, own.stop, chunk):
        part = slice(start, start + chunk)
        support = torch.from_numpy(tasks.support[part]).flatten(1).to(device)
        query = torch.from_numpy(tasks.query[part]).flatten(1).to(device)
        scores = classifier.scores(
            prepared.support(support), labels, rows_of(prepared.features, query), **options
        )
        shares[part] = (scores.argmax(dim=2) == answers).double().mean(dim=1).cpu().numpy()
    return put_together(shares[own], len(tasks), chunk, device=device) if together else shares


def check_interval(interval: str, episodes: int) -> None:
    """Refuse an interval that is not known, or that so few episodes do not have."""
    if interval not in ("normal", "student"):
        raise UserError(f"unknown interval '{interval}'; known: normal, student")
    if episodes < 2:
        raise UserError(f"an interval needs at least 2 episodes, found {episodes}")


def half_width(values: np.ndarray, interval: Interval = "normal") -> float:
    """Half the width of the 95 % interval of the mean of ``(n,)`` values."""
    check_interval(interval, len(values))
    factor = 1.96 if interval == "normal" else float(stdtrit(len(values) - 1, 0.975))
    return float(factor * values.std(ddof=1) / np.sqrt(len(values)))


def paired_difference(
    one: FewShotResult, other: FewShotResult, interval: Interval = "normal"
) -> tuple[float, float]:
    """Mean of ``one − other`` over the same episodes, and the half-width of its 95 % interval.

    On the same tasks most of the spread is common to both and cancels.
    """
    if one.per_episode.shape != other.per_episode.shape:
        raise UserError(
            "a paired difference needs the same episodes, found "
            f"{len(one.per_episode)} and {len(other.per_episode)}"
        )
    difference = one.per_episode - other.per_episode
    return float(difference.mean()), half_width(difference, interval)
