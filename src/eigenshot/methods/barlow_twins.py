"""Barlow Twins: the cross-correlation of two views is pulled to the identity.

Zbontar, Jing, Misra, LeCun and Deny: Barlow Twins: Self-Supervised Learning via Redundancy
Reduction. ICML 2021. Equation numbers are that paper's.
"""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from eigenshot.collective import batch_mean, gather_rows, sum_over_ranks, world_size
from eigenshot.errors import UserError
from eigenshot.methods.base import exact
from eigenshot.methods.mixing import Mix, mixed
from eigenshot.methods.pairs import PairMethod, PairOptions, check_pair
from eigenshot.networks import Backbone

# Far below any real variance, as in `eigenshot.networks.projector.Standardize`.
_SMALLEST_VARIANCE = 1e-12


def standardise(z: Tensor) -> Tensor:
    """Mean zero and unit (biased) variance over the global batch, ``(batch, K)`` to the same."""
    centred = z - batch_mean(z, 0)
    return centred * torch.rsqrt(batch_mean(centred.square(), 0) + _SMALLEST_VARIANCE)


def cross_correlation_loss(
    z_a: Tensor, z_b: Tensor, route: Literal["auto", "covariance", "gram"] = "auto"
) -> tuple[Tensor, Tensor]:
    """The two terms of Eq. 1, Σ (1 − C_kk)² and Σ_{k≠l} C_kl², C being the correlation of Eq. 2.

    ‖Z_aᵀZ_b‖²_F = ⟨Z_aZ_aᵀ, Z_bZ_bᵀ⟩, so the sum over K×K entries is had from two B×B Gram matrices
    as well; ``"auto"`` takes the smaller way. Value and gradient are the same.

    The batch is the global one: where several processes train together, the equal blocks of all.
    Every rank returns the same values.

    Parameters
    ----------
    z_a, z_b : ``(batch, K)``, row i of both belongs to one image. They are standardised here.
    """
    check_pair(z_a, z_b)
    batch, dimensions = len(z_a) * world_size(), z_a.shape[1]
    if route == "auto":
        route = "gram" if batch < dimensions else "covariance"
    with torch.autocast(device_type=z_a.device.type, enabled=False):
        z_a, z_b = standardise(exact(z_a)), standardise(exact(z_b))
        diagonal = batch_mean(z_a * z_b, 0)
        invariance = (1 - diagonal).square().sum()
        if route == "covariance":
            correlation = sum_over_ranks(z_a.T @ z_b) / batch
            return invariance, (correlation - torch.diag(diagonal)).square().sum()
        z_a, z_b = gather_rows(z_a), gather_rows(z_b)
        frobenius = ((z_a @ z_a.T / batch) * (z_b @ z_b.T / batch)).sum()
        return invariance, frobenius - diagonal.square().sum()


class BarlowTwins(PairMethod):
    """Σ (1 − C_kk)² + λ Σ_{k≠l} C_kl² with C the cross-correlation of two views.

    It is Eq. 1 times ``scale``. The equation is a sum over dimensions, made for an optimiser that
    sets the length of each layer's step by itself (LARS). SGD does not, and wants a mean.

    What is mixed: the second view inside the network. It is correlated with the same mixture of the
    first view's embeddings, which is standardised like any embedding, so C can reach the identity.

    Parameters
    ----------
    backbone, projector : as in `Method`.
    weight : λ of the redundancy reduction term.
    scale : of the whole loss; 0 for 1/K, which makes the sum over dimensions a mean.
    others : options of `PairMethod`, and of `MixingMethod`.
    """

    capturable = True

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        weight: float = 0.005,
        scale: float = 0.0,
        **others: Unpack[PairOptions],
    ) -> None:
        super().__init__(backbone, projector, **others)
        if not weight >= 0:
            raise UserError(f"weight must not be negative, found {weight}")
        if not scale >= 0:
            raise UserError(f"scale must be positive, or 0 for 1/K, found {scale}")
        self.weight = weight
        self.scale = scale

    def terms(self, z_a: Tensor, z_b: Tensor, mix: Mix | None) -> dict[str, Tensor]:
        """``{"loss", "invariance", "redundancy"}`` of the global batch, as of `PairMethod`."""
        invariance, redundancy = cross_correlation_loss(mixed(exact(z_a), mix), z_b)
        return {
            "loss": (self.scale or 1 / z_a.shape[1]) * (invariance + self.weight * redundancy),
            "invariance": invariance,
            "redundancy": redundancy,
        }
