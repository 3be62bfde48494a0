"""Arrays of pictures in any layout to uint8 tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from eigenshot.errors import UserError


def pixels_from_array(images: np.ndarray | torch.Tensor) -> torch.Tensor:
    """An array of pictures, uint8 or floating in [0, 1], as uint8 (N, channels, height, width).

    The layouts are those of `eigenshot.data.source.ArraySource.from_array`.
    """
    return _to_uint8(_channels_first(_to_tensor(images)))


def _to_tensor(images: Any) -> torch.Tensor:
    """The same values as a tensor of uint8 or floating type."""
    if isinstance(images, np.ndarray):
        found = f"{images.dtype}"
        if images.dtype == np.uint8:
            return torch.from_numpy(np.require(images, requirements=("C", "W")))
        if images.dtype.kind == "f":
            # torch has neither foreign byte order nor extended precision.
            narrow = np.float32 if images.dtype.itemsize <= 4 else np.float64
            return torch.from_numpy(np.require(images, narrow, ("C", "W")))
    elif isinstance(images, torch.Tensor):
        found = f"{images.dtype}"
        if images.dtype == torch.uint8 or images.is_floating_point():
            return images.detach()
    else:
        raise UserError(f"expected a NumPy array or a tensor, found {type(images).__name__}")
    raise UserError(f"expected images of type uint8 or floating in [0, 1], found {found}")


def _channels_first(images: torch.Tensor) -> torch.Tensor:
    """Any accepted layout to (N, channels, height, width)."""
    shape = tuple(images.shape)
    expected = "(N, height, width), (N, height, width, 1|3) or (N, 1|3, height, width)"
    if images.ndim == 3:
        if shape[2] == 3 and shape[1] != 3:
            raise UserError(
                f"expected images {expected}, found {shape}; a single image goes in as image[None]"
            )
        images = images[:, None]
    elif images.ndim != 4:
        raise UserError(f"expected images {expected}, found {shape}")
    elif shape[3] in (1, 3):
        images = images.permute(0, 3, 1, 2)
    elif shape[1] not in (1, 3):
        if shape[3] == 4 or shape[1] == 4:
            drop = "images[..., :3]" if shape[3] == 4 else "images[:, :3]"
            raise UserError(f"found 4 channels in {shape}; drop the alpha channel: {drop}")
        raise UserError(f"expected images {expected}, found {shape}")
    if 0 in images.shape:
        raise UserError(f"expected at least one image of at least one pixel, found {shape}")
    return images.contiguous()


def _to_uint8(images: torch.Tensor) -> torch.Tensor:
    """Floating images in [0, 1] to 0..255, rounded; uint8 as they are."""
    if images.dtype == torch.uint8:
        return images
    undefined = images.isnan().flatten(1).any(1).nonzero().flatten().tolist()
    if undefined:
        rows = ", ".join(map(str, undefined[:5])) + (", …" if len(undefined) > 5 else "")
        raise UserError(f"NaN in {len(undefined)} of {len(images)} images: rows {rows}")
    low, high = images.min().item(), images.max().item()
    if low < 0 or high > 1:
        raise UserError(f"expected floating images in [0, 1], found values in [{low:g}, {high:g}]")
    return (images * 255).round_().to(torch.uint8)
