"""Whitening of a batch: a linear map after which the covariance is the identity.

Both ways run in a CUDA graph: a Cholesky factor that raises no error, and an inverse square root by
matrix products alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eigenshot.hardware import widest_float

_STEPS_AT_THE_END = 7  # from 1/2 to the last digit of float64, with quadratic convergence


def ridged(covariance: Tensor, ridge: float) -> Tensor:
    """A covariance ``(…, K, K)`` with ``ridge`` times its mean variance added to the diagonal.

    As a share of the variance the ridge is the same at every scale of the embeddings: shrinking
    them does not let it dominate.
    """
    dimensions = covariance.shape[-1]
    identity = torch.eye(dimensions, dtype=covariance.dtype, device=covariance.device)
    mean_variance = covariance.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    return covariance + ridge * mean_variance[..., None, None] * identity


def cholesky_whitened(x: Tensor, ridge: float) -> Tensor:
    """Rows ``(samples, K)`` made white by the inverse Cholesky factor of their covariance.

    The covariance is the unbiased one, and the rows are all the samples there are.
    """
    # A check of the outcome would wait for the device. In float64 rounding is far below the ridge,
    # so the factor exists; in float32 it would not for embeddings that lie near a line.
    wide = x.to(widest_float(x.device))
    centred = wide - wide.mean(dim=0)
    covariance = centred.T @ centred / (len(x) - 1)
    factor, _ = torch.linalg.cholesky_ex(ridged(covariance, ridge))
    whitened: Tensor = torch.linalg.solve_triangular(factor, centred.T, upper=False).T
    return whitened.to(x.dtype)


def inverse_square_root(matrices: Tensor, ridge: float) -> Tensor:
    """M^(−1/2) of symmetric positive ``(…, K, K)`` by coupled Newton–Schulz iteration.

    Y ← Y T and Z ← T Z with T = (3 I − Z Y) / 2 lead from Y = M and Z = I to M^(1/2) and M^(−1/2)
    if no eigenvalue of M exceeds 1. A small one grows by 9/4 in each step. ``ridge`` bounds the
    smallest from below, as a share of the mean one, and so determines the number of steps.
    """
    dimensions = matrices.shape[-1]
    identity = torch.eye(dimensions, dtype=matrices.dtype, device=matrices.device)
    scale = matrices.square().sum(dim=(-2, -1), keepdim=True).sqrt()
    y, z = matrices / scale, identity.expand_as(matrices)
    for _ in range(newton_schulz_steps(dimensions, ridge)):
        t = 1.5 * identity - 0.5 * (z @ y)
        y, z = y @ t, t @ z
    return z / scale.sqrt()


def newton_schulz_steps(dimensions: int, ridge: float) -> int:
    """Steps after which `inverse_square_root` has converged, whatever the matrix.

    The smallest eigenvalue is at least ``ridge`` / K of the trace, which bounds the scale.
    """
    smallest = min(ridge / dimensions, 0.5)
    return math.ceil(math.log(0.5 / smallest, 2.25)) + _STEPS_AT_THE_END
