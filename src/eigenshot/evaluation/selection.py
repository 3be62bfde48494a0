"""Settings chosen on validation classes, so that the test classes are looked at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenshot.evaluation.classifiers import get_classifier
from eigenshot.evaluation.fewshot import evaluate_fewshot
from eigenshot.evaluation.transforms import Transform

STRENGTHS = (0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class Selected:
    """The best settings, their accuracy on the validation classes, and all that was tried.

    ``tried`` maps (transform, C) to the accuracy in percent.
    """

    transform: Transform
    C: float
    accuracy: float
    tried: dict[tuple[Transform, float], float]

    def summary(self) -> dict[str, Any]:
        """What goes into a result file."""
        return {
            "C": self.C,
            "transform": self.transform,
            "validation_accuracy": round(self.accuracy, 4),
        }


def select_settings(
    features: np.ndarray | Tensor,
    labels: np.ndarray | Tensor,
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 15,
    episodes: int = 1000,
    seed: int = 0,
    classifier: str = "logistic",
    base_mean: np.ndarray | Tensor | None = None,
    strengths: tuple[float, ...] = STRENGTHS,
    class_names: tuple[str, ...] = (),
    device: torch.device | str | None = None,
    together: bool = False,
) -> Selected:
    """The transform and C with the best few-shot accuracy on validation classes.

    Every pair is tried on the same episodes. ``"centre"`` is among the transforms when the base
    mean is known. Classifiers without a C are tried once a transform.

    Parameters
    ----------
    features, labels : ``(N, d)`` and ``(N,)`` of validation classes, never of test classes.
    device, together : as `eigenshot.evaluation.fewshot.evaluate_fewshot` takes them.
    """
    transforms: list[Transform] = ["none", "l2", "power"]
    if base_mean is not None:
        transforms.append("centre")
    if not get_classifier(classifier, {})[0].has_strength:
        strengths = (1.0,)
    tried: dict[tuple[Transform, float], float] = {}
    for transform in transforms:
        for C in strengths:
            tried[transform, C] = evaluate_fewshot(
                features,
                labels,
                ways=ways,
                shots=shots,
                queries=queries,
                episodes=episodes,
                seed=seed,
                classifier=classifier,
                C=C,
                transform=transform,
                base_mean=base_mean,
                class_names=class_names,
                device=device,
                together=together,
            ).accuracy
    transform, C = max(tried, key=lambda pair: tried[pair])
    return Selected(transform, C, tried[transform, C], tried)
