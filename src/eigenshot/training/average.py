"""An average of the weights over time: steadier than the weights, and nearly free."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from eigenshot.networks import Backbone


class WeightAverage(nn.Module):
    """A backbone whose weights and statistics are a moving average of another's.

    After n steps the average keeps min(``decay``, n / (n + 10)) of itself at each: at first it is
    young as the weights are, so where they started is soon forgotten.

    Parameters
    ----------
    backbone : the network that is trained; the average starts as its copy.
    decay : what a step keeps of the average, at most.
    """

    steps: Tensor

    def __init__(self, backbone: Backbone, decay: float) -> None:
        super().__init__()
        self.decay = decay
        self.backbone = copy.deepcopy(backbone).requires_grad_(False).eval()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device="cpu"))

    @torch.no_grad()
    def follow(self, backbone: nn.Module) -> None:
        """Take in the weights and statistics of ``backbone`` as they are now."""
        self.steps += 1  # on the host, so that nothing waits for the device
        steps = int(self.steps)
        kept = min(self.decay, steps / (steps + 10))
        pairs = [
            (own, new)
            for mine, theirs in zip(self.backbone.modules(), backbone.modules(), strict=True)
            for holder, other in (
                (mine._parameters, theirs._parameters),
                (mine._buffers, theirs._buffers),
            )
            for own, new in zip(holder.values(), other.values(), strict=True)
            if own is not None and new is not None
        ]
        floating = [pair for pair in pairs if pair[0].is_floating_point()]
        torch._foreach_lerp_([own for own, _ in floating], [new for _, new in floating], 1 - kept)
        for own, new in pairs:
            if not own.is_floating_point():  # counts
                own.copy_(new)
