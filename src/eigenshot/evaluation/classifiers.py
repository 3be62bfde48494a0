"""Few-shot classifiers by name, each for a whole batch of tasks at once.

A classifier takes centred-or-not features of support ``(B, n, d)`` and queries ``(B, q, d)``,
with the labels ``(n,)`` that all tasks share, and gives scores ``(B, q, K)``; the largest wins.
Inductive ones judge every query on its own. Transductive ones see all queries of a task together,
which is another, easier problem, so they are marked and never compared unmarked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eigenshot.evaluation.logistic import centre, prepare, solve
from eigenshot.options import check_options, lookup, takes

Scores = Callable[..., Tensor]


@dataclass(frozen=True)
class Classifier:
    """A scoring function, whether it is transductive, and its options."""

    scores: Scores
    transductive: bool = False

    @property
    def has_strength(self) -> bool:
        """Whether it has a penalty, of inverse strength C."""
        return takes(self.scores, "C")


def logistic(
    support: Tensor, labels: Tensor, query: Tensor, *, C: float = 1.0, tol: float = 1e-5
) -> Tensor:
    """Regularised logistic regression, exact to ``tol`` (see `eigenshot.evaluation.logistic`)."""
    ways = int(labels.max()) + 1
    rows = labels.expand(len(support), -1)
    centred, mean = centre(support, rows, fit_intercept=True)
    # scikit-learn's binomial form for two classes is the softmax at half the C.
    problems = prepare(centred, rows, ways=ways, C=C / 2 if ways == 2 else C)
    solution = solve(problems, tol=tol)
    return _through_support(centred, mean, query, solution.dual) + solution.offset


def ridge(support: Tensor, labels: Tensor, query: Tensor, *, C: float = 1.0) -> Tensor:
    """Least squares onto one-hot targets, penalty ‖W‖²/(2C), intercept unpenalised."""
    rows = labels.expand(len(support), -1)
    centred, mean = centre(support, rows, fit_intercept=True)
    targets = torch.nn.functional.one_hot(labels).double()
    offset = targets.mean(dim=0)
    gram = (centred @ centred.mT).double()
    identity = torch.eye(len(labels), dtype=gram.dtype, device=gram.device)
    factor = torch.linalg.cholesky(gram + identity / (2 * C))
    dual = torch.cholesky_solve((targets - offset).expand(len(support), -1, -1), factor)
    return _through_support(centred, mean, query, dual) + offset


def _through_support(centred: Tensor, mean: Tensor, query: Tensor, dual: Tensor) -> Tensor:
    """(q − mean)ᵀ Xᵀ dual, through the K weight vectors, which are fewer than the support."""
    # One row a class: both factors are then read along their rows, three times as fast on a CPU.
    weights = dual.to(centred.dtype).mT @ centred
    return query @ weights.mT - mean @ weights.mT


def class_means(support: Tensor, labels: Tensor) -> Tensor:
    """Mean of each class, ``(B, K, d)``."""
    member = torch.nn.functional.one_hot(labels).to(support.dtype)
    return (member / member.sum(dim=0)).T @ support


def nearest_centroid(support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """Minus the squared Euclidean distance to the class means."""
    return -_squared_distances(query, class_means(support, labels))


def cosine(support: Tensor, labels: Tensor, query: Tensor) -> Tensor:
    """Cosine with the mean of the unit-length support of each class."""
    means = class_means(torch.nn.functional.normalize(support, dim=-1), labels)
    return (
        torch.nn.functional.normalize(query, dim=-1)
        @ torch.nn.functional.normalize(means, dim=-1).mT
    )


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """``(B, q, d)`` and ``(B, K, d)`` to ``(B, q, K)``."""
    return a.square().sum(-1)[..., None] - 2 * a @ b.mT + b.square().sum(-1)[:, None]


def optimal_transport(
    support: Tensor,
    labels: Tensor,
    query: Tensor,
    *,
    temperature: float = 0.1,
    rounds: int = 20,
    rate: float = 0.2,
    sinkhorn_rounds: int = 30,
) -> Tensor:
    """Transductive: queries are shared out evenly among the classes, centres move with them.

    In each round an entropic optimal transport (Sinkhorn) assigns the queries to the class
    centres with equal shares, and the centres move by ``rate`` towards the mean of the support and
    the queries assigned to them. It presumes as many queries of each class.
    """
    member = torch.nn.functional.one_hot(labels).to(support.dtype)
    centres = class_means(support, labels)
    plan = torch.zeros(*query.shape[:2], member.shape[1], dtype=query.dtype, device=query.device)
    for _ in range(rounds):
        plan = _sinkhorn(-_squared_distances(query, centres) / temperature, sinkhorn_rounds)
        weight = member.sum(dim=0)[:, None] + plan.sum(dim=1)[..., None]
        moved = (member.T @ support + plan.mT @ query) / weight
        centres = centres + rate * (moved - centres)
    return plan


def _sinkhorn(scores: Tensor, rounds: int) -> Tensor:
    """exp(scores) scaled to rows that sum to 1 and columns that sum to q/K."""
    logits = scores
    share = torch.log(torch.tensor(scores.shape[1] / scores.shape[2], dtype=scores.dtype))
    for _ in range(rounds):
        logits = logits - logits.logsumexp(dim=1, keepdim=True) + share
        logits = logits - logits.logsumexp(dim=2, keepdim=True)
    return logits.exp()


def laplacian_shot(
    support: Tensor,
    labels: Tensor,
    query: Tensor,
    *,
    temperature: float = 0.1,
    smoothness: float = 1.0,
    neighbours: int = 3,
    rounds: int = 20,
) -> Tensor:
    """Transductive: neighbouring queries should agree, on the graph that the theory is about.

    Minimises distance to the class centres plus ``smoothness`` times Tr(YᵀLY) of the assignments Y
    on the graph of each query's nearest ``neighbours``, by the usual bound: repeated softmax.
    """
    unary = -_squared_distances(query, class_means(support, labels)) / temperature
    among = -_squared_distances(query, query)
    among.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    count = min(neighbours, query.shape[1] - 1)
    nearest = among.topk(count, dim=2).indices
    graph = torch.zeros_like(among).scatter_(2, nearest, 1.0)
    graph = (graph + graph.mT) / 2
    assigned = unary.softmax(dim=2)
    for _ in range(rounds):
        assigned = (unary + smoothness * graph @ assigned).softmax(dim=2)
    return assigned


CLASSIFIERS: dict[str, Classifier] = {
    "logistic": Classifier(logistic),
    "ridge": Classifier(ridge),
    "nearest-centroid": Classifier(nearest_centroid),
    "cosine": Classifier(cosine),
    "optimal-transport": Classifier(optimal_transport, transductive=True),
    "laplacian-shot": Classifier(laplacian_shot, transductive=True),
}


def get_classifier(name: str, options: dict[str, Any]) -> tuple[Classifier, dict[str, Any]]:
    """The classifier called ``name`` and its checked options."""
    classifier = lookup(name, CLASSIFIERS, "classifier")
    supplied = ("support", "labels", "query")
    checked = check_options(f"classifier '{name}'", classifier.scores, options, supplied=supplied)
    return classifier, checked
