"""The decorrelation methods as one family: identities that docs/methods.md states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from eigenshot.methods.dle import trace_loss
from eigenshot.methods.spectral_contrastive import attraction_loss, repulsion_loss
from eigenshot.methods.whitening import cholesky_whitened
from eigenshot.spectral import laplacian_eigenmaps

NODES, DIMENSIONS = 14, 3


def graph() -> np.ndarray:
    """Edges with small whole weights, so that a batch can hold each as often as it weighs."""
    weights = np.triu(np.random.default_rng(0).integers(0, 4, (NODES, NODES)), 1)
    return (weights + weights.T).astype(float)


def pairs(table: np.ndarray) -> tuple[Tensor, Tensor]:
    """Embeddings of the ends of all edges, each in both directions: the batch is the graph."""
    weights = graph()
    first, second = np.nonzero(weights)
    count = weights[first, second].astype(int)
    first, second = np.repeat(first, count), np.repeat(second, count)
    return torch.from_numpy(table[first]), torch.from_numpy(table[second])


def moments(z_a: Tensor, z_b: Tensor) -> Tensor:
    return z_a.T @ z_b / len(z_a)


def spectral_loss(table: np.ndarray) -> float:
    """−2 E[z·z⁺] + E[(z·z')²] over all pairs of the graph, a node with itself among them."""
    z_a, z_b = pairs(table)
    batch = len(z_a)
    own = (z_a * z_b).sum(dim=1).square().sum()
    independent = (batch * (batch - 1) * repulsion_loss(z_a, z_b) + own) / batch**2
    return (attraction_loss(z_a, z_b) + independent).item()


def test_the_trace_is_the_moments_of_each_view_less_those_of_both() -> None:
    z_a, z_b = pairs(np.random.default_rng(1).normal(size=(NODES, DIMENSIONS)))
    noise = torch.randn(z_a.shape, dtype=z_a.dtype, generator=torch.Generator().manual_seed(0))
    z_b = 2 * z_b + noise
    expected = moments(z_a, z_a).trace() + moments(z_b, z_b).trace() - 2 * moments(z_a, z_b).trace()
    torch.testing.assert_close(trace_loss(z_a, z_b, "sum"), expected)


def test_under_a_hard_constraint_only_the_cross_moments_are_left() -> None:
    table = np.random.default_rng(1).normal(size=(NODES, DIMENSIONS))
    z_a, z_b = (cholesky_whitened(z, 1e-12) for z in pairs(table))
    own = DIMENSIONS * (len(z_a) - 1) / len(z_a)  # whitening uses the unbiased covariance
    expected = 2 * own - 2 * moments(z_a, z_b).trace()
    torch.testing.assert_close(trace_loss(z_a, z_b, "sum"), expected)


def test_the_spectral_contrastive_loss_is_the_trace_with_a_soft_constraint_of_weight_one() -> None:
    for seed in range(3):
        table = np.random.default_rng(seed).normal(size=(NODES, DIMENSIONS))
        z_a, z_b = pairs(table)
        excess = moments(z_a, z_a) - torch.eye(DIMENSIONS, dtype=z_a.dtype)
        expected = trace_loss(z_a, z_b, "sum") + excess.square().sum() - DIMENSIONS
        assert spectral_loss(table) == pytest.approx(expected.item())


def test_its_optimum_has_the_eigenvectors_with_variances_one_less_the_eigenvalue() -> None:
    maps = laplacian_eigenmaps(graph(), DIMENSIONS, drop_first=False)
    shares = 1 - maps.eigenvalues
    assert (shares > 0).all()
    best = np.sqrt(graph().sum()) * maps.embedding * np.sqrt(shares)
    least = -(shares**2).sum()
    assert spectral_loss(best) == pytest.approx(least)
    generator = np.random.default_rng(0)
    for _ in range(50):
        assert spectral_loss(best + 0.05 * generator.normal(size=best.shape)) > least
