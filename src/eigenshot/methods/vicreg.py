"""VICReg: views agree, every dimension keeps its variance, dimensions are uncorrelated.

Bardes, Ponce and LeCun: VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised
Learning. ICLR 2022. Equation numbers are that paper's.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from eigenshot.collective import batch_mean, world_size
from eigenshot.errors import UserError, check_positive
from eigenshot.methods.base import exact
from eigenshot.methods.dle import decorrelation_loss, trace_loss
from eigenshot.methods.mixing import Mix, mixed
from eigenshot.methods.pairs import PairMethod, PairOptions
from eigenshot.networks import Backbone


def variance_loss(z: Tensor, eps: float = 1e-4) -> Tensor:
    """How far standard deviations are below 1, mean max(0, 1 − √(Var + eps)) (Eq. 1, Eq. 2).

    The variance is the unbiased one of the global batch. Every rank returns the same value.

    Parameters
    ----------
    z : ``(batch, K)``, this process's samples.
    """
    samples = _samples(z)
    with torch.autocast(device_type=z.device.type, enabled=False):
        z = exact(z)
        variance = batch_mean((z - batch_mean(z, 0)).square(), 0) * (samples / (samples - 1))
        return torch.relu(1 - (variance + eps).sqrt()).mean()


def covariance_loss(z: Tensor) -> Tensor:
    """Squared off-diagonal entries of the unbiased covariance, summed over K (Eq. 3, Eq. 4).

    The covariance is that of the global batch. Every rank returns the same value.

    Parameters
    ----------
    z : ``(batch, K)``, this process's samples.
    """
    samples = _samples(z)
    with torch.autocast(device_type=z.device.type, enabled=False):
        z = exact(z)
        biased = decorrelation_loss(z - batch_mean(z, 0))
        return biased * (samples / (samples - 1)) ** 2 / z.shape[1]


def _samples(z: Tensor) -> int:
    """The size of the global batch, of which there must be a variance."""
    if z.ndim != 2:
        raise UserError(f"expected embeddings of shape (batch, K), found {tuple(z.shape)}")
    samples = len(z) * world_size()
    if samples < 2:
        raise UserError(
            f"expected at least 2 samples for a variance, found {samples}; raise the batch size"
        )
    return samples


class VICReg(PairMethod):
    """Weighted sum of an invariance, a variance and a covariance term (Eq. 6).

    The terms are those of the paper's Algorithm 1: the invariance is a mean over batch and
    dimensions, where Eq. 5 sums over dimensions, for the weights belong to the mean; variance and
    covariance are summed over the two views. The authors' program takes the mean of the two
    variances, so that its weight of 25 is 12.5 here.

    What is mixed: the second view inside the network. Its embeddings are compared with the same
    mixture of the first view's. Both branches are regularised as they are.

    Parameters
    ----------
    backbone, projector : as in `Method`.
    invariance, variance, covariance : the weights λ, μ and ν of the terms.
    eps : what is added to a variance under the root.
    scale : of the whole loss. The weights were made for an optimiser that sets the length of each
        layer's step by itself (LARS); with SGD 1/25 lets the invariance term count as it is.
    others : options of `PairMethod`, and of `MixingMethod`.
    """

    capturable = True

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        invariance: float = 25.0,
        variance: float = 25.0,
        covariance: float = 1.0,
        eps: float = 1e-4,
        scale: float = 0.04,
        **others: Unpack[PairOptions],
    ) -> None:
        super().__init__(backbone, projector, **others)
        weights = {"invariance": invariance, "variance": variance, "covariance": covariance}
        for name, weight in weights.items():
            if not weight >= 0:
                raise UserError(f"{name} must not be negative, found {weight}")
        check_positive(eps=eps, scale=scale)
        self.weights = weights
        self.eps = eps
        self.scale = scale

    def terms(self, z_a: Tensor, z_b: Tensor, mix: Mix | None) -> dict[str, Tensor]:
        """``{"loss", "invariance", "variance", "covariance"}``, as of `PairMethod`.

        Of several processes ``invariance`` is this rank's share and the other two are global.
        """
        terms = {
            "invariance": trace_loss(mixed(exact(z_a), mix), z_b),
            "variance": variance_loss(z_a, self.eps) + variance_loss(z_b, self.eps),
            "covariance": covariance_loss(z_a) + covariance_loss(z_b),
        }
        weighted = [self.weights[name] * term for name, term in terms.items()]
        return {"loss": self.scale * torch.stack(weighted).sum(), **terms}
