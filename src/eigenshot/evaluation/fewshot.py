"""Few-shot accuracy of frozen features: a small classifier a task, over many tasks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from eigenshot.errors import UserError
from eigenshot.evaluation.episodes import draw_episodes


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

    def __str__(self) -> str:
        return f"{self.accuracy:.2f} ± {self.ci95:.2f} %"

    def summary(self) -> dict[str, float | int]:
        """What goes into a result file."""
        return {
            "accuracy": round(self.accuracy, 4),
            "ci95": round(self.ci95, 4),
            "episodes": len(self.per_episode),
        }


def evaluate_fewshot(
    features: np.ndarray | torch.Tensor,
    labels: np.ndarray | torch.Tensor,
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 15,
    episodes: int = 1000,
    C: float = 1.0,
    normalize: bool = True,
    seed: int = 0,
    class_names: tuple[str, ...] = (),
) -> FewShotResult:
    """Accuracy of regularised logistic regression over seeded few-shot episodes.

    Parameters
    ----------
    features : ``(N, d)``.
    labels : ``(N,)`` integers.
    ways, shots, queries : classes a task, and support and query images a class.
    C : inverse strength of the L2 penalty, as in scikit-learn.
    normalize : scale every feature vector to unit length first.
    seed : of the episodes; the same seed gives the same tasks for every encoder.

    Returns
    -------
    FewShotResult
        mean accuracy and the half-width of its normal 95 % interval, in percent.
    """
    table, targets = checked_features(features, labels)
    if not C > 0:
        raise UserError(f"C must be positive, found {C}")
    if normalize:
        table = unit_length(table)
    tasks = draw_episodes(
        targets,
        ways=ways,
        shots=shots,
        queries=queries,
        episodes=episodes,
        seed=seed,
        class_names=class_names,
    )
    per_episode = np.empty(episodes)
    for index in range(episodes):
        predicted = classify_episode(table, tasks.support[index], tasks.query[index], C=C)
        per_episode[index] = 100.0 * np.mean(predicted == np.arange(ways)[:, None])
    spread = per_episode.std(ddof=1) if episodes > 1 else 0.0
    return FewShotResult(
        accuracy=float(per_episode.mean()),
        ci95=float(1.96 * spread / np.sqrt(episodes)),
        per_episode=per_episode,
        ways=ways,
        shots=shots,
        queries=queries,
    )


def classify_episode(
    features: np.ndarray, support: np.ndarray, query: np.ndarray, *, C: float = 1.0
) -> np.ndarray:
    """Predicted class of every query of one task, ``(ways, queries)``.

    Parameters
    ----------
    features : ``(N, d)``.
    support, query : indices ``(ways, shots)`` and ``(ways, queries)``.
    """
    ways, shots = support.shape
    classifier = LogisticRegression(C=C, max_iter=1000)
    classifier.fit(features[support.ravel()], np.repeat(np.arange(ways), shots))
    predicted: np.ndarray = classifier.predict(features[query.ravel()])
    return predicted.reshape(query.shape)


def unit_length(features: np.ndarray) -> np.ndarray:
    """Every row divided by its Euclidean length; a zero row stays zero. Shape ``(N, d)``."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(lengths > 0, lengths, 1.0)


def checked_features(
    features: np.ndarray | torch.Tensor, labels: np.ndarray | torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Features as float64 ``(N, d)`` and labels as int64 ``(N,)``, or a sentence saying why not."""
    table = np.asarray(_on_host(features), dtype=np.float64)
    targets = np.asarray(_on_host(labels))
    if table.ndim != 2:
        raise UserError(f"features must have shape (N, d), found {table.shape}")
    if targets.shape != (len(table),):
        raise UserError(
            f"labels must have shape ({len(table)},) to match the features, found {targets.shape}"
        )
    if not np.issubdtype(targets.dtype, np.integer):
        raise UserError(f"labels must be integers, found {targets.dtype}")
    broken = np.flatnonzero(~np.isfinite(table).all(axis=1))
    if len(broken):
        shown = ", ".join(str(row) for row in broken[:5]) + (" …" if len(broken) > 5 else "")
        raise UserError(f"{len(broken)} feature rows are not finite (rows {shown})")
    return table, targets.astype(np.int64)


def _on_host(values: np.ndarray | torch.Tensor) -> np.ndarray:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
