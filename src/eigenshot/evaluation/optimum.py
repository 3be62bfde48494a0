"""The optimum of a linear classifier on many features: one softmax problem, by L-BFGS.

`eigenshot.evaluation.logistic` solves many small problems at once; this is a single large one, of
which some rows are worked on at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional

from eigenshot.evaluation.logistic import NotConverged
from eigenshot.evaluation.tables import Split

_SAMPLE = 32_768  # rows that tell the covariance well enough for a preconditioner


def blocks_of(
    table: Tensor,
    dtype: torch.dtype = torch.float64,
    *,
    normalize: bool,
    chunk: int,
    device: torch.device | str,
) -> Iterator[Tensor]:
    """``(chunk, d)`` pieces of a table, converted and scaled one at a time; zero rows stay zero."""
    for rows in table.split(chunk):
        block = rows.to(device=device, dtype=dtype)
        yield functional.normalize(block, dim=1, eps=1e-30) if normalize else block


class _Reached(Exception):
    """The gradient is within its bound at this position: any such point will do."""


class Objective:
    """The mean loss as a function of preconditioned weights.

    The Hessian at zero is, for every class alike, the covariance of the features over K, plus the
    penalty. Where that is the identity L-BFGS takes several times fewer rounds: with ``factor``
    its Cholesky factor, V = factorᵀ W. Features are centred, so that the intercept hardly depends
    on W. The last ``coef`` ``(d, K)`` and ``intercept`` ``(K,)`` are for the features as they are.
    """

    def __init__(
        self, split: Split, penalty: float, blocks: Callable[..., Iterator[Tensor]]
    ) -> None:
        self.count, features = split.train.shape
        self.ways, self.penalty, self.evaluations = len(split.names), penalty, 0
        self.blocks, self.classes = partial(blocks, split.train), split.train_classes
        sums = [torch.cat([x.sum(dim=0), x.square().sum()[None]]) for x in self.blocks()]
        moments = torch.stack(sums).sum(dim=0) / self.count
        self.mean, self.length = moments[:-1], float(moments[-1].sqrt()) or 1.0
        sample, scatter = split.train[:: max(1, self.count // _SAMPLE)], torch.zeros(())
        for rows in blocks(sample):
            scatter = scatter + (rows - self.mean).T @ (rows - self.mean)
        hessian = scatter / (len(sample) * self.ways)
        # A preconditioner need not be exact, but its factor must exist.
        ridge = max(penalty, 1e-12 * float(hessian.diagonal().max()))
        self.factor = torch.linalg.cholesky(hessian + ridge * torch.eye(features).to(hessian))

    def __call__(
        self, position: np.ndarray, dtype: torch.dtype, goal: float
    ) -> tuple[float, np.ndarray]:
        """Value and gradient at ``position`` ``((d + 1) K,)`` in ``dtype``; raises `_Reached`."""
        self.evaluations += 1
        v = torch.from_numpy(position.reshape(-1, self.ways)).to(self.mean)
        self.coef = torch.linalg.solve_triangular(self.factor.T, v[:-1], upper=True)
        offset = v[-1] * self.ways**0.5
        self.intercept = offset - self.mean @ self.coef
        value = 0.5 * self.penalty * self.coef.square().sum()
        slope, slope_offset = self.penalty * self.coef, torch.zeros_like(offset)
        start = 0
        for rows in self.blocks(dtype):
            centred = rows - self.mean.to(dtype)
            truth = self.classes[start : start + len(rows), None]
            errors = torch.addmm(offset.to(dtype), centred, self.coef.to(dtype)).log_softmax(dim=1)
            value -= errors.gather(1, truth).sum(dtype=torch.float64) / self.count
            errors.exp_().scatter_add_(1, truth, -torch.ones_like(truth, dtype=dtype))
            slope += (centred.T @ errors) / self.count
            slope_offset += errors.sum(dim=0, dtype=torch.float64) / self.count
            start += len(rows)
        # Of features that are not centred, in units of their length.
        plain = (slope + self.mean[:, None] * slope_offset) / self.length
        self.gradient = float(torch.cat([plain, slope_offset[None]]).abs().max())
        if self.gradient <= goal:
            raise _Reached(position.copy())
        turned = torch.linalg.solve_triangular(self.factor, slope, upper=False)
        whole = torch.cat([turned, slope_offset[None] * self.ways**0.5])
        return float(value), whole.cpu().numpy().ravel()


def minimise(objective: Objective, tol: float, max_iterations: int) -> float:
    """Leave ``objective`` at its minimum, in float64, and return the gradient there."""
    position = np.zeros((len(objective.factor) + 1) * objective.ways)
    options = {"maxiter": max_iterations, "maxfun": 10 * max_iterations, "gtol": 0.0}
    # float32 is several times faster; it ends where its rounding drowns the progress.
    for dtype, options["ftol"] in ((torch.float32, 1e-9), (torch.float64, 0.0)):
        arguments = {"args": (dtype, tol), "jac": True, "method": "L-BFGS-B", "options": options}
        try:
            position = minimize(objective, position, **arguments).x
        except _Reached as reached:
            position = reached.args[0]
            if dtype is torch.float64:
                return objective.gradient
    raise NotConverged(
        f"linear evaluation stopped at a gradient of {objective.gradient:.1e} after "
        f"{objective.evaluations} evaluations, above tol={tol:.1e}; "
        "use a smaller C, a larger tol or a larger max_iterations"
    )
