"""Conv4: the four-layer convolutional network of few-shot learning."""

from __future__ import annotations

from torch import nn

from eigenshot.networks.backbone import Backbone
from eigenshot.networks.layers import convolution, require_positive
from eigenshot.networks.registry import register_backbone


@register_backbone
def conv4(
    *, in_channels: int = 3, widths: tuple[int, int, int, int] = (64, 64, 64, 64)
) -> Backbone:
    """Four stages of 3×3 convolution, batch normalisation, ReLU and 2×2 max-pooling."""
    require_positive(in_channels=in_channels, widths=widths)
    stages = [
        nn.Sequential(
            convolution(inputs, outputs),
            nn.BatchNorm2d(outputs),
            # The larger of two commutes with ReLU, which then has a quarter of the work.
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
        )
        for inputs, outputs in zip((in_channels, *widths), widths, strict=False)
    ]
    return Backbone(stages, out_features=widths[-1], in_channels=in_channels, min_size=16)
