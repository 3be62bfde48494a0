"""The colour operations are Pillow's, with a parameter for each sample."""

from __future__ import annotations

import colorsys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from eigenshot.data.views import colour
from eigenshot.errors import UserError

FACTORS = [0.0, 0.3, 0.9, 1.0, 1.4, 2.5]


def random_pictures(count: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """(count, channels, 24, 17) uint8, every level possible."""
    levels = np.random.default_rng(seed).integers(0, 256, (count, channels, 24, 17))
    return levels.astype(np.uint8)


def as_pillow(picture: np.ndarray) -> Image.Image:
    return Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0))


def levels_of(image: Image.Image) -> np.ndarray:
    """(channels, height, width) in levels of 255."""
    pixels = np.asarray(image, dtype=np.float64)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def largest_difference(result: Tensor, expected: list[Image.Image]) -> float:
    """In levels of 255."""
    reference = np.stack([levels_of(image) for image in expected])
    return float(np.abs(result.double().numpy() * 255 - reference).max())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("operation", "enhancer"),
    [
        (colour.adjust_brightness, ImageEnhance.Brightness),
        (colour.adjust_contrast, ImageEnhance.Contrast),
        (colour.adjust_saturation, ImageEnhance.Color),
    ],
)
def test_enhancements_equal_pillows(
    operation: Callable[[Tensor, Tensor], Tensor],
    enhancer: Callable[[Image.Image], ImageEnhance.Brightness],
    channels: int,
) -> None:
    pictures = random_pictures(len(FACTORS), channels)
    result = operation(colour.to_float(torch.from_numpy(pictures)), torch.tensor(FACTORS))
    expected = [
        enhancer(as_pillow(picture)).enhance(factor)
        for picture, factor in zip(pictures, FACTORS, strict=True)
    ]
    # Pillow cuts the result to whole levels (1) and rounds the grey it blends with (½ × |1 - f|).
    assert largest_difference(result, expected) <= 1.0 + 0.5 * max(abs(1 - f) for f in FACTORS)


def test_grey_equals_pillows_luma() -> None:
    pictures = random_pictures(4)
    result = colour.to_grey(colour.to_float(torch.from_numpy(pictures)))
    expected = [as_pillow(picture).convert("L").convert("RGB") for picture in pictures]
    assert result.shape == (4, 3, 24, 17)
    assert largest_difference(result, expected) <= 0.51


@pytest.mark.parametrize("channels", [1, 3])
def test_solarise_equals_pillows(channels: int) -> None:
    thresholds = [0, 1, 100, 128, 255]
    pictures = random_pictures(len(thresholds), channels)
    result = colour.solarise(
        colour.to_float(torch.from_numpy(pictures)), torch.tensor(thresholds).float() / 255
    )
    expected = [
        ImageOps.solarize(as_pillow(picture), threshold)
        for picture, threshold in zip(pictures, thresholds, strict=True)
    ]
    assert largest_difference(result, expected) < 1e-3


def test_solarise_above_one_changes_nothing() -> None:
    pictures = colour.to_float(torch.from_numpy(random_pictures(2)))
    assert torch.equal(colour.solarise(pictures, torch.full((2,), 2.0)), pictures)


def test_hue_equals_the_textbook_conversion() -> None:
    shifts = [-0.5, -0.1, 0.0, 0.07, 1 / 3, 0.5]
    pictures = random_pictures(len(shifts))
    pictures[:, :, 0] = pictures[:, :1, 0]  # a row of grey pixels
    pictures[:, :, 1] = np.array([0, 255, 255])[None, :, None]  # a tie between two channels
    result = colour.adjust_hue(colour.to_float(torch.from_numpy(pictures)), torch.tensor(shifts))
    for picture, shift, turned in zip(pictures, shifts, result, strict=True):
        for pixel, found in zip(
            picture.reshape(3, -1).T / 255, turned.reshape(3, -1).T.tolist(), strict=True
        ):
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
            expected = colorsys.hsv_to_rgb((hue + shift) % 1.0, saturation, value)
            assert found == pytest.approx(expected, abs=1e-5)


def test_hue_equals_pillows_up_to_its_eight_bits() -> None:
    steps = [0, 20, 85, -30, 127]  # of Pillow's 255 steps a turn
    pictures = random_pictures(len(steps))
    result = colour.adjust_hue(
        colour.to_float(torch.from_numpy(pictures)), torch.tensor(steps) / 255
    )
    expected = []
    for picture, step in zip(pictures, steps, strict=True):
        hue, saturation, value = as_pillow(picture).convert("HSV").split()
        turned = Image.fromarray(((np.asarray(hue, dtype=int) + step) % 255).astype(np.uint8))
        expected.append(Image.merge("HSV", (turned, saturation, value)).convert("RGB"))
    # Pillow cuts the hue to 1/255 of a turn: six levels where a channel climbs steepest (a sixth of
    # a turn for 255 levels); cutting the saturation and rounding the result are a level each.
    assert largest_difference(result, expected) <= 8.0


def test_a_third_of_a_turn_takes_red_to_green() -> None:
    red = torch.tensor([1.0, 0.0, 0.0]).reshape(1, 3, 1, 1)
    green = colour.adjust_hue(red, torch.tensor([1 / 3]))
    torch.testing.assert_close(green.flatten(), torch.tensor([0.0, 1.0, 0.0]), atol=1e-6, rtol=0)


def test_neutral_parameters_leave_pictures_alone() -> None:
    pictures = colour.to_float(torch.from_numpy(random_pictures(3)))
    one, zero = torch.ones(3), torch.zeros(3)
    assert torch.equal(colour.adjust_brightness(pictures, one), pictures)
    assert torch.equal(colour.adjust_contrast(pictures, one), pictures)
    assert torch.equal(colour.adjust_saturation(pictures, one), pictures)
    torch.testing.assert_close(colour.adjust_hue(pictures, zero), pictures, atol=1e-6, rtol=0)


def test_one_channel_has_no_colour_to_change() -> None:
    pictures = colour.to_float(torch.from_numpy(random_pictures(2, channels=1)))
    parameter = torch.tensor([0.2, 0.4])
    assert torch.equal(colour.to_grey(pictures), pictures)
    assert torch.equal(colour.adjust_saturation(pictures, parameter), pictures)
    assert torch.equal(colour.adjust_hue(pictures, parameter), pictures)


@pytest.mark.parametrize(
    "operation",
    [
        colour.adjust_brightness,
        colour.adjust_contrast,
        colour.adjust_saturation,
        colour.adjust_hue,
        colour.solarise,
    ],
)
def test_each_sample_has_its_own_parameter(operation: Callable[[Tensor, Tensor], Tensor]) -> None:
    pictures = colour.to_float(torch.from_numpy(random_pictures(1))).expand(3, -1, -1, -1)
    parameters = torch.tensor([0.2, 0.4, 0.2])
    together = operation(pictures, parameters)
    assert torch.equal(together[0], together[2])
    assert not torch.allclose(together[0], together[1], atol=0.01)
    for index in range(3):
        alone = operation(pictures[index : index + 1], parameters[index : index + 1])
        torch.testing.assert_close(together[index : index + 1], alone)


def test_pictures_of_a_wrong_kind_are_refused() -> None:
    with pytest.raises(UserError, match=r"expected uint8 .* found float32 of shape \(2, 3, 4, 4\)"):
        colour.to_float(torch.zeros(2, 3, 4, 4))
    with pytest.raises(UserError, match=r"found uint8 of shape \(2, 4, 4, 4\)"):
        colour.to_float(torch.zeros(2, 4, 4, 4, dtype=torch.uint8))
    with pytest.raises(UserError, match="a std of 1 number for pictures with 1 channel, found 3"):
        colour.standardise(torch.zeros(2, 1, 4, 4), [0.5], [1.0, 1.0, 1.0])
