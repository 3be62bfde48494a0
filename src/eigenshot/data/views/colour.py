"""Colour operations on batches of pictures, each sample with its own parameter.

Pictures are float tensors of shape ``(batch, channels, height, width)`` with values in [0, 1] and
1 or 3 channels; parameters have shape ``(batch,)``. The results are those of Pillow up to its
rounding to 8 bits. Nothing here waits for the device or branches on a tensor's values, so every
function can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eigenshot.errors import UserError

# ITU-R 601-2 luma, the weights of Pillow's convert("L").
_RED, _GREEN, _BLUE = 0.299, 0.587, 0.114


def per_sample(parameter: Tensor) -> Tensor:
    """``(batch,)`` → ``(batch, 1, 1, 1)``, to broadcast over a batch of pictures."""
    return parameter[:, None, None, None]


def to_float(images: Tensor) -> Tensor:
    """uint8 pictures ``(batch, 1 or 3, height, width)`` as float32 in [0, 1]."""
    if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[1] not in (1, 3):
        raise UserError(
            "expected uint8 pictures of shape (batch, 1 or 3, height, width), found "
            f"{str(images.dtype).removeprefix('torch.')} of shape {tuple(images.shape)}"
        )
    return images.float().div_(255.0)


def standardise(
    images: Tensor, mean: Tensor | Sequence[float], std: Tensor | Sequence[float]
) -> Tensor:
    """``(images - mean) / std``, where mean and std hold one number or one a channel."""
    channels, shaped = images.shape[1], []
    for name, given in (("mean", mean), ("std", std)):
        moment = torch.as_tensor(given, dtype=images.dtype, device=images.device).reshape(-1, 1, 1)
        if moment.shape[0] not in (1, channels):
            expected = "1 number" if channels == 1 else f"1 or {channels} numbers"
            raise UserError(
                f"expected a {name} of {expected} for pictures with {channels} channel"
                f"{'' if channels == 1 else 's'}, found {moment.shape[0]}"
            )
        shaped.append(moment)
    return (images - shaped[0]).div_(shaped[1])


def _grey_plane(images: Tensor) -> Tensor:
    """Luma of the pictures, ``(batch, 1, height, width)``."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    # Not a matrix product: those may run in TF32, which keeps only ten bits.
    return (red * _RED).add_(green, alpha=_GREEN).add_(blue, alpha=_BLUE)


def _blend(start: Tensor, end: Tensor, factor: Tensor) -> Tensor:
    """From ``start`` (factor 0) to ``end`` (factor 1) and beyond, clamped to [0, 1].

    ``lerp`` gives exactly ``end`` at factor 1, so samples left alone stay bit for bit the same.
    """
    return torch.lerp(start, end, per_sample(factor)).clamp_(0.0, 1.0)


def to_grey(images: Tensor) -> Tensor:
    """Grey pictures with as many channels as before; 1-channel pictures are grey already."""
    return _grey_plane(images).expand_as(images)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Multiply by ``factor`` ``(batch,)``: 0 gives black, 1 the picture."""
    return (images * per_sample(factor)).clamp_(0.0, 1.0)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey picture's mean: at ``factor`` ``(batch,)`` 0 that, at 1 the picture."""
    return _blend(_grey_plane(images).mean(dim=(1, 2, 3), keepdim=True), images, factor)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey picture: at ``factor`` ``(batch,)`` 0 that, at 1 the picture."""
    if images.shape[1] == 1:
        return images
    return _blend(_grey_plane(images), images, factor)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by ``shift`` ``(batch,)``, in turns: 0 and 1 give the picture, 1/3 red → green.

    Goes through HSV, keeping value and saturation.
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(dim=1)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    # A grey pixel has chroma 0 and no hue; any finite one does, since chroma multiplies it below.
    scale = chroma.clamp_min(1e-12).reciprocal_()
    sextant = torch.where(
        value == red,
        (green - blue) * scale,
        torch.where(value == green, (blue - red) * scale + 2.0, (red - green) * scale + 4.0),
    )
    sextant = torch.remainder(sextant.add_(6.0 * shift[:, None, None]), 6.0)
    # How far each channel lies below the value, as a share of the chroma: a piecewise linear
    # function of the hue, so that no case distinction by sextant is needed.
    below = (
        2.0 - (sextant - 3.0).abs_(),  # red is full up to 1 and from 5 on
        (sextant - 2.0).abs_().sub_(1.0),  # green is full from 1 to 3
        (sextant - 4.0).abs_().sub_(1.0),  # blue is full from 3 to 5
    )
    turned = [torch.addcmul(value, chroma, share.clamp_(0.0, 1.0), value=-1.0) for share in below]
    return torch.stack(turned, dim=1)


def solarise(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert the values at or above ``threshold`` ``(batch,)``; above 1 nothing is inverted."""
    return torch.where(images >= per_sample(threshold), 1.0 - images, images)
