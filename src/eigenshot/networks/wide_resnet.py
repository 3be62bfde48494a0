"""Wide residual networks (Zagoruyko and Komodakis, 2016)."""

from __future__ import annotations

from torch import Tensor, nn

from eigenshot.errors import UserError
from eigenshot.networks.backbone import Backbone
from eigenshot.networks.layers import convolution, require_positive
from eigenshot.networks.registry import register_backbone

STEM_WIDTH = 16


class PreActivationBlock(nn.Module):
    """Batch normalisation and ReLU before each of two 3×3 convolutions."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.BatchNorm2d(in_channels), nn.ReLU(inplace=True))
        self.body = nn.Sequential(
            convolution(in_channels, out_channels, stride=stride),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            convolution(out_channels, out_channels),
        )
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or in_channels != out_channels:
            self.shortcut = convolution(in_channels, out_channels, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, in_channels, height, width)`` to ``(batch, out_channels, ⌈h/s⌉, ⌈w/s⌉)``."""
        activated = self.activation(x)
        # The identity carries x itself; a shortcut that convolves shares the activation.
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        return self.body(activated) + shortcut


def _group(in_channels: int, out_channels: int, stride: int, blocks: int) -> nn.Sequential:
    return nn.Sequential(
        PreActivationBlock(in_channels, out_channels, stride),
        *(PreActivationBlock(out_channels, out_channels, 1) for _ in range(blocks - 1)),
    )


@register_backbone
def wrn28_10(*, in_channels: int = 3, depth: int = 28, width_factor: int = 10) -> Backbone:
    """WRN-``depth``-``width_factor``: the stem and three groups, of which the last is activated."""
    require_positive(in_channels=in_channels, width_factor=width_factor)
    blocks, remainder = divmod(depth - 4, 6)
    if remainder or blocks < 1:
        raise UserError(f"expected a depth of 6n + 4 (10, 16, 22, 28, ...), found {depth}")
    widths = [STEM_WIDTH * width_factor * scale for scale in (1, 2, 4)]
    stem = convolution(in_channels, STEM_WIDTH)
    groups = [
        _group(inputs, outputs, stride, blocks)
        for inputs, outputs, stride in zip((STEM_WIDTH, *widths), widths, (1, 2, 2), strict=False)
    ]
    groups[-1].extend([nn.BatchNorm2d(widths[-1]), nn.ReLU(inplace=True)])
    # Every strided layer pads, so a side of 1 stays 1: there is no larger minimum.
    return Backbone([stem, *groups], out_features=widths[-1], in_channels=in_channels, min_size=1)
