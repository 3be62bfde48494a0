"""Whitening: the outcome is white, and both ways are those of an eigendecomposition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eigenshot.methods.whitening import (
    cholesky_whitened,
    inverse_square_root,
    newton_schulz_steps,
    ridged,
)


def correlated(samples: int, dimensions: int, decades: float = 2.0, seed: int = 0) -> Tensor:
    """Rows whose covariance has eigenvalues over so many decades, in no special directions."""
    generator = torch.Generator().manual_seed(seed)
    options = {"dtype": torch.float64, "generator": generator}
    x = torch.randn(samples, dimensions, **options)  # type: ignore[call-overload]
    square = torch.randn(dimensions, dimensions, **options)  # type: ignore[call-overload]
    rotation, _ = torch.linalg.qr(square)
    scales = torch.logspace(0, -decades / 2, dimensions, dtype=torch.float64)
    return 3 + x * scales @ rotation


def covariance(x: Tensor, *, biased: bool) -> Tensor:
    centred = x - x.mean(dim=0)
    return centred.T @ centred / (len(x) if biased else len(x) - 1)


def by_eigenvalues(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.rsqrt()) @ vectors.T


class TestRidge:
    def test_it_is_a_share_of_the_mean_variance_at_every_scale(self) -> None:
        matrix = covariance(correlated(40, 6), biased=True)
        added = ridged(matrix, 0.1) - matrix
        torch.testing.assert_close(added, 0.1 * matrix.trace() / 6 * torch.eye(6).double())
        torch.testing.assert_close(ridged(1e-8 * matrix, 0.1), 1e-8 * ridged(matrix, 0.1))

    def test_each_matrix_of_a_stack_has_its_own(self) -> None:
        stack = torch.stack([covariance(correlated(40, 6, seed=n), biased=True) for n in range(3)])
        torch.testing.assert_close(ridged(stack, 0.1)[1], ridged(stack[1], 0.1))


class TestCholesky:
    def test_the_outcome_is_white(self) -> None:
        white = cholesky_whitened(correlated(40, 8), 1e-12)
        torch.testing.assert_close(white.mean(dim=0), torch.zeros(8).double())
        torch.testing.assert_close(covariance(white, biased=False), torch.eye(8).double())

    def test_inner_products_are_those_of_every_whitening(self) -> None:
        """The rotation that is left open does not show: it is the Mahalanobis inner product."""
        x = correlated(40, 8)
        white = cholesky_whitened(x, 1e-12)
        zca = (x - x.mean(dim=0)) @ by_eigenvalues(covariance(x, biased=False))
        torch.testing.assert_close(white @ white.T, zca @ zca.T)

    def test_it_undoes_a_lower_triangular_map(self) -> None:
        """The factor of a mapped covariance is the mapped factor."""
        x = correlated(40, 8)
        triangle = correlated(8, 8, seed=1).tril(-1) + 2 * torch.eye(8).double()
        mapped = cholesky_whitened(x @ triangle.T, 1e-12)
        torch.testing.assert_close(mapped, cholesky_whitened(x, 1e-12))

    def test_gradient(self) -> None:
        x = correlated(12, 4).requires_grad_()
        torch.autograd.gradcheck(lambda rows: cholesky_whitened(rows, 1e-6), x)


class TestInverseSquareRoot:
    @pytest.mark.parametrize("decades", [0, 2, 4, 6])
    @pytest.mark.parametrize("dimensions", [1, 8, 48])
    def test_it_is_that_of_the_eigendecomposition(self, dimensions: int, decades: int) -> None:
        stack = torch.stack(
            [covariance(correlated(100, dimensions, decades, n), biased=True) for n in range(3)]
        )
        stack = ridged(stack, 1e-5)
        roots = inverse_square_root(stack, 1e-5)
        for root, matrix in zip(roots, stack, strict=True):
            torch.testing.assert_close(root, by_eigenvalues(matrix), rtol=1e-8, atol=1e-8)

    def test_directions_without_any_variance_are_no_obstacle(self) -> None:
        singular = ridged(covariance(correlated(5, 16), biased=True), 1e-5)
        root = inverse_square_root(singular, 1e-5)
        torch.testing.assert_close(root @ singular @ root, torch.eye(16).double())

    def test_in_float32_it_is_orthogonal_to_1e_5(self) -> None:
        x = correlated(256, 16).float()
        matrix = ridged(covariance(x, biased=True), 1e-5)
        root = inverse_square_root(matrix, 1e-5)
        torch.testing.assert_close(root @ matrix @ root, torch.eye(16), rtol=0, atol=1e-5)

    def test_gradient_is_that_of_the_eigendecomposition(self) -> None:
        weights = correlated(8, 8, seed=1)
        slopes = []
        for root in (lambda m: inverse_square_root(m, 1e-5), by_eigenvalues):
            matrix = ridged(covariance(correlated(40, 8), biased=True), 1e-5).requires_grad_()
            (root(matrix + matrix.T) * (weights + weights.T)).sum().backward()
            assert matrix.grad is not None
            slopes.append(matrix.grad)
        torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-7, atol=1e-9)

    def test_gradient_in_float32_is_near_that_in_float64(self) -> None:
        slopes = []
        for dtype in (torch.float32, torch.float64):
            matrix = ridged(covariance(correlated(256, 16), biased=True), 1e-5).to(dtype)
            matrix.requires_grad_()
            inverse_square_root(matrix, 1e-5).diagonal().sum().backward()
            assert matrix.grad is not None
            slopes.append(matrix.grad.double())
        assert (slopes[0] - slopes[1]).norm() < 1e-4 * slopes[1].norm()

    def test_a_smaller_ridge_or_more_dimensions_take_more_steps(self) -> None:
        assert newton_schulz_steps(16, 1e-5) == 24
        assert newton_schulz_steps(16, 1e-7) > newton_schulz_steps(16, 1e-5)
        assert newton_schulz_steps(64, 1e-5) > newton_schulz_steps(16, 1e-5)


@pytest.mark.parametrize("noise", [0.0, 1e-4, 1e-3])
def test_float32_embeddings_near_a_line_are_whitened_without_an_error(noise: float) -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        line = torch.randn(128, 1, generator=generator) @ torch.randn(1, 64, generator=generator)
        x = line + noise * torch.randn(128, 64, generator=generator)
        white = cholesky_whitened(x, 1e-6)
        assert white.dtype == torch.float32
        assert bool(torch.isfinite(white).all())
