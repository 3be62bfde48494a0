"""Where deep meets exact: with a free table of embeddings the objective finds the eigenvectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from torch import Tensor, nn

from eigenshot import spectral
from eigenshot.methods import DeepLaplacianEigenmapsMethod
from eigenshot.networks import Backbone, Standardize

NODES = 14


class Table(nn.Module):
    """One free vector a node, in place of a network: node numbers ``(B, 1, 1, 1)`` to rows."""

    def __init__(self, nodes: int, dimensions: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        shape = (nodes, dimensions)
        self.rows = nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64))

    def forward(self, nodes: Tensor) -> Tensor:
        return self.rows[nodes.flatten().long()]


def irregular_graph() -> np.ndarray:
    """A connected graph with whole-number weights and very different degrees."""
    generator = np.random.default_rng(3)
    weights = np.triu(
        generator.integers(0, 4, (NODES, NODES)) * (generator.random((NODES, NODES)) < 0.3), 1
    )
    ring = np.roll(np.eye(NODES, dtype=int), 1, axis=1)
    weights = np.maximum(weights, ring)
    weights[0, 1:] += 2  # a hub
    weights = np.triu(weights + weights.T, 1)
    return (weights + weights.T).astype(float)


def minimise(graph: np.ndarray, dimensions: int, k_gamma: float) -> np.ndarray:
    """Embeddings ``(nodes, K)`` at the minimum of the very loss that trains networks.

    The batch is every ordered pair (i, j), as often as s_ij says. Its rows visit node i in
    proportion to d_i, so batch moments are weighted by degree, as ZᵀDZ = I asks.
    """
    table = Table(len(graph), dimensions)
    backbone = Backbone([table], out_features=dimensions, in_channels=1)
    standardize = Standardize(dimensions).double()
    method = DeepLaplacianEigenmapsMethod(backbone, standardize, k_gamma=k_gamma, mixup="none")
    first, second = np.nonzero(graph)
    copies = graph[first, second].astype(int)
    node_a = torch.from_numpy(np.repeat(first, copies)).double().reshape(-1, 1, 1, 1)
    node_b = torch.from_numpy(np.repeat(second, copies)).double().reshape(-1, 1, 1, 1)
    optimizer = torch.optim.LBFGS(
        [table.rows],
        max_iter=3000,
        history_size=50,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = method(node_a, node_b)["loss"]
        loss.backward()
        return loss

    optimizer.step(closure)
    z = standardize(table(node_a)).detach().numpy()
    embedding = np.empty((len(graph), dimensions))
    embedding[np.repeat(first, copies)] = z
    return embedding


@pytest.fixture(scope="module")
def graph() -> np.ndarray:
    return irregular_graph()


@pytest.mark.parametrize("dimensions", [2, 3, 4])
def test_the_objective_reaches_the_span_of_the_exact_eigenvectors(
    graph: np.ndarray, dimensions: int
) -> None:
    embedding = minimise(graph, dimensions, k_gamma=2.0)
    exact = spectral.laplacian_eigenmaps(graph, dimensions).embedding
    # Angles in the geometry of the graph: D^½ turns ZᵀDZ = I into orthonormal columns.
    root = np.sqrt(spectral.degrees(graph))[:, None]
    angles = np.degrees(subspace_angles(root * embedding, root * exact))
    assert angles.max() < 5


@pytest.mark.parametrize("k_gamma", [0.5, 1.0, 4.0])
def test_covariance_eigenvalues_follow_the_k_gamma_law(graph: np.ndarray, k_gamma: float) -> None:
    dimensions = 4
    embedding = minimise(graph, dimensions, k_gamma)
    eigenvalues = spectral.laplacian_eigenmaps(graph, dimensions).eigenvalues
    share = spectral.stationary_distribution(graph)[:, None]
    covariance = embedding.T @ (share * embedding)
    found = np.sort(np.linalg.eigvalsh(covariance))[::-1]
    predicted = 1 + (eigenvalues.mean() - eigenvalues) / k_gamma
    assert predicted.min() > 0  # Kγ is large enough for every direction to survive
    np.testing.assert_allclose(found, predicted, atol=1e-4)


def test_a_small_k_gamma_drops_the_last_directions(graph: np.ndarray) -> None:
    """All K directions survive only while Kγ exceeds λ_{K+1} − λ̄; below, variance is cut at 0."""
    dimensions, k_gamma = 4, 0.05
    eigenvalues = spectral.laplacian_eigenmaps(graph, dimensions).eigenvalues
    assert eigenvalues[-1] - eigenvalues.mean() > k_gamma
    embedding = minimise(graph, dimensions, k_gamma)
    share = spectral.stationary_distribution(graph)[:, None]
    found = np.sort(np.linalg.eigvalsh(embedding.T @ (share * embedding)))[::-1]
    # Water filling: the survivors share the variance K, the others have none.
    for survivors in range(dimensions, 0, -1):
        kept = eigenvalues[:survivors]
        level = (dimensions + kept.sum() / k_gamma) / survivors
        if level - kept[-1] / k_gamma > 0:
            break
    predicted = np.zeros(dimensions)
    predicted[:survivors] = level - kept / k_gamma
    assert survivors < dimensions
    np.testing.assert_allclose(found, predicted, atol=1e-3)


def test_uniform_weights_would_miss_the_eigenvectors(graph: np.ndarray) -> None:
    """The degree weighting matters: standardising every node once gives another subspace."""
    laplacian = np.diag(graph.sum(1)) - graph
    _, vectors = np.linalg.eigh(laplacian)
    exact = spectral.laplacian_eigenmaps(graph, 3).embedding
    root = np.sqrt(spectral.degrees(graph))[:, None]
    angles = np.degrees(subspace_angles(root * vectors[:, 1:4], root * exact))
    assert angles.max() > 5
