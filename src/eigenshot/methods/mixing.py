"""Interpolation between samples at some layer of the network, for every method that has a use.

A method that mixes runs its second view with `Mix` applied at one layer and compares the outcome
with the same mixture of what it would have aimed at: embeddings, codes or labels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from eigenshot.collective import rank, world_size
from eigenshot.errors import UserError, check_positive
from eigenshot.hardware import widest_float
from eigenshot.methods.base import Method
from eigenshot.networks import Backbone

Mixup = Literal["manifold", "input", "none"]
Coefficients = Literal["batch", "sample"]


class MixingOptions(TypedDict, total=False):
    """The options that every method with `MixingMethod` as base hands on to it."""

    mixup: Mixup
    alpha: float
    layers: tuple[int, ...]
    coefficients: Coefficients


@dataclass(frozen=True)
class Mix:
    """One batch's interpolation: where, with whom and how much.

    ``coefficient`` is λ, a scalar tensor, or ``(batch,)`` with one for each sample;
    ``permutation`` is ``(batch,)``, the partner of each sample; ``layer`` counts backbone stages, 0
    being the input.
    """

    layer: int
    coefficient: Tensor
    permutation: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """λ x + (1 − λ) x[permutation], for x of shape ``(batch, …)``."""
        return torch.lerp(x[self.permutation], x, self.weight(x))

    def of_losses(self, own: Tensor, partner: Tensor) -> Tensor:
        """λ own + (1 − λ) partner: losses, ``(batch,)``, against an image and its partner."""
        return torch.lerp(partner, own, self.weight(own))

    def weight(self, x: Tensor) -> Tensor:
        """λ in the type of ``x``, ``(batch, …)``, and of a shape that multiplies it."""
        coefficient = self.coefficient.to(x.dtype)
        return coefficient if coefficient.ndim == 0 else coefficient.view(-1, *[1] * (x.ndim - 1))

    def to(self, device: torch.device) -> Self:
        """The same mix with its tensors on ``device``."""
        return replace(
            self,
            coefficient=self.coefficient.to(widest_float(device)).to(device),
            permutation=self.permutation.to(device),
        )

    def part(self, index: int, count: int) -> Self:
        """The mix of block ``index`` of ``count`` equal ones, whose partners are all of the block.

        It is what `MixingMethod.draw` gives for ``blocks=count``.
        """
        size = len(self.permutation) // count
        own = slice(index * size, (index + 1) * size)
        coefficient = self.coefficient if self.coefficient.ndim == 0 else self.coefficient[own]
        return replace(
            self, coefficient=coefficient, permutation=self.permutation[own] - index * size
        )


class MixingMethod(Method):
    """Base of the methods whose second view can be mixed inside the network.

    Parameters
    ----------
    backbone, projector : as in `Method`.
    mixup : ``"manifold"`` mixes at a layer drawn for each batch, ``"input"`` always at layer 0,
        ``"none"`` never.
    alpha : λ ~ Beta(alpha, alpha).
    layers : eligible layers; empty means all, 0 (the input) to the number of stages.
    coefficients : one λ a ``"batch"``, as in the paper, or one for each ``"sample"``.
    """

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        mixup: Mixup = "none",
        alpha: float = 1.0,
        layers: tuple[int, ...] = (),
        coefficients: Coefficients = "batch",
    ) -> None:
        super().__init__(backbone, projector)
        check_positive(alpha=alpha)
        stages = len(backbone.stages)
        outside = [layer for layer in layers if not 0 <= layer <= stages]
        if outside:
            raise UserError(
                f"mixup layers must lie between 0 (the input) and {stages} "
                f"(after the last stage), found {outside}"
            )
        self.mixup = mixup
        self.alpha = alpha
        self.layers = tuple(layers) or tuple(range(stages + 1))
        self.coefficients = coefficients

    def draw(self, batch_size: int, generator: np.random.Generator, blocks: int = 1) -> Mix | None:
        """λ, the layer and the permutation of one batch; None when nothing is mixed.

        Each of ``blocks`` equal parts of the batch is permuted in itself. Where several processes
        train together, the layer and a batch's λ are alike on all and each permutes its own
        ``batch_size`` images: one process with all ranks' blocks would do the same with the
        block-diagonal permutation. ``generator`` must stand at the same place on every rank.
        """
        if blocks < 1 or batch_size % blocks:
            raise UserError(
                f"expected a batch size that splits into {blocks} equal blocks, found {batch_size}"
            )
        if self.mixup == "none":
            return None
        shape = None if self.coefficients == "batch" else batch_size * world_size()
        drawn = torch.as_tensor(generator.beta(self.alpha, self.alpha, shape), dtype=torch.float64)
        coefficient = drawn if shape is None else drawn.chunk(world_size())[rank()]
        layer = int(generator.choice(self.layers)) if self.mixup == "manifold" else 0
        size = batch_size // blocks
        permutations = [generator.permutation(size) for _ in range(world_size() * blocks)]
        own = permutations[rank() * blocks : (rank() + 1) * blocks]
        shifted = [number * size + block for number, block in enumerate(own)]
        return Mix(layer, coefficient, torch.from_numpy(np.concatenate(shifted)))


def mixed(x: Tensor, mix: Mix | None) -> Tensor:
    """``x``, ``(batch, …)``, as ``mix`` makes it; as it is without one."""
    return x if mix is None else mix(x)
