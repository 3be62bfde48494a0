"""ResNet-18 (He et al., 2016), with a stem for small images or for large ones."""

from __future__ import annotations

from torch import Tensor, nn

from eigenshot.networks.backbone import Backbone
from eigenshot.networks.layers import convolution, require_positive
from eigenshot.networks.registry import register_backbone

BLOCKS_PER_GROUP = 2


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut: the identity where shapes allow it."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            convolution(in_channels, out_channels, stride=stride),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            convolution(out_channels, out_channels),
            nn.BatchNorm2d(out_channels),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                convolution(in_channels, out_channels, 1, stride=stride),
                nn.BatchNorm2d(out_channels),
            )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, in_channels, height, width)`` to ``(batch, out_channels, ⌈h/s⌉, ⌈w/s⌉)``."""
        return self.activation(self.body(x) + self.shortcut(x))


def _group(in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(in_channels, out_channels, stride),
        *(BasicBlock(out_channels, out_channels, 1) for _ in range(BLOCKS_PER_GROUP - 1)),
    )


def _with_stem(
    stem: nn.Sequential, in_channels: int, widths: tuple[int, int, int, int]
) -> Backbone:
    groups = [
        _group(inputs, outputs, stride)
        for inputs, outputs, stride in zip((widths[0], *widths), widths, (1, 2, 2, 2), strict=False)
    ]
    # Every strided layer pads, so a side of 1 stays 1: there is no larger minimum.
    return Backbone([stem, *groups], out_features=widths[-1], in_channels=in_channels, min_size=1)


@register_backbone
def resnet18(
    *, in_channels: int = 3, widths: tuple[int, int, int, int] = (64, 128, 256, 512)
) -> Backbone:
    """ResNet-18 for small images: the stem is a 3×3 convolution of stride 1, without pooling."""
    require_positive(in_channels=in_channels, widths=widths)
    stem = nn.Sequential(
        convolution(in_channels, widths[0]), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)
    )
    return _with_stem(stem, in_channels, widths)


@register_backbone
def resnet18_imagenet(
    *, in_channels: int = 3, widths: tuple[int, int, int, int] = (64, 128, 256, 512)
) -> Backbone:
    """ResNet-18 for large images: a 7×7 convolution of stride 2, then max-pooling of stride 2."""
    require_positive(in_channels=in_channels, widths=widths)
    stem = nn.Sequential(
        convolution(in_channels, widths[0], 7, stride=2),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )
    return _with_stem(stem, in_channels, widths)
