"""Nearest-neighbour accuracy: the quickest look at whether features carry classes."""

from __future__ import annotations

import numpy as np
import torch

from eigenshot.evaluation.fewshot import checked_features, unit_length


def leave_one_out_knn(
    features: np.ndarray | torch.Tensor,
    labels: np.ndarray | torch.Tensor,
    *,
    neighbours: int = 20,
    temperature: float = 0.1,
    chunk: int = 2048,
) -> float:
    """Percent of images whose class wins the vote of their nearest other images.

    Votes are weighted by exp(cosine / temperature). Works on ``chunk`` rows at a time, so memory
    grows with N and never with N².

    Parameters
    ----------
    features : ``(N, d)``.
    labels : ``(N,)`` integers.
    """
    table, targets = checked_features(features, labels)
    vectors = torch.from_numpy(unit_length(table)).float()
    classes = torch.from_numpy(np.unique(targets, return_inverse=True)[1].astype(np.int64))
    neighbours = min(neighbours, len(vectors) - 1)
    correct = 0
    for start in range(0, len(vectors), chunk):
        rows = torch.arange(start, min(start + chunk, len(vectors)))
        similarity = vectors[rows] @ vectors.T
        similarity[torch.arange(len(rows)), rows] = -torch.inf  # an image may not vote for itself
        nearest = similarity.topk(neighbours, dim=1)
        votes = torch.zeros(len(rows), int(classes.max()) + 1)
        votes.scatter_add_(1, classes[nearest.indices], (nearest.values / temperature).exp())
        correct += int((votes.argmax(dim=1) == classes[rows]).sum())
    return 100.0 * correct / len(vectors)
