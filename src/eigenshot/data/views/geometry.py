"""Geometric operations on batches of pictures, each sample with its own parameters.

Pictures are float tensors ``(batch, channels, height, width)``. A transform is a matrix
``(batch, 2, 3)`` that takes a place in the result to the place in the picture it is read from, both
in coordinates that run from -1 to 1 over the picture (x to the right, y down). Crop, flips, affine
map and elastic warp only change where the result is read from, so they share one ``sample``:
interpolating twice would blur. Nothing here waits for the device or branches on a tensor's values.
"""

from __future__ import annotations

import math
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from eigenshot.data.views.colour import per_sample
from eigenshot.errors import UserError


def between(uniforms: Tensor, low: float, high: float) -> Tensor:
    """Uniform numbers of [0, 1) brought to [low, high)."""
    return uniforms * (high - low) + low


def random_boxes(
    uniforms: Tensor, area: tuple[float, float], *, ratio: float, aspect: float = 1.0
) -> Tensor:
    """Boxes ``(batch, 4)`` to crop or erase: left, top, width, height as shares of the side.

    ``uniforms`` are ``(batch, 4)`` in [0, 1). The area is uniform between the two shares ``area``
    of the picture's, the logarithm of the box's width over its height in pixels uniform in
    ±log(ratio), the place uniform among those inside the picture. ``aspect`` is the picture's width
    over its height.

    A side longer than the picture is cut to it. Rejection sampling would draw again instead, which
    needs a loop of unknown length; the price is a slightly smaller area for the largest boxes.
    """
    across, down, size, shape = uniforms.unbind(dim=1)
    share = between(size, *area)
    stretch = torch.exp(between(shape, -math.log(ratio), math.log(ratio))) / aspect
    width = (share * stretch).sqrt_().clamp_(max=1.0)
    height = (share / stretch).sqrt_().clamp_(max=1.0)
    return torch.stack((across * (1.0 - width), down * (1.0 - height), width, height), dim=1)


def crop_matrix(boxes: Tensor) -> Tensor:
    """The transform that fills the result with ``boxes`` ``(batch, 4)`` (see ``random_boxes``)."""
    left, top, width, height = boxes.unbind(dim=1)
    zero = torch.zeros_like(left)
    return _matrix(width, zero, 2.0 * left + width - 1.0, zero, height, 2.0 * top + height - 1.0)


def affine_matrix(rotation: Tensor, shear: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """The transform that scales, shears, rotates, then shifts the picture about its centre.

    ``rotation`` ``(batch,)`` in degrees, counter-clockwise; ``shear`` ``(batch,)`` in degrees, the
    lower part to the right; ``scale`` ``(batch,)``, above 1 magnifies; ``shift`` ``(batch, 2)`` to
    the right and down, as shares of the side. Angles are those of a square result.
    """
    # The matrix goes from the result to the picture, so it is the inverse of what the picture does.
    angle = torch.deg2rad(rotation)
    cosine, sine, slope = angle.cos() / scale, angle.sin() / scale, torch.deg2rad(shear).tan()
    x_x, x_y, y_x, y_y = cosine - slope * sine, -sine - slope * cosine, sine, cosine
    right, down = (2.0 * shift).unbind(dim=1)
    return _matrix(x_x, x_y, -(x_x * right + x_y * down), y_x, y_y, -(y_x * right + y_y * down))


def flip_matrix(matrix: Tensor, *, horizontal: Tensor, vertical: Tensor | None = None) -> Tensor:
    """``matrix`` followed by flips of the samples where the masks ``(batch,)`` are true."""
    across = 1.0 - 2.0 * horizontal.to(matrix.dtype)
    down = torch.ones_like(across) if vertical is None else 1.0 - 2.0 * vertical.to(matrix.dtype)
    return matrix * torch.stack((across, down, torch.ones_like(across)), dim=1)[:, None, :]


def flip(images: Tensor, horizontal: Tensor) -> Tensor:
    """Pictures flipped left to right, exactly, where the mask ``(batch,)`` is true."""
    return torch.where(per_sample(horizontal), images.flip(-1), images)


def elastic_displacement(field: Tensor, size: int) -> Tensor:
    """A smooth displacement ``(batch, size, size, 2)`` of places from a coarse field.

    ``field`` ``(batch, 2, knots, knots)`` holds shifts as shares of the side on a grid of knots
    that spans the picture; bicubic interpolation between them makes the warp smooth.
    """
    # Interpolate the unit vectors, then weigh the knots with them along each axis. Done to the
    # fields themselves it is slow, on a GPU because each thread goes through the whole batch.
    knots = field.shape[-1]
    units = torch.eye(knots, device=field.device, dtype=field.dtype).reshape(1, knots, 1, knots)
    weights = functional.interpolate(units, size=(1, size), mode="bicubic", align_corners=True)
    weights = weights.reshape(knots, size)
    # Coordinates run over 2 for one side, hence the factor.
    rows = (2.0 * field[..., None] * weights).sum(dim=-2)  # (batch, 2, knots, size)
    fine = (rows[..., None, :] * weights[:, :, None]).sum(dim=-3)
    return fine.permute(0, 2, 3, 1)


def sample(
    images: Tensor,
    matrix: Tensor,
    size: int,
    *,
    field: Tensor | None = None,
    padding: str = "border",
) -> Tensor:
    """Pictures ``(batch, channels, size, size)`` read bilinearly where ``matrix`` points.

    ``field`` ``(batch, 2, knots, knots)``, where given, warps the result (see
    ``elastic_displacement``). ``padding``: what lies outside the picture, its ``"border"``
    continued or ``"zeros"``.
    """
    # Sums, not ``affine_grid``: that is a matrix product, which TF32 would put some hundredths of a
    # pixel off.
    places = torch.arange(1, 2 * size, 2, device=images.device, dtype=images.dtype) / size - 1.0
    column = matrix[:, None, None, :, :]
    grid = torch.addcmul(column[..., 2], places[:, None, None], column[..., 1])
    grid = torch.addcmul(grid, places[None, :, None], column[..., 0])
    if field is not None:
        grid = grid + elastic_displacement(field, size)
    return functional.grid_sample(
        images, grid, mode="bilinear", padding_mode=padding, align_corners=False
    )


def random_resized_crop(
    images: Tensor, boxes: Tensor, size: int, flipped: Tensor | None = None
) -> Tensor:
    """Crops ``boxes`` ``(batch, 4)`` brought to ``(batch, channels, size, size)``.

    They are flipped left to right where the mask ``flipped`` ``(batch,)`` is true. Neighbours in a
    view may be up to two pixels of the picture apart, and bilinear reading leaves none of those
    out. Where they would be farther apart, the picture is read at half its size, at a quarter, …:
    small views of large pictures would else flicker with detail that they cannot show.
    """
    matrix = crop_matrix(boxes)
    if flipped is not None:
        matrix = flip_matrix(matrix, horizontal=flipped)
    views = sample(images, matrix, size)
    height, width = images.shape[-2:]
    apart = torch.maximum(boxes[:, 2] * width, boxes[:, 3] * height) / size  # pixels
    farthest, bound = max(height, width) / size, 2.0  # of shapes alone: no wait for the device
    while farthest > bound:
        height, width = max(1, height // 2), max(1, width // 2)
        images = functional.adaptive_avg_pool2d(images, (height, width))
        views = torch.where(per_sample(apart > bound), sample(images, matrix, size), views)
        bound *= 2
    return views


def resize(images: Tensor, size: int) -> Tensor:
    """Whole pictures brought to ``(batch, channels, size, size)``, smoothed when they shrink."""
    if images.shape[-2:] == (size, size):
        return images
    return functional.interpolate(images, (size, size), mode="bilinear", antialias=True)


def gaussian_blur(images: Tensor, sigma: Tensor, kernel_size: int) -> Tensor:
    """Blur with a Gaussian of ``sigma`` ``(batch,)`` pixels, cut to an odd ``kernel_size``.

    Borders are mirrored without repeating the edge pixel. ``sigma`` 0 leaves a sample as it is.
    """
    height, width = images.shape[-2:]
    radius = kernel_size // 2
    if kernel_size % 2 == 0 or not 0 <= radius < min(height, width):
        raise UserError(
            f"expected an odd kernel_size below {2 * min(height, width)} for pictures of "
            f"{height}×{width}, found {kernel_size}"
        )
    distance = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)
    # At the smallest sigma every weight but the middle one underflows to 0: the identity.
    weights = torch.softmax(-0.5 * (distance / sigma.clamp_min(1e-3)[:, None]).square(), dim=1)
    # Weighted sums of shifted pictures: a convolution with a group for every plane is slower for
    # the small kernels of small pictures, and may run in TF32.
    images = functional.pad(images, (radius, radius, radius, radius), mode="reflect")
    for axis in (-1, -2):
        shifted = _shifts(images, kernel_size, axis)
        images = shifted[radius] * per_sample(weights[:, radius])
        for index in range(radius):
            pair = shifted[index] + shifted[kernel_size - 1 - index]
            images.addcmul_(pair, per_sample(weights[:, index]))
    return images


def stroke(images: Tensor, amount: Tensor, kernel_size: int = 3) -> Tensor:
    """Thicken or thin bright strokes on a dark ground by ``amount`` ``(batch,)`` in [-1, 1].

    At 1 the picture's dilation by a square of ``kernel_size`` pixels (odd), at -1 its erosion, at 0
    the picture; blends between.
    """
    thicker = _dilate(images, kernel_size)
    thinner = _dilate(-images, kernel_size).neg_()
    target = torch.where(per_sample(amount > 0), thicker, thinner)
    return torch.lerp(images, target, per_sample(amount.abs()))


def erase(images: Tensor, boxes: Tensor, chosen: Tensor) -> Tensor:
    """Fill ``boxes`` ``(batch, 4)`` with 0 in the samples where ``chosen`` ``(batch,)`` is true."""
    height, width = images.shape[-2:]
    left, top, box_width, box_height = boxes[:, :, None].unbind(dim=1)
    across = (torch.arange(width, device=images.device) + 0.5) / width
    down = (torch.arange(height, device=images.device) + 0.5) / height
    columns = (across >= left) & (across < left + box_width)
    rows = (down >= top) & (down < top + box_height) & chosen[:, None]
    return images.masked_fill(rows[:, None, :, None] & columns[:, None, None, :], 0.0)


def _dilate(images: Tensor, kernel_size: int) -> Tensor:
    """The maximum over a square of ``kernel_size`` pixels about each pixel.

    By rows, then by columns; a max-pool, which also finds the indices, takes ten times as long on
    a CPU.
    """
    radius = kernel_size // 2
    images = functional.pad(images, (radius, radius, radius, radius), value=-math.inf)
    for axis in (-1, -2):
        images = reduce(torch.maximum, _shifts(images, kernel_size, axis))
    return images


def _shifts(padded: Tensor, count: int, axis: int) -> list[Tensor]:
    """The ``count`` windows of a padded batch that start one pixel after another along ``axis``."""
    length = padded.shape[axis] - count + 1
    return [padded.narrow(axis, start, length) for start in range(count)]


def _matrix(*entries: Tensor) -> Tensor:
    """Six ``(batch,)`` entries, row by row, as ``(batch, 2, 3)``."""
    return torch.stack(entries, dim=1).reshape(-1, 2, 3)
