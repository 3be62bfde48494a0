"""What can be chosen about random views: every strength and probability, with its range."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from eigenshot.errors import UserError


def _number(default: float, low: float, high: float) -> Any:
    """A dataclass field that ``Options`` holds to [low, high]."""
    return dataclasses.field(default=default, metadata={"range": (low, high)})


@dataclass(frozen=True)
class Options:
    """Options that check themselves: each number in its range, each minimum below its maximum."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            name, (low, high) = field.name, field.metadata["range"]
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not low <= value <= high:
                raise UserError(
                    f"expected the augmentation's {name} in [{low:g}, {high:g}], found {value!r}"
                )
            lower = name.removesuffix("_max") + "_min"
            if name.endswith("_max") and getattr(self, lower) > value:
                raise UserError(
                    f"expected the augmentation's {lower} ≤ {name}, "
                    f"found {getattr(self, lower)!r} and {value!r}"
                )


@dataclass(frozen=True)
class SimclrOptions(Options):
    """Crop, flip, colour jitter, grey, blur and solarise, in this order; 0 leaves one out.

    ``flip``, ``jitter``, ``grey``, ``blur`` and ``solarise`` are probabilities. Strengths of the
    jitter: factors are uniform in [max(0, 1 - s), 1 + s], the hue's shift in ±s turns. The order of
    the jitter is fixed: brightness, contrast, saturation, hue.
    """

    crop_area_min: float = _number(0.2, 0.001, 1)
    crop_area_max: float = _number(1.0, 0.001, 1)
    crop_ratio: float = _number(4 / 3, 1, 10)
    flip: float = _number(0.5, 0, 1)
    jitter: float = _number(0.8, 0, 1)
    brightness: float = _number(0.4, 0, 10)
    contrast: float = _number(0.4, 0, 10)
    saturation: float = _number(0.4, 0, 10)
    hue: float = _number(0.1, 0, 0.5)
    grey: float = _number(0.2, 0, 1)
    blur: float = _number(0.5, 0, 1)
    blur_sigma_min: float = _number(0.1, 0, 100)
    blur_sigma_max: float = _number(2.0, 0, 100)
    # The view's side that the sigmas are for: on another they grow with it. 0: they are pixels.
    blur_side: float = _number(0.0, 0, 10_000)
    blur_kernel: float = _number(0.1, 0, 0.9)  # the kernel's side as a share of the view's
    solarise: float = _number(0.0, 0, 1)
    solarise_threshold: float = _number(0.5, 0, 1)


@dataclass(frozen=True)
class StrokeOptions(Options):
    """For glyphs and drawings, bright on background 0, which flips and colours would falsify.

    ``stroke`` and ``erase`` are probabilities; 0 leaves any operation out.
    """

    rotation: float = _number(15.0, 0, 180)  # degrees, either way
    shear: float = _number(10.0, 0, 60)  # degrees, either way
    scale_min: float = _number(0.8, 0.1, 10)
    scale_max: float = _number(1.2, 0.1, 10)
    shift: float = _number(0.1, 0, 1)  # share of the side, either way
    elastic: float = _number(0.04, 0, 0.5)  # largest shift of a knot, share of the side
    stroke: float = _number(0.5, 0, 1)
    stroke_strength: float = _number(0.6, 0, 1)  # 1: up to a full dilation or erosion
    erase: float = _number(0.2, 0, 1)
    erase_area_min: float = _number(0.02, 0, 1)
    erase_area_max: float = _number(0.15, 0, 1)
    noise: float = _number(0.05, 0, 1)  # standard deviation, of a range of 1
