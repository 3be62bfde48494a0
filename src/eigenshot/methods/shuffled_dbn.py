"""Shuffled-DBN: the head ends in whitening of random groups of dimensions, and views are aligned.

Hua, Wang, Xue, Ren, Wang and Zhao: On Feature Decorrelation in Self-Supervised Learning. ICCV 2021.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from eigenshot.collective import batch_mean, sum_over_ranks, world_size
from eigenshot.errors import UserError
from eigenshot.methods.base import Interpolation, exact
from eigenshot.methods.dle import trace_loss
from eigenshot.methods.heads import embedding_length
from eigenshot.methods.mixing import Mix, MixingMethod, MixingOptions, mixed
from eigenshot.methods.whitening import inverse_square_root, ridged
from eigenshot.networks import Backbone


@dataclass(frozen=True)
class Shuffle:
    """One step's order of dimensions for each view, ``(2, K)``."""

    orders: Tensor

    def to(self, device: torch.device) -> Self:
        """The same orders on ``device``."""
        return replace(self, orders=self.orders.to(device))

    def part(self, index: int, count: int) -> Self:
        """The orders of one part of a batch: those of all."""
        return self


@dataclass(frozen=True)
class ShuffledMix(Mix):
    """One batch's interpolation together with the orders of dimensions, ``(2, K)``."""

    orders: Tensor

    def to(self, device: torch.device) -> Self:
        """The same with all tensors on ``device``."""
        return replace(super().to(device), orders=self.orders.to(device))


def decorrelated(z: Tensor, order: Tensor, group_size: int, ridge: float) -> Tensor:
    """Decorrelated batch normalisation: dimensions white among those of their group.

    The whitening is ZCA, x ↦ Σ^(−1/2) (x − mean), with the biased covariance Σ of the global batch.

    Parameters
    ----------
    z : ``(batch, K)``, this process's samples.
    order : ``(K,)``, a permutation; each ``group_size`` dimensions in this order are a group.
    ridge : what is added to every variance, as a share of the group's mean variance.

    Returns
    -------
    ``(batch, K)``, with the dimensions in the places they had.
    """
    samples = len(z) * world_size()
    if samples <= group_size:
        raise UserError(
            f"whitening needs more samples than dimensions, found a batch of {samples} and groups "
            f"of {group_size} dimensions; raise training.batch_size or lower group_size"
        )
    with torch.autocast(device_type=z.device.type, enabled=False):
        groups = exact(z).index_select(1, order).unflatten(1, (-1, group_size)).transpose(0, 1)
        centred = groups - batch_mean(groups, 1).unsqueeze(1)
        covariance = sum_over_ranks(centred.transpose(1, 2) @ centred) / samples
        white = centred @ inverse_square_root(ridged(covariance, ridge), ridge)
        shuffled = white.transpose(0, 1).flatten(1)
        return torch.zeros_like(shuffled).index_copy(1, order, shuffled)


class ShuffledDBN(MixingMethod):
    """The squared distance of two views whose embeddings are white in groups of dimensions.

    Which dimensions make a group is drawn anew at every step and for each view, so that in the long
    run all pairs of dimensions are decorrelated while the groups stay far smaller than the batch.

    The whitening ends the head in training only: `embed`, which diagnostics look at, is the
    projector without it.

    What is mixed: the second view inside the network. Once white, it is compared with the same
    mixture of the first view's white embeddings.

    Parameters
    ----------
    backbone, projector : as in `Method`. The projector knows the length of an embedding as
        ``out_features``.
    group_size : the number of dimensions that are whitened together; it divides the length of an
        embedding. A shorter embedding is one group.
    ridge : what is added to every variance before the root is taken, as a share of their mean.
    mixing : options of `MixingMethod`.
    """

    capturable = True

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        group_size: int = 16,
        ridge: float = 1e-5,
        **mixing: Unpack[MixingOptions],
    ) -> None:
        super().__init__(backbone, projector, **mixing)
        if group_size < 1:
            raise UserError(f"group_size must be at least 1, found {group_size}")
        if not ridge > 0:
            raise UserError(f"ridge must be positive, found {ridge}")
        self.dimensions = embedding_length(projector)
        self.group_size = min(group_size, self.dimensions)
        if self.dimensions % self.group_size:
            raise UserError(
                f"group_size must divide the {self.dimensions} dimensions of an embedding, "
                f"found {group_size}"
            )
        self.ridge = ridge

    def draw(  # type: ignore[override]
        self, batch_size: int, generator: np.random.Generator, blocks: int = 1
    ) -> Shuffle | ShuffledMix:
        """The orders of dimensions, alike on all ranks, and the mix if there is one."""
        # Before the mix, which draws as many permutations as there are ranks.
        drawn = np.stack([generator.permutation(self.dimensions) for _ in range(2)])
        orders = torch.from_numpy(drawn)
        mix = super().draw(batch_size, generator, blocks)
        if mix is None:
            return Shuffle(orders)
        return ShuffledMix(mix.layer, mix.coefficient, mix.permutation, orders)

    def embed_pair(
        self,
        view_a: Tensor,
        view_b: Tensor,
        mix: Interpolation | Shuffle | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As of `Method`; an order of dimensions is no interpolation."""
        return super().embed_pair(view_a, view_b, None if isinstance(mix, Shuffle) else mix)

    def forward(
        self, view_a: Tensor, view_b: Tensor, drawn: Shuffle | Mix | None = None
    ) -> dict[str, Tensor]:
        """Loss of a batch of positive pairs.

        Parameters
        ----------
        view_a, view_b : ``(batch, C, H, W)``, two views of the same images.
        drawn : the orders of dimensions, and the interpolation of `view_b` if there is one. Without
            orders neighbouring dimensions are a group.

        Returns
        -------
        ``{"loss"}``, a scalar. Where several processes train together it is this rank's share,
        whose mean over ranks is the loss of the global batch.
        """
        return self._terms(*self.embed_pair(view_a, view_b, drawn), drawn)

    def objective(
        self, rows_a: Tensor, rows_b: Tensor, drawn: Shuffle | Mix | None = None
    ) -> dict[str, Tensor]:
        """The loss, as of `forward`, from the rows of `represent`, each ``(batch, K)``."""
        return self._terms(self.standardised(rows_a), self.standardised(rows_b), drawn)

    def _terms(self, z_a: Tensor, z_b: Tensor, drawn: Shuffle | Mix | None) -> dict[str, Tensor]:
        if isinstance(drawn, Shuffle | ShuffledMix):
            orders = drawn.orders
        else:
            orders = torch.arange(self.dimensions, device=z_a.device).expand(2, -1)
        white_a, white_b = (
            decorrelated(z, order, self.group_size, self.ridge)
            for z, order in zip((z_a, z_b), orders, strict=True)
        )
        mix = drawn if isinstance(drawn, Mix) else None
        return {"loss": trace_loss(mixed(white_a, mix), white_b, "sum")}
