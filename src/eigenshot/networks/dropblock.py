"""DropBlock: dropout of squares of a feature map (Ghiasi, Lin and Le, 2018)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eigenshot.errors import UserError


class DropBlock(nn.Module):
    """Set squares of ``block_size`` × ``block_size`` to zero while training, per map and channel.

    Each position is dropped with probability ``rate`` exactly, at the border and on maps smaller
    than a block too: a block may begin outside the map. What is kept is divided by ``1 - rate``,
    so the expected output is the input. Like dropout it draws from torch's default generator,
    and at rate 0 or in eval mode it is the identity and draws nothing.
    """

    def __init__(self, rate: float, *, block_size: int = 5) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise UserError(f"expected a DropBlock rate of at least 0 and below 1, found {rate}")
        if block_size < 1:
            raise UserError(f"expected a DropBlock size of at least 1, found {block_size}")
        self.rate = rate
        self.block_size = block_size

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, channels, height, width)`` to the same shape."""
        if not self.training or self.rate == 0:
            return x
        batch, channels, height, width = x.shape
        margin = self.block_size - 1
        # block_size² seeds reach each position; it is kept when none of them is drawn.
        seed_probability = 1 - (1 - self.rate) ** (1 / self.block_size**2)
        seeds = torch.rand(batch, channels, height + margin, width + margin, device=x.device)
        dropped = nn.functional.max_pool2d(
            (seeds < seed_probability).float(), self.block_size, stride=1
        )
        return x * ((1 - dropped) / (1 - self.rate)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, block_size={self.block_size}"
