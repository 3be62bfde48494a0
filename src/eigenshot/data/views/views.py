"""Random views of pictures, made on whatever device the pictures are on.

A view maker takes uint8 pictures ``(batch, channels, height, width)`` and a generator on the same
device, and returns normalised float32 views ``(batch, channels, size, size)``. Each sample has its
own parameters. ``draw`` makes all random numbers, ``transform`` is deterministic; how many numbers
are drawn depends on no strength or probability but ``noise``, so changing one operation leaves the
others' draws as they were. No step waits for the device, so a view maker can be captured in a CUDA
graph (with the generator registered to it).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eigenshot.data.views import colour, geometry
from eigenshot.data.views.geometry import between
from eigenshot.data.views.options import Options, SimclrOptions, StrokeOptions
from eigenshot.errors import UserError, did_you_mean

_KNOTS = 4  # a side of the coarse field of the elastic warp


@dataclass(frozen=True)
class SimclrParameters:
    """What happens to each sample; an operation that does not happen has its neutral value."""

    boxes: Tensor  # (batch, 4): left, top, width, height, shares of the side
    flip: Tensor  # (batch,) bool
    brightness: Tensor  # (batch,) factors, neutral 1
    contrast: Tensor
    saturation: Tensor
    hue: Tensor  # (batch,) turns
    grey: Tensor  # (batch,) bool
    blur_sigma: Tensor  # (batch,) pixels, neutral 0
    solarise: Tensor  # (batch,) thresholds, neutral 2


@dataclass(frozen=True)
class StrokeParameters:
    """What happens to each sample; an operation that does not happen has its neutral value."""

    rotation: Tensor  # (batch,) degrees
    shear: Tensor  # (batch,) degrees
    scale: Tensor  # (batch,)
    shift: Tensor  # (batch, 2), shares of the side
    field: Tensor  # (batch, 2, knots, knots), shares of the side
    stroke: Tensor  # (batch,), in [-1, 1]
    erase: Tensor  # (batch,) bool
    boxes: Tensor  # (batch, 4) as for crops
    noise: Tensor | None  # (batch, channels, size, size)


def normalise(
    images: Tensor, mean: Tensor | Sequence[float], std: Tensor | Sequence[float]
) -> Tensor:
    """uint8 pictures ``(batch, channels, height, width)`` as float32, ``(x / 255 - mean) / std``.

    ``mean`` and ``std`` hold one number, or one a channel. Tensors on the pictures' device cost no
    copy (and are what a CUDA graph needs).
    """
    return colour.standardise(colour.to_float(images), mean, std)


class View(nn.Module):
    """Whole pictures, resized and normalised: the view without augmentation, base of the others.

    ``mean`` and ``std`` (one number, or one a channel) are of pictures in [0, 1].
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, options: Options, size: int, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        if size < 1:
            raise UserError(f"expected a view size of at least 1 pixel, found {size}")
        if not all(number > 0 for number in std):
            raise UserError(f"expected std above 0 in every channel, found {list(std)}")
        self.options = options
        self.size = size
        # Not persistent: the encoder saves its preprocessing, a view maker is no part of it.
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32), persistent=False)

    def draw(self, shape: Sequence[int], generator: torch.Generator) -> Any:
        """Random parameters for pictures of ``shape`` (batch, channels, height, width)."""
        return None

    def transform(self, images: Tensor, parameters: Any) -> Tensor:
        """Views in [0, 1] of float pictures in [0, 1]; the same for the same parameters."""
        return geometry.resize(images, self.size)

    def forward(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """uint8 ``(batch, channels, height, width)`` → float32 with height and width ``size``."""
        # Half precision would not hold the 256 levels of a picture, nor places within it.
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            pictures = colour.to_float(images)
            views = self.transform(pictures, self.draw(images.shape, generator))
            return colour.standardise(views, self.mean, self.std)


class SimclrView(View):
    """Random resized crop, flip, colour jitter, grey, blur, solarise.

    The crop is cut to the picture instead of drawn again (``geometry.random_boxes``).
    """

    options: SimclrOptions

    def draw(self, shape: Sequence[int], generator: torch.Generator) -> SimclrParameters:
        options, (batch, _, height, width) = self.options, shape
        uniforms = torch.rand((14, batch), generator=generator, device=generator.device)
        jittered = uniforms[5] < options.jitter

        def factor(uniform: Tensor, strength: float) -> Tensor:
            return torch.where(jittered, between(uniform, max(0.0, 1 - strength), 1 + strength), 1)

        area = (options.crop_area_min, options.crop_area_max)
        sigma = between(uniforms[12], options.blur_sigma_min, options.blur_sigma_max)
        sigma = sigma * (self.size / options.blur_side) if options.blur_side else sigma
        return SimclrParameters(
            boxes=geometry.random_boxes(
                uniforms[:4].T, area, ratio=options.crop_ratio, aspect=width / height
            ),
            flip=uniforms[4] < options.flip,
            brightness=factor(uniforms[6], options.brightness),
            contrast=factor(uniforms[7], options.contrast),
            saturation=factor(uniforms[8], options.saturation),
            hue=torch.where(jittered, between(uniforms[9], -options.hue, options.hue), 0.0),
            grey=uniforms[10] < options.grey,
            blur_sigma=torch.where(uniforms[11] < options.blur, sigma, 0.0),
            solarise=torch.where(uniforms[13] < options.solarise, options.solarise_threshold, 2.0),
        )

    def transform(self, images: Tensor, parameters: SimclrParameters) -> Tensor:
        options = self.options
        if options.crop_area_min < 1 or options.crop_ratio > 1:
            images = geometry.random_resized_crop(
                images, parameters.boxes, self.size, parameters.flip
            )
        else:
            images = geometry.resize(images, self.size)
            images = geometry.flip(images, parameters.flip) if options.flip else images
        if options.jitter and options.brightness:
            images = colour.adjust_brightness(images, parameters.brightness)
        if options.jitter and options.contrast:
            images = colour.adjust_contrast(images, parameters.contrast)
        if options.jitter and options.saturation:
            images = colour.adjust_saturation(images, parameters.saturation)
        if options.jitter and options.hue:
            images = colour.adjust_hue(images, parameters.hue)
        if options.grey:
            grey = colour.to_grey(images)
            images = torch.where(colour.per_sample(parameters.grey), grey, images)
        if options.blur and options.blur_sigma_max and self.size > 1:
            radius = max(1, int(self.size * options.blur_kernel / 2))
            images = geometry.gaussian_blur(images, parameters.blur_sigma, 2 * radius + 1)
        if options.solarise:
            images = colour.solarise(images, parameters.solarise)
        return images


class StrokeView(View):
    """Rotation, shear, scale, shift and elastic warp in one sampling; stroke; erasing; noise."""

    options: StrokeOptions

    def draw(self, shape: Sequence[int], generator: torch.Generator) -> StrokeParameters:
        options, (batch, channels, _, _) = self.options, shape
        device, fields = generator.device, 2 * _KNOTS * _KNOTS
        uniforms = torch.rand((12 + fields, batch), generator=generator, device=device)
        noise = None
        if options.noise:
            noise_shape = (batch, channels, self.size, self.size)
            noise = torch.randn(noise_shape, generator=generator, device=device) * options.noise
        field = between(uniforms[12:].T, -options.elastic, options.elastic)
        area = (options.erase_area_min, options.erase_area_max)
        amount = between(uniforms[6], -options.stroke_strength, options.stroke_strength)
        return StrokeParameters(
            rotation=between(uniforms[0], -options.rotation, options.rotation),
            shear=between(uniforms[1], -options.shear, options.shear),
            scale=between(uniforms[2], options.scale_min, options.scale_max),
            shift=between(uniforms[3:5].T, -options.shift, options.shift),
            field=field.reshape(batch, 2, _KNOTS, _KNOTS),
            stroke=torch.where(uniforms[5] < options.stroke, amount, 0.0),
            erase=uniforms[7] < options.erase,
            boxes=geometry.random_boxes(uniforms[8:12].T, area, ratio=2.0),
            noise=noise,
        )

    def transform(self, images: Tensor, parameters: StrokeParameters) -> Tensor:
        options = self.options
        scaled = not options.scale_min == options.scale_max == 1
        if scaled or options.rotation or options.shear or options.shift or options.elastic:
            matrix = geometry.affine_matrix(
                parameters.rotation, parameters.shear, parameters.scale, parameters.shift
            )
            field = parameters.field if options.elastic else None
            images = geometry.sample(images, matrix, self.size, field=field, padding="zeros")
        else:
            images = geometry.resize(images, self.size)
        if options.stroke and options.stroke_strength:
            # Strokes grow with the picture: 3 pixels at the 28 of most glyphs, 7 at 84.
            kernel_size = 2 * max(1, round(self.size / 28)) + 1
            images = geometry.stroke(images, parameters.stroke, kernel_size)
        if options.erase and options.erase_area_max:
            images = geometry.erase(images, parameters.boxes, parameters.erase)
        if parameters.noise is not None:
            images = (images + parameters.noise).clamp_(0.0, 1.0)
        return images


class TwoViews(nn.Module):
    """Two views of the same pictures, each by its own view maker."""

    def __init__(self, view_a: nn.Module, view_b: nn.Module) -> None:
        super().__init__()
        self.view_a = view_a
        self.view_b = view_b

    def resize(self, size: int) -> None:
        """Let views have sides of ``size`` pixels from now on."""
        for view in self.children():
            view.size = size  # type: ignore[assignment]

    def forward(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """uint8 ``(batch, channels, height, width)`` → two ``(batch, channels, size, size)``."""
        return self.view_a(images, generator), self.view_b(images, generator)


_KINDS: dict[str, tuple[type[Options], type[View]]] = {
    "simclr": (SimclrOptions, SimclrView),
    "strokes": (StrokeOptions, StrokeView),
    "none": (Options, View),
}


def create_view(
    kind: str, options: Mapping[str, Any], *, size: int, mean: Sequence[float], std: Sequence[float]
) -> View:
    """A view maker by name: ``"simclr"``, ``"strokes"`` or ``"none"`` (resize and normalise)."""
    if kind not in _KINDS:
        raise UserError(f"unknown augmentation '{kind}'{did_you_mean(kind, _KINDS)}")
    options_class, view_class = _KINDS[kind]
    known = [field.name for field in dataclasses.fields(options_class)]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UserError(f"augmentation '{kind}' has no option '{name}'{hint}")
    return view_class(options_class(**options), size, mean, std)
