"""Newton's method for the logistic problems that a fixed curvature bound solves too slowly.

In the eigenvectors of the support's covariance the penalty stays ½‖W‖² and the bound on the
Hessian becomes diagonal, so conjugate gradients have a perfect preconditioner for the bound. All
problems of a batch go through the same operations.
"""

from __future__ import annotations

import torch
from torch import Tensor

_NEWTON_STEPS = 60
_HALVINGS = 30


def newton(
    gram: Tensor | None,
    primal: Tensor | None,
    y: Tensor,
    weights: Tensor,
    logits: Tensor,
    dual: Tensor,
    *,
    strength: float,
    intercept: bool,
    tol: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Finish problems from where another method stopped.

    Parameters
    ----------
    gram, primal : one of the Gram matrix ``(B, n, n)`` and the features ``(B, n, d)``, centred.
    y, weights : one-hot targets ``(B, n, K)`` and ``(B, n, 1)``, 0 for padding.
    logits, dual : ``(B, n, K)``, the start.

    Returns
    -------
    logits, dual, and the gradient of the mean objective ``(B,)``.
    """
    basis, to_dual = _reduce(gram, primal)
    squares = basis.square().sum(dim=1)[..., None]  # (B, r, 1) eigenvalues
    w = basis.mT @ dual
    count = weights.sum(dim=1, keepdim=True)
    offset = (weights * logits).sum(dim=1, keepdim=True) / count if intercept else 0.0 * y[:, :1]
    curvature_w = 1 + 0.5 * strength * squares
    curvature_b = 0.5 * strength * count
    state = _State(basis, y, weights, strength, intercept)
    value, slope_w, slope_b, p = state.evaluate(w, offset)
    for _ in range(_NEWTON_STEPS):
        gradient = _largest(slope_w, slope_b) / (strength * count.flatten())
        if bool((gradient <= tol).all()):
            break
        step_w, step_b = _conjugate_gradients(state, p, slope_w, slope_b, curvature_w, curvature_b)
        w, offset, value, slope_w, slope_b, p = _line_search(
            state, w, offset, step_w, step_b, value, slope_w, slope_b, p
        )
    gradient = _largest(slope_w, slope_b) / (strength * count.flatten())
    fitted = weights * (basis @ w + offset)
    # W = Xᵀ dual: in these coordinates w = basisᵀ dual, and dual lies in the span of the basis.
    return fitted, to_dual @ w, gradient


def _reduce(gram: Tensor | None, primal: Tensor | None) -> tuple[Tensor, Tensor]:
    """Features along their principal axes, ``(B, n, r)`` with r = min(n, d).

    Also the matrix of the same shape that turns weights there into dual coefficients.
    """
    if primal is None:
        assert gram is not None
        values, vectors = torch.linalg.eigh(gram)
        basis = vectors * values.clamp_min(0).sqrt()[:, None]
    else:
        values, vectors = torch.linalg.eigh(primal.mT @ primal)
        basis = primal @ vectors
    squares = values.clamp_min(0)[:, None]
    floor = squares.amax(dim=-1, keepdim=True) * 1e-14
    inverse = torch.where(squares > floor, 1 / squares.clamp_min(floor + 1e-300), 0.0)
    # A direction without extent carries no weight; what is left there is rounding.
    basis = torch.where(squares > floor, basis, 0.0)
    return basis, basis * inverse


class _State:
    """Objective, gradient and Hessian products of a batch, in reduced coordinates."""

    def __init__(
        self, basis: Tensor, y: Tensor, weights: Tensor, strength: float, intercept: bool
    ) -> None:
        self.basis = basis
        self.y = y
        self.weights = weights
        self.strength = strength
        self.intercept = 1.0 if intercept else 0.0

    def evaluate(self, w: Tensor, offset: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Objective ``(B,)``, gradients of w and offset, probabilities."""
        logits = self.basis @ w + offset
        log_p = torch.log_softmax(logits, dim=2)
        losses = -(self.y * log_p).sum(dim=(1, 2))
        p = log_p.exp()
        error = self.strength * self.weights * (p - self.y)
        value = self.strength * losses + 0.5 * w.square().sum(dim=(1, 2))
        slope_b = self.intercept * error.sum(dim=1, keepdim=True)
        return value, w + self.basis.mT @ error, slope_b, p

    def hessian(self, p: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Hessian times a direction."""
        moved = self.basis @ w + b
        pulled = p * (moved - (p * moved).sum(dim=2, keepdim=True))
        pulled = self.strength * self.weights * pulled
        return w + self.basis.mT @ pulled, self.intercept * pulled.sum(dim=1, keepdim=True)


def _conjugate_gradients(
    state: _State,
    p: Tensor,
    slope_w: Tensor,
    slope_b: Tensor,
    curvature_w: Tensor,
    curvature_b: Tensor,
) -> tuple[Tensor, Tensor]:
    """Newton's direction −H⁻¹ g, to a residual that shrinks with the gradient."""
    w, b = torch.zeros_like(slope_w), torch.zeros_like(slope_b)
    r_w, r_b = -slope_w, -slope_b
    start = _norm(r_w, r_b)
    wanted = start * torch.minimum(torch.full_like(start, 0.05), start.sqrt())
    z_w, z_b = r_w / curvature_w, r_b / curvature_b
    d_w, d_b = z_w, z_b
    product = _dot(r_w, r_b, z_w, z_b)
    limit = min(2 * (slope_w.shape[1] + 1) * slope_w.shape[2], 500)
    for _ in range(limit):
        open_ = _norm(r_w, r_b) > wanted
        if not bool(open_.any()):
            break
        h_w, h_b = state.hessian(p, d_w, d_b)
        bend = _dot(d_w, d_b, h_w, h_b)
        length = torch.where(open_ & (bend > 0), product / bend.clamp_min(1e-300), 0.0)
        w, b = w + length * d_w, b + length * d_b
        r_w, r_b = r_w - length * h_w, r_b - length * h_b
        z_w, z_b = r_w / curvature_w, r_b / curvature_b
        following = _dot(r_w, r_b, z_w, z_b)
        ratio = torch.where(open_, following / product.clamp_min(1e-300), 0.0)
        d_w, d_b = z_w + ratio * d_w, z_b + ratio * d_b
        product = torch.where(open_, following, product)
    return w, b


def _line_search(
    state: _State,
    w: Tensor,
    b: Tensor,
    step_w: Tensor,
    step_b: Tensor,
    value: Tensor,
    slope_w: Tensor,
    slope_b: Tensor,
    p: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Halve the step of each problem until its objective falls enough (Armijo)."""
    fall = _dot(slope_w, slope_b, step_w, step_b).flatten()
    # Near the optimum the fall drowns in rounding; a step is then judged by not rising.
    slack = 1e-13 * value.abs()
    length = torch.ones_like(value)
    taken = torch.zeros_like(value, dtype=torch.bool)
    best = (w, b, value, slope_w, slope_b, p)
    for _ in range(_HALVINGS):
        scale = length[:, None, None]
        trial_w, trial_b = w + scale * step_w, b + scale * step_b
        result = state.evaluate(trial_w, trial_b)
        good = ~taken & (result[0] <= value + 1e-4 * length * fall + slack)
        chosen = good[:, None, None]
        best = (
            torch.where(chosen, trial_w, best[0]),
            torch.where(chosen, trial_b, best[1]),
            torch.where(good, result[0], best[2]),
            torch.where(chosen, result[1], best[3]),
            torch.where(chosen, result[2], best[4]),
            torch.where(chosen, result[3], best[5]),
        )
        taken |= good
        if bool(taken.all()):
            break
        length = torch.where(taken, length, length / 2)
    return best


def _dot(a_w: Tensor, a_b: Tensor, b_w: Tensor, b_b: Tensor) -> Tensor:
    total = (a_w * b_w).sum(dim=(1, 2)) + (a_b * b_b).sum(dim=(1, 2))
    return total[:, None, None]


def _norm(w: Tensor, b: Tensor) -> Tensor:
    return _dot(w, b, w, b).sqrt()


def _largest(w: Tensor, b: Tensor) -> Tensor:
    """Euclidean length for the weights (no entry in any rotation is larger), largest for b."""
    return torch.maximum(w.flatten(1).norm(dim=1), b.flatten(1).abs().amax(dim=1))
