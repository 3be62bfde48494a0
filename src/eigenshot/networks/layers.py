"""The pieces every backbone is built from."""

from __future__ import annotations

from torch import nn

from eigenshot.errors import UserError


def convolution(
    in_channels: int,
    out_channels: int,
    kernel_size: int = 3,
    *,
    stride: int = 1,
    negative_slope: float = 0.0,
) -> nn.Conv2d:
    """A square convolution that keeps the map's size at stride 1, with Kaiming (fan-out) weights.

    It has no bias: batch normalisation stands after it, or before it with one of its own.
    ``negative_slope`` is that of the rectifier that follows (0 for ReLU).
    """
    layer = nn.Conv2d(
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        padding=kernel_size // 2,
        bias=False,
    )
    nn.init.kaiming_normal_(
        layer.weight, a=negative_slope, mode="fan_out", nonlinearity="leaky_relu"
    )
    return layer


def require_positive(**values: int | tuple[int, ...]) -> None:
    """Refuse a number, or a tuple with a number, below 1."""
    for name, value in values.items():
        if min(value if isinstance(value, tuple) else (value,), default=0) < 1:
            raise UserError(f"expected {name} of at least 1, found {value}")
