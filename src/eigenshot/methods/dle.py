"""Deep Laplacian eigenmaps: Algorithm 1 of the paper.

Two views of an image are neighbours in the similarity graph. The trace term pulls the embeddings
of neighbours together (Eq. 8, Eq. 12), the decorrelation term keeps the embedding's dimensions
orthogonal (Eq. 9), and the second view is mixed with another image's at a random layer.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from eigenshot.collective import gather_rows, sum_over_ranks, world_size
from eigenshot.errors import UserError
from eigenshot.methods.base import exact
from eigenshot.methods.mixing import Coefficients, Mix, Mixup
from eigenshot.methods.pairs import PairMethod
from eigenshot.networks import Backbone

Reduction = Literal["mean", "sum"]


def trace_loss(z_a: Tensor, z_b: Tensor, reduction: Reduction = "mean") -> Tensor:
    """Mean squared distance of neighbours (Eq. 8), a sample of Tr(ZᵀLZ).

    It is that of the rows given. Where several processes train together, each has its own share,
    whose mean over ranks is the term of the global batch.

    Parameters
    ----------
    z_a, z_b : ``(batch, K)``, row i of both belongs to one image.
    reduction : over the K dimensions; ``"mean"`` is Algorithm 1, ``"sum"`` is Eq. 8.
    """
    if z_a.shape != z_b.shape:
        raise UserError(
            f"expected z_a and z_b of one shape, found {tuple(z_a.shape)} and {tuple(z_b.shape)}"
        )
    with torch.autocast(device_type=z_a.device.type, enabled=False):
        squared = (exact(z_a) - exact(z_b)).square()
        return squared.mean() if reduction == "mean" else squared.sum(dim=1).mean()


def decorrelation_loss(z: Tensor, route: Literal["auto", "covariance", "gram"] = "auto") -> Tensor:
    """Sum of the squared off-diagonal entries of C = ZᵀZ / B (Eq. 9).

    ‖ZᵀZ‖_F = ‖ZZᵀ‖_F, so the sum is had from the K×K covariance or from the B×B Gram matrix;
    ``"auto"`` forms the smaller one. Value and gradient are the same.

    The batch of B samples is the global one: where several processes train together, the equal
    blocks of all. Every rank returns the same value.

    Parameters
    ----------
    z : ``(batch, K)``, this process's samples, each dimension of mean zero over the global batch.
    """
    if z.ndim != 2:
        raise UserError(f"expected embeddings of shape (batch, K), found {tuple(z.shape)}")
    batch, dimensions = len(z) * world_size(), z.shape[1]
    if route == "auto":
        route = "gram" if batch < dimensions else "covariance"
    with torch.autocast(device_type=z.device.type, enabled=False):
        z = exact(z)
        if route == "covariance":
            covariance = sum_over_ranks(z.T @ z) / batch
            return (covariance - torch.diag(covariance.diagonal())).square().sum()
        z = gather_rows(z)
        frobenius = (z @ z.T / batch).square().sum()  # Eq. 13
        diagonal = (z.square().sum(dim=0) / batch).square().sum()
        return frobenius - diagonal


class DeepLaplacianEigenmapsMethod(PairMethod):
    """The objective of the paper, L_trace + γ L_const, with interpolation (Algorithm 1).

    Parameters
    ----------
    backbone, projector : as in `Method`. The projector's output should be standardised.
    gamma : weight γ of the decorrelation term. Give this or `k_gamma`.
    k_gamma : the same weight in its natural scale: Kγ for the mean reduction (docs/theory.md), so
        that one value serves every K. 0.02 when neither is given.
    reduction : of the trace term over dimensions, ``"mean"`` or ``"sum"``.
    mixup, alpha, layers, coefficients : as in `MixingMethod`.
    decorrelate : ``"one"``, the clean view as in the paper; ``"both"``, the mean over the two
        branches; ``"none"``, the trace alone, which collapses.
    target : ``"paper"`` uses λz_i + (1−λ)z_j; ``"unit-variance"`` divides it by √(λ² + (1−λ)²),
        the deviation that a mixture of two uncorrelated standardised embeddings has.
    rotation, rotate_every : as in `PairMethod`.
    """

    capturable = True
    against_collapse = "a larger gamma or a lower learning rate usually helps"

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        gamma: float | None = None,
        k_gamma: float | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        mixup: Mixup = "manifold",
        alpha: float = 1.0,
        layers: tuple[int, ...] = (),
        coefficients: Coefficients = "batch",
        decorrelate: Literal["one", "both", "none"] = "one",
        target: Literal["paper", "unit-variance"] = "paper",
        rotation: float = 0.0,
        rotate_every: int = 2,
    ) -> None:
        super().__init__(
            backbone,
            projector,
            mixup=mixup,
            alpha=alpha,
            layers=layers,
            coefficients=coefficients,
            rotation=rotation,
            rotate_every=rotate_every,
        )
        if gamma is not None and k_gamma is not None:
            raise UserError("give either gamma or k_gamma, not both: k_gamma is K times gamma")
        for name, weight in (("gamma", gamma), ("k_gamma", k_gamma)):
            if weight is not None and weight < 0:
                raise UserError(f"{name} must not be negative, found {weight}")
        self.gamma = gamma
        self.k_gamma = 0.02 if gamma is None and k_gamma is None else k_gamma
        self.reduction: Reduction = reduction
        self.decorrelate = decorrelate
        self.target = target

    def weight(self, dimensions: int) -> float:
        """γ for embeddings of K = ``dimensions``, under the reduction in use."""
        if self.k_gamma is None:
            return float(self.gamma or 0.0)
        # The sum over dimensions is K times the mean, and so is the γ that balances it.
        return self.k_gamma / dimensions if self.reduction == "mean" else self.k_gamma

    def terms(self, z_a: Tensor, z_b: Tensor, mix: Mix | None) -> dict[str, Tensor]:
        """``{"loss", "trace", "decorrelation"}``, as of `PairMethod`.

        Of several processes ``trace`` is this rank's share and ``decorrelation`` is global.
        """
        trace = trace_loss(self._target(z_a, mix), z_b, self.reduction)
        if self.decorrelate == "none":
            return {
                "loss": trace,
                "trace": trace,
                "decorrelation": decorrelation_loss(z_a).detach(),
            }
        decorrelation = decorrelation_loss(z_a)
        if self.decorrelate == "both":
            decorrelation = (decorrelation + decorrelation_loss(z_b)) / 2
        loss = trace + self.weight(z_a.shape[1]) * decorrelation
        return {"loss": loss, "trace": trace, "decorrelation": decorrelation}

    def _target(self, z: Tensor, mix: Mix | None) -> Tensor:
        """What the mixed embedding should match: λ z_i + (1 − λ) z_j, Eq. 12."""
        if mix is None:
            return z
        mixed = mix(exact(z))
        if self.target == "paper":
            return mixed
        coefficient = mix.weight(mixed)
        return mixed / (coefficient.square() + (1 - coefficient).square()).sqrt()
