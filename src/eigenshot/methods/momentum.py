"""A second network whose weights follow those of the first: the target of a method."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from eigenshot.errors import UserError
from eigenshot.methods.base import embed_pair
from eigenshot.methods.mixing import MixingMethod, MixingOptions
from eigenshot.networks import Backbone


class MomentumMethod(MixingMethod):
    """Base of the methods with a target network, ξ ← τ ξ + (1 − τ) θ after every step.

    Batch statistics are the target's own: it normalises by the batches that it sees itself.

    Parameters
    ----------
    backbone, projector : the network θ that is trained, as in `Method`. The target starts as its
        copy.
    momentum : τ at the start.
    schedule : ``"constant"``, or ``"cosine"`` from ``momentum`` up to 1 at the end of the run.
    mixing : options of `MixingMethod`.
    """

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        momentum: float,
        schedule: Literal["constant", "cosine"] = "constant",
        **mixing: Unpack[MixingOptions],
    ) -> None:
        super().__init__(backbone, projector, **mixing)
        if not 0 <= momentum <= 1:
            raise UserError(f"momentum must lie between 0 and 1, found {momentum}")
        self.momentum = momentum
        self.schedule = schedule
        self.target_backbone = copy.deepcopy(backbone).requires_grad_(False)
        self.target_projector = copy.deepcopy(projector).requires_grad_(False)

    @torch.no_grad()
    def embed_target(self, view: Tensor) -> Tensor:
        """The target's embeddings of one view, ``(batch, C, H, W)`` to ``(batch, K)``."""
        embeddings: Tensor = self.target_projector(self.target_backbone(view))
        return embeddings

    @torch.no_grad()
    def embed_target_pair(self, view_a: Tensor, view_b: Tensor) -> tuple[Tensor, Tensor]:
        """The target's embeddings of two views, each ``(batch, C, H, W)`` to ``(batch, K)``."""
        return embed_pair(
            self.target_backbone, self.target_projector, view_a, view_b, joint=self.joint
        )

    @property
    def goes_by_length(self) -> bool:
        """Whether the momentum has a schedule."""
        return self.schedule != "constant"

    def momentum_at(self, progress: float) -> float:
        """τ when a share ``progress`` of the run's steps is done."""
        if self.schedule == "constant":
            return self.momentum
        return 1 - (1 - self.momentum) * (math.cos(math.pi * progress) + 1) / 2

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Let the target follow."""
        pairs = list(self._pairs())
        torch._foreach_lerp_(
            [target for target, _ in pairs],
            [own for _, own in pairs],
            1 - self.momentum_at(progress),
        )

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The target's parameters, each with the one that it follows."""
        for target, own in (
            (self.target_backbone, self.backbone),
            (self.target_projector, self.projector),
        ):
            yield from zip(target.parameters(), own.parameters(), strict=True)
