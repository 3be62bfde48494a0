"""Regularised logistic regression for thousands of small problems at once, to a stated gradient.

The objective is scikit-learn's: C Σ_i loss_i + ½‖W‖², the intercept unpenalised. The Hessian of
the softmax loss in the logits is at most ½ I (Böhning), so a ridge regression onto moved logits
lies above the objective and touches it: with Q the smoother of that ridge regression,

    F ← Q (F − 2 (P(F) − Y))

lowers the objective, and the intercept comes out exactly. Q is an n×n matrix of the support (or,
when there are more images than features, a product with a d×d factor), made once. With Nesterov's
momentum most few-shot problems end in about ten rounds. Those that do not (large C, separable
classes) are finished by Newton's method, whose systems are solved by conjugate gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from eigenshot.errors import UserError, check_positive, check_strength
from eigenshot.evaluation.newton import newton

_ROUNDS = 30  # of the accelerated iteration; what needs more is Newton's
_CHECK_EVERY = 3


class NotConverged(RuntimeError):
    """A problem did not reach the gradient tolerance. Never silently ignored."""


@dataclass(frozen=True)
class Problems:
    """A batch of prepared problems, in float64.

    Either ``gram`` ``(B, n, n)`` of the centred features, which is all that the dual needs, or
    the centred features ``primal`` ``(B, n, d)`` themselves, where n > d. Rows of padding are zero.
    ``targets`` is ``(B, n, K)``, one-hot; ``weights`` ``(B, n, 1)``, 0 for padding; ``strength``
    is C.
    """

    gram: Tensor | None
    primal: Tensor | None
    targets: Tensor
    weights: Tensor
    strength: float
    intercept: bool


@dataclass(frozen=True)
class Solutions:
    """Fitted logits of the support and their dual coefficients.

    ``logits`` and ``dual`` are ``(B, n, K)`` with W = Xᵀ dual; ``offset`` ``(B, 1, K)`` is the
    intercept for centred features; ``gradient`` ``(B,)`` the largest entry of the gradient of the
    mean objective, which is the objective divided by C n.
    """

    logits: Tensor
    dual: Tensor
    offset: Tensor
    gradient: Tensor


def solve(problems: Problems, *, tol: float) -> Solutions:
    """Solve every problem to a gradient of at most ``tol``, or raise `NotConverged`."""
    logits, dual, gradient = _accelerated(problems, _Smoother(problems), tol)
    hard = torch.nonzero(gradient > tol).flatten()
    if len(hard):
        logits[hard], dual[hard], gradient[hard] = newton(
            None if problems.gram is None else problems.gram[hard],
            None if problems.primal is None else problems.primal[hard],
            problems.targets[hard],
            problems.weights[hard],
            logits[hard],
            dual[hard],
            strength=problems.strength,
            intercept=problems.intercept,
            tol=tol,
        )
    worst = float(gradient.max())
    if not worst <= tol:
        failed = int((~(gradient <= tol)).sum())
        raise NotConverged(
            f"{failed} of {len(gradient)} problems stopped at a gradient of up to {worst:.1e}, "
            f"above tol={tol:.1e}; use a smaller C or a larger tol"
        )
    return Solutions(logits, dual, _offset(problems, logits), gradient)


class _Smoother:
    """F = Q T: the fitted values of the ridge regression that majorises the objective."""

    def __init__(self, problems: Problems) -> None:
        w, ridge = problems.weights, 2.0 / problems.strength
        self.gram, self.x, self.weights = problems.gram, problems.primal, w
        self.mean_of = w / w.sum(dim=1, keepdim=True) if problems.intercept else 0 * w
        inner = self.gram if self.gram is not None else _covariance(problems)
        identity = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
        factor, failed = torch.linalg.cholesky_ex(inner + ridge * identity)
        if bool(failed.any()):
            # A ridge below the rounding of the features; what this loses, Newton's method makes up.
            largest = inner.diagonal(dim1=1, dim2=2).amax(dim=1)[:, None, None]
            factor = torch.linalg.cholesky(inner + (ridge + 1e-12 * largest) * identity)
        self.matrix = torch.cholesky_inverse(factor)
        if self.gram is not None:
            # X (XᵀX + r)⁻¹ Xᵀ = I − r (XXᵀ + r)⁻¹; the constant is smoothed to itself.
            self.matrix = (identity - ridge * self.matrix) * w * w.mT + w * self.mean_of.mT

    def __call__(self, targets: Tensor) -> Tensor:
        if self.x is None:
            return self.matrix @ targets
        fitted = self.x @ (self.matrix @ (self.x.mT @ targets))
        return fitted + self.weights * (self.mean_of.mT @ targets)

    def gradient_norm(self, residual: Tensor) -> Tensor:
        """‖Xᵀ residual‖ of each problem, ``(B,)``."""
        if self.gram is not None:
            squared = (residual * (self.gram @ residual)).sum(dim=(1, 2))
            return squared.clamp_min(0).sqrt()
        assert self.x is not None
        return (self.x.mT @ residual).flatten(1).norm(dim=1)


def _covariance(problems: Problems) -> Tensor:
    assert problems.primal is not None
    return problems.primal.mT @ problems.primal


def _accelerated(
    problems: Problems, smooth: _Smoother, tol: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Majorise, minimise, and extrapolate; restarts the momentum where it points backwards."""
    y, w, strength = problems.targets, problems.weights, problems.strength
    count = w.sum(dim=(1, 2))
    logits = torch.zeros_like(y)
    ahead = logits
    momentum = torch.ones(len(y), 1, 1, dtype=y.dtype, device=y.device)
    for turn in range(1, _ROUNDS + 1):
        moved = ahead - 2 * (torch.softmax(ahead, dim=2) - y)
        fitted = smooth(moved)
        change = fitted - logits
        backwards = ((ahead - fitted) * change).sum(dim=(1, 2), keepdim=True) > 0
        following = torch.where(backwards, 1.0, (1 + (1 + 4 * momentum.square()).sqrt()) / 2)
        ahead = fitted + torch.where(backwards, 0.0, (momentum - 1) / following) * change
        logits, momentum = fitted, following
        if turn % _CHECK_EVERY == 0 or turn == _ROUNDS:
            dual = (strength / 2) * w * (moved - fitted)
            error = w * (torch.softmax(logits, dim=2) - y)
            slope = smooth.gradient_norm(dual + strength * error)
            if problems.intercept:
                slope = torch.maximum(slope, strength * error.sum(dim=1).abs().amax(dim=1))
            gradient = slope / (strength * count)
            if bool((gradient <= tol).all()):
                break
    return logits, dual, gradient


def _offset(problems: Problems, logits: Tensor) -> Tensor:
    """The intercept for centred features is the mean logit: centred features add nothing to it."""
    if not problems.intercept:
        return torch.zeros_like(logits[:, :1])
    w = problems.weights
    return (w * logits).sum(dim=1, keepdim=True) / w.sum(dim=1, keepdim=True)


def centre(support: Tensor, labels: Tensor, fit_intercept: bool) -> tuple[Tensor, Tensor]:
    """Features ``(B, n, d)`` less their mean ``(B, 1, d)``, and the mean; padding becomes zero."""
    weights = (labels >= 0).to(support.dtype)[..., None]
    mean = (weights * support).sum(dim=1, keepdim=True) / weights.sum(dim=1, keepdim=True)
    mean = mean if fit_intercept else torch.zeros_like(mean)
    return weights * (support - mean), mean


def prepare(
    centred: Tensor, labels: Tensor, *, ways: int, C: float, fit_intercept: bool = True
) -> Problems:
    """Problems in float64 from centred features ``(B, n, d)`` and labels ``(B, n)``."""
    weights = (labels >= 0).double()[..., None]
    targets = torch.nn.functional.one_hot(labels.clamp_min(0), ways) * weights
    in_dual = centred.shape[1] <= centred.shape[2]
    return Problems(
        (centred @ centred.mT).double() if in_dual else None,
        None if in_dual else centred.double(),
        targets,
        weights,
        float(C),
        fit_intercept,
    )


@dataclass(frozen=True)
class LogisticFit:
    """One fitted problem, or a batch with a leading axis B.

    ``coef`` is ``([B,] K, d)``, ``intercept`` ``([B,] K)``, ``gradient`` ``([B])``.
    """

    coef: Tensor
    intercept: Tensor
    gradient: Tensor

    def decision_function(self, features: Tensor | np.ndarray) -> Tensor:
        """Logits ``([B,] m, K)`` of features ``([B,] m, d)``."""
        x = torch.as_tensor(features).to(self.coef)
        if x.shape[-1] != self.coef.shape[-1]:
            raise UserError(
                f"expected features of width {self.coef.shape[-1]}, found {x.shape[-1]}"
            )
        if not bool(torch.isfinite(x).all()):
            raise UserError("the features hold NaN or infinity")
        return x @ self.coef.mT + self.intercept[..., None, :]

    def predict_proba(self, features: Tensor | np.ndarray) -> Tensor:
        """Probabilities ``([B,] m, K)``."""
        return self.decision_function(features).softmax(dim=-1)

    def predict(self, features: Tensor | np.ndarray) -> Tensor:
        """The most probable class ``([B,] m)``."""
        return self.decision_function(features).argmax(dim=-1)


def fit_logistic(
    support: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    *,
    C: float = 1.0,
    fit_intercept: bool = True,
    tol: float = 1e-6,
    binary: Literal["binomial", "multinomial"] = "binomial",
) -> LogisticFit:
    """L2-regularised logistic regression, one problem or a batch, to a stated gradient.

    Parameters
    ----------
    support : features ``(n, d)``, or ``(B, n, d)``.
    labels : ``(n,)`` or ``(B, n)``, whole numbers 0 … K−1; −1 marks rows of padding, so that
        problems of different sizes share a batch.
    C : inverse strength of the penalty ½‖W‖², as in scikit-learn; the intercept is not penalised.
    tol : bound on the gradient of the mean objective, met by every problem or `NotConverged`.
    binary : what two classes mean: scikit-learn's binomial form, or the softmax over both.
    """
    if np.asarray(labels).dtype.kind not in "iufb":
        raise UserError(f"labels must be whole numbers 0 … K−1, found {np.asarray(labels).dtype}")
    x, y = torch.as_tensor(support), torch.as_tensor(labels)
    single = x.ndim == 2
    if single:
        x, y = x[None], y[None]
    ways = _check(x, y, C, tol)
    # Softmax with weights ±w/2 is the logistic of w, with half the penalty: C/2 makes them equal.
    effective = C / 2 if ways == 2 and binary == "binomial" else C
    centred, mean = centre(x.double(), y, fit_intercept)
    problems = prepare(centred, y, ways=ways, C=effective, fit_intercept=fit_intercept)
    solution = solve(problems, tol=tol)
    coef = solution.dual.mT @ centred
    intercept = (solution.offset - mean @ coef.mT)[:, 0]
    if single:
        return LogisticFit(coef[0], intercept[0], solution.gradient[0])
    return LogisticFit(coef, intercept, solution.gradient)


def _check(x: Tensor, y: Tensor, C: float, tol: float) -> int:
    """The number of classes of a batch, or a sentence saying what is wrong with it."""
    if x.ndim != 3 or y.shape != x.shape[:2]:
        raise UserError(
            "expected features (n, d) or (batch, n, d) with labels of shape (n,) or (batch, n), "
            f"found {tuple(x.shape)} and {tuple(y.shape)}"
        )
    if y.is_floating_point() or y.dtype == torch.bool:
        raise UserError(f"labels must be whole numbers, found {y.dtype}")
    check_strength(C)
    check_positive(tol=tol)
    broken = torch.nonzero(~torch.isfinite(x).all(dim=2) & (y >= 0))
    if len(broken):
        shown = ", ".join(str(int(row[1])) for row in broken[:5])
        raise UserError(f"{len(broken)} feature rows hold NaN or infinity (rows {shown})")
    ways = int(y.max()) + 1
    if ways < 2:
        raise UserError("two classes at least are needed to tell apart, found one")
    present = torch.nn.functional.one_hot(y.clamp_min(0), ways) * (y >= 0)[..., None]
    empty = torch.nonzero(present.sum(dim=1) == 0)
    if len(empty):
        raise UserError(f"class {int(empty[0, 1])} has no support in problem {int(empty[0, 0])}")
    return ways
