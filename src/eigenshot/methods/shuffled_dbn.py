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
from eigenshot.errors import UserError, check_positive
from eigenshot.methods.base import Interpolation, exact
from eigenshot.methods.dle import trace_loss
from eigenshot.methods.heads import embedding_length
from eigenshot.methods.mixing import Mix, mixed
from eigenshot.methods.pairs import PairMethod, PairOptions
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
            f"of {group_size} dimensions; raise training.batch_size, lower "
            "method.options.group_size, or, where a batch goes through the network in parts, set "
            "training.whole_batch_loss=true"
        )
    with torch.autocast(device_type=z.device.type, enabled=False):
        groups = exact(z).index_select(1, order).unflatten(1, (-1, group_size)).transpose(0, 1)
        centred = groups - batch_mean(groups, 1).unsqueeze(1)
        covariance = sum_over_ranks(centred.transpose(1, 2) @ centred) / samples
        white = centred @ inverse_square_root(ridged(covariance, ridge), ridge)
        shuffled = white.transpose(0, 1).flatten(1)
        return torch.zeros_like(shuffled).index_copy(1, order, shuffled)


class ShuffledDBN(PairMethod):
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
        embedding. A shorter embedding is one group. 0 for half the batch, as in the authors'
        program, or the next smaller number that divides the length, if it is not far below.
    ridge : what is added to every variance before the root is taken, as a share of their mean.
    scale : of the loss, which is a sum over dimensions; 0 for 1/K, the mean, as SGD wants it.
    others : options of `PairMethod`, and of `MixingMethod`.
    """

    capturable = True

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        group_size: int = 0,
        ridge: float = 1e-5,
        scale: float = 0.0,
        **others: Unpack[PairOptions],
    ) -> None:
        super().__init__(backbone, projector, **others)
        if group_size < 0:
            raise UserError(f"group_size must be positive, or 0 for a default, found {group_size}")
        if not scale >= 0:
            raise UserError(f"scale must be positive, or 0 for 1/K, found {scale}")
        check_positive(ridge=ridge)
        self.dimensions = embedding_length(projector)
        self.group_size = min(group_size, self.dimensions)
        if self.group_size and self.dimensions % self.group_size:
            raise UserError(
                f"group_size must divide the {self.dimensions} dimensions of an embedding, "
                f"found {group_size}"
            )
        self.ridge = ridge
        self.scale = scale or 1 / self.dimensions

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

    def terms(self, z_a: Tensor, z_b: Tensor, drawn: Shuffle | Mix | None) -> dict[str, Tensor]:
        """``{"loss"}``, as of `PairMethod`, this rank's share.

        ``drawn`` has the orders of dimensions, and the mix if there is one. Without orders
        neighbouring dimensions are a group.
        """
        if isinstance(drawn, Shuffle | ShuffledMix):
            orders = drawn.orders
        else:
            orders = torch.arange(self.dimensions, device=z_a.device).expand(2, -1)
        group_size = self.group_size or automatic_group(
            self.dimensions, len(z_a) * world_size() // 2
        )
        white_a, white_b = (
            decorrelated(z, order, group_size, self.ridge)
            for z, order in zip((z_a, z_b), orders, strict=True)
        )
        mix = drawn if isinstance(drawn, Mix) else None
        return {"loss": self.scale * trace_loss(mixed(white_a, mix), white_b, "sum")}


def automatic_group(dimensions: int, limit: int) -> int:
    """The largest number up to ``limit`` that divides ``dimensions`` into groups.

    One that is far below it is refused: in groups of a dimension or two hardly anything is
    decorrelated, and nobody has asked for that.
    """
    limit = max(1, min(dimensions, limit))
    group = max(d for d in range(1, limit + 1) if dimensions % d == 0)
    if 4 * group < limit:
        raise UserError(
            f"no number from {group + 1} to {limit}, half the batch, divides the {dimensions} "
            f"dimensions of an embedding into groups, and groups of {group} decorrelate too "
            "little; set projector.out to a number that has such a divisor, or "
            "method.options.group_size"
        )
    return group
