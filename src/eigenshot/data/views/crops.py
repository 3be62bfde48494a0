"""Fixed crops of whole pictures: what an encoder looks at beside, or instead of, the picture.

Random resized crops show a network its objects larger than whole pictures do, so that features of
crops, magnified to the picture's size, are nearer to what it learned; a mean over several is also
less noisy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

from torch import Tensor
from torch.nn import functional

from eigenshot.errors import UserError

Crops = Literal["whole", "five", "ten"]

_SHARE = 7 / 8  # of the picture's side, as 224 of 256 pixels are


def check_crops(crops: str) -> None:
    """Refuse what is none of `Crops`."""
    if crops not in get_args(Crops):
        raise UserError(f"unknown crops '{crops}'; known: {', '.join(get_args(Crops))}")


def fixed_crops(images: Tensor, crops: Crops) -> Iterator[Tensor]:
    """Float pictures ``(batch, channels, height, width)``, one such batch a crop.

    ``"whole"`` is the pictures themselves; ``"five"`` are the corners and the centre, of 7/8 of
    the side, magnified to the whole; ``"ten"`` are these and their mirror images.
    """
    if crops == "whole":
        yield images
        return
    height, width = images.shape[-2:]
    down, across = (max(1, round(_SHARE * side)) for side in (height, width))
    bottom, right = height - down, width - across
    corners = [(0, 0), (0, right), (bottom, 0), (bottom, right), (bottom // 2, right // 2)]
    for top, left in corners:
        part = images[..., top : top + down, left : left + across]
        view = functional.interpolate(part, (height, width), mode="bilinear", align_corners=False)
        yield view
        if crops == "ten":
            yield view.flip(-1)
