"""ResNet-12: the residual network of few-shot learning."""

from __future__ import annotations

from torch import Tensor, nn

from eigenshot.networks.backbone import Backbone
from eigenshot.networks.dropblock import DropBlock
from eigenshot.networks.layers import convolution, require_positive
from eigenshot.networks.registry import register_backbone

NEGATIVE_SLOPE = 0.1


class ResNet12Block(nn.Module):
    """Three 3×3 convolutions beside a 1×1 shortcut, then 2×2 max-pooling and DropBlock."""

    def __init__(self, in_channels: int, out_channels: int, drop: DropBlock) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution_and_norm(in_channels, out_channels),
            nn.LeakyReLU(NEGATIVE_SLOPE, inplace=True),
            *_convolution_and_norm(out_channels, out_channels),
            nn.LeakyReLU(NEGATIVE_SLOPE, inplace=True),
            *_convolution_and_norm(out_channels, out_channels),
        )
        self.shortcut = nn.Sequential(*_convolution_and_norm(in_channels, out_channels, 1))
        # The larger of two commutes with the activation, which then has a quarter of the work.
        self.pool = nn.MaxPool2d(2)
        self.activation = nn.LeakyReLU(NEGATIVE_SLOPE, inplace=True)
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, in_channels, height, width)`` to ``(batch, out_channels, ⌊h/2⌋, ⌊w/2⌋)``."""
        return self.drop(self.activation(self.pool(self.body(x) + self.shortcut(x))))


def _convolution_and_norm(
    in_channels: int, out_channels: int, kernel_size: int = 3
) -> tuple[nn.Module, nn.Module]:
    return (
        convolution(in_channels, out_channels, kernel_size, negative_slope=NEGATIVE_SLOPE),
        nn.BatchNorm2d(out_channels),
    )


@register_backbone
def resnet12(
    *,
    in_channels: int = 3,
    widths: tuple[int, int, int, int] = (64, 160, 320, 640),
    drop_block: float = 0.0,
    drop_block_size: int = 5,
) -> Backbone:
    """Four residual blocks, each a stage; ``drop_block`` is the DropBlock rate of the last two."""
    require_positive(in_channels=in_channels, widths=widths)
    rates = (0.0, 0.0, drop_block, drop_block)
    stages = [
        ResNet12Block(inputs, outputs, DropBlock(rate, block_size=drop_block_size))
        for inputs, outputs, rate in zip((in_channels, *widths), widths, rates, strict=False)
    ]
    return Backbone(stages, out_features=widths[-1], in_channels=in_channels, min_size=16)
