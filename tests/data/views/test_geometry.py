"""Crops, affine maps, warps and blurs against references made another way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from eigenshot.data.views import geometry
from eigenshot.errors import UserError


def random_pictures(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def bilinear_crop(picture: np.ndarray, box: list[float], size: int) -> np.ndarray:
    """(channels, size, size): the box of (channels, height, width), by np.interp on each axis."""
    left, top, width, height = box
    centres = (np.arange(size) + 0.5) / size
    columns = (left + width * centres) * picture.shape[2] - 0.5
    rows = (top + height * centres) * picture.shape[1] - 0.5

    def along(values: np.ndarray, places: np.ndarray) -> np.ndarray:
        # np.interp repeats the outermost value beyond the ends, as the crop does at the border.
        return np.apply_along_axis(
            lambda line: np.interp(places, np.arange(len(line)), line), -1, values
        )

    return along(along(picture, columns).swapaxes(1, 2), rows).swapaxes(1, 2)


BOXES = [[0.0, 0.0, 1.0, 1.0], [0.25, 0.125, 0.5, 0.75], [0.4, 0.31, 0.6, 0.33]]


@pytest.mark.parametrize("size", [16, 29])
def test_crops_equal_bilinear_interpolation_along_each_axis(size: int) -> None:
    pictures = random_pictures(3, 3, 20, 24)
    result = geometry.random_resized_crop(pictures, torch.tensor(BOXES), size)
    for picture, box, crop in zip(pictures.numpy(), BOXES, result, strict=True):
        np.testing.assert_allclose(crop.numpy(), bilinear_crop(picture, box, size), atol=2e-5)


def test_crop_equals_pillows_transform() -> None:
    picture = random_pictures(1, 1, 24, 24)
    result = geometry.random_resized_crop(picture, torch.tensor(BOXES[1:2]), 24)
    left, top, width, height = (24 * share for share in BOXES[1])
    expected = Image.fromarray(picture[0, 0].numpy()).transform(
        (24, 24),
        Image.Transform.EXTENT,
        (left, top, left + width, top + height),
        Image.Resampling.BILINEAR,
    )
    np.testing.assert_allclose(result[0, 0].numpy(), np.asarray(expected), atol=1e-5)


def test_crop_of_the_whole_picture_is_the_picture() -> None:
    pictures = random_pictures(2, 3, 32, 32)
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2)
    torch.testing.assert_close(
        geometry.random_resized_crop(pictures, boxes, 32), pictures, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize(("side", "size", "times"), [(48, 20, 2), (48, 12, 2), (48, 11, 4)])
def test_small_views_of_large_pictures_are_read_from_smaller_ones(
    side: int, size: int, times: int
) -> None:
    pictures = random_pictures(3, 3, side, side)
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.1, 0.3, 0.85], [0.4, 0.4, 0.3, 0.3]])
    smaller = functional.avg_pool2d(pictures, times)
    result = geometry.random_resized_crop(pictures, boxes, size)
    # The last crop is small enough to be read from the picture itself.
    for source, rows in ((smaller, slice(1)), (pictures, slice(2, 3))):
        matrix = geometry.crop_matrix(boxes[rows])
        torch.testing.assert_close(result[rows], geometry.sample(source[rows], matrix, size))
    # The longer side of a box decides.
    source = smaller if 0.85 * side / size > times else functional.avg_pool2d(pictures, times // 2)
    matrix = geometry.crop_matrix(boxes[1:2])
    torch.testing.assert_close(result[1:2], geometry.sample(source[1:2], matrix, size))


def test_a_small_view_has_no_more_noise_than_its_picture_made_small() -> None:
    pictures, boxes = random_pictures(40, 3, 96, 96), torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 40)
    by_crop = geometry.random_resized_crop(pictures, boxes, 16).std()
    assert by_crop < 1.6 * geometry.resize(pictures, 16).std()
    assert geometry.sample(pictures, geometry.crop_matrix(boxes), 16).std() > 2 * by_crop


def test_reading_from_a_smaller_picture_moves_nothing() -> None:
    ramp = torch.linspace(0, 1, 96).expand(1, 1, 96, 96)
    crop = geometry.random_resized_crop(ramp, torch.tensor([[0.05, 0.05, 0.9, 0.9]]), 16)
    matrix = geometry.crop_matrix(torch.tensor([[0.05, 0.05, 0.9, 0.9]]))
    torch.testing.assert_close(crop, geometry.sample(ramp, matrix, 16), atol=1e-5, rtol=0)


def test_boxes_lie_inside_and_have_the_asked_area_and_shape() -> None:
    uniforms = random_pictures(20_000, 4)
    aspect = 1.5  # pictures half as wide again as high
    boxes = geometry.random_boxes(uniforms, (0.1, 0.4), ratio=2.0, aspect=aspect)
    left, top, width, height = boxes.unbind(1)
    assert boxes.min() >= 0
    assert (left + width).max() <= 1 + 1e-6
    assert (top + height).max() <= 1 + 1e-6
    area, shape = width * height, width * aspect / height
    # The tallest boxes, up to √(0.4 × 2 × 1.5) of the side, are cut; their area is smaller.
    whole = height < 1
    assert whole.float().mean() > 0.95
    assert 0.1 - 1e-5 <= area[whole].min() < 0.11
    assert 0.39 < area[whole].max() <= 0.4 + 1e-5
    assert 0.5 - 1e-4 <= shape[whole].min() < 0.51
    assert 1.99 < shape.max() <= 2 + 1e-4
    assert area[whole].mean().item() == pytest.approx(0.25, abs=0.01)


def test_boxes_longer_than_the_picture_are_cut_to_it() -> None:
    uniforms = torch.tensor([[0.5, 0.5, 0.9999999, 0.9999999], [0.5, 0.5, 0.9999999, 0.0]])
    boxes = geometry.random_boxes(uniforms, (0.2, 1.0), ratio=4 / 3)
    short = math.sqrt(3 / 4)
    rest = (1 - short) / 2
    expected = torch.tensor([[0.0, rest, 1.0, short], [rest, 0.0, short, 1.0]])
    torch.testing.assert_close(boxes, expected, atol=1e-5, rtol=0)


def test_flips_mirror_the_chosen_samples_and_undo_themselves() -> None:
    pictures = random_pictures(3, 2, 12, 12)
    horizontal, vertical = torch.tensor([True, False, True]), torch.tensor([False, True, True])
    whole = geometry.crop_matrix(torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 3))
    matrix = geometry.flip_matrix(whole, horizontal=horizontal, vertical=vertical)
    once = geometry.sample(pictures, matrix, 12)
    expected = torch.stack((pictures[0].flip(2), pictures[1].flip(1), pictures[2].flip(1, 2)))
    torch.testing.assert_close(once, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(geometry.sample(once, matrix, 12), pictures, atol=1e-5, rtol=0)
    exact = geometry.flip(pictures, horizontal)
    assert torch.equal(exact[0], pictures[0].flip(2))
    assert torch.equal(exact[1], pictures[1])
    assert torch.equal(geometry.flip(exact, horizontal), pictures)


def test_a_flipped_crop_is_the_mirror_image_of_the_crop() -> None:
    pictures, boxes = random_pictures(1, 1, 20, 20), torch.tensor([[0.1, 0.3, 0.4, 0.5]])
    matrix = geometry.flip_matrix(geometry.crop_matrix(boxes), horizontal=torch.tensor([True]))
    torch.testing.assert_close(
        geometry.sample(pictures, matrix, 16),
        geometry.random_resized_crop(pictures, boxes, 16).flip(3),
        atol=1e-5,
        rtol=0,
    )


def affine(
    pictures: Tensor,
    rotation: float = 0.0,
    shear: float = 0.0,
    scale: float = 1.0,
    shift: tuple[float, float] = (0.0, 0.0),
) -> Tensor:
    """The same affine map for a whole batch of square pictures."""
    count = len(pictures)
    matrix = geometry.affine_matrix(
        torch.full((count,), rotation),
        torch.full((count,), shear),
        torch.full((count,), scale),
        torch.tensor([shift] * count),
    )
    return geometry.sample(pictures, matrix, pictures.shape[-1], padding="zeros")


def test_neutral_affine_map_is_the_identity() -> None:
    pictures = random_pictures(2, 1, 28, 28)
    torch.testing.assert_close(affine(pictures), pictures, atol=1e-5, rtol=0)


@pytest.mark.parametrize("quarter_turns", [1, 2, 3, -1])
def test_quarter_turns_equal_rot90(quarter_turns: int) -> None:
    pictures = random_pictures(2, 3, 15, 15)
    torch.testing.assert_close(
        affine(pictures, rotation=90.0 * quarter_turns),
        torch.rot90(pictures, quarter_turns, dims=(2, 3)),
        atol=1e-5,
        rtol=0,
    )


def test_rotation_equals_pillows_away_from_the_border() -> None:
    picture = random_pictures(1, 1, 32, 32)
    expected = Image.fromarray(picture[0, 0].numpy()).rotate(25, Image.Resampling.BILINEAR)
    found = affine(picture, rotation=25.0)[0, 0].numpy()
    np.testing.assert_allclose(found[8:24, 8:24], np.asarray(expected)[8:24, 8:24], atol=1e-4)


def test_whole_pixel_shift_moves_right_and_down_and_fills_with_zeros() -> None:
    pictures = random_pictures(1, 1, 10, 10)
    expected = torch.zeros_like(pictures)
    expected[:, :, 1:, 3:] = pictures[:, :, :-1, :-3]
    torch.testing.assert_close(affine(pictures, shift=(0.3, 0.1)), expected, atol=1e-5, rtol=0)


def test_scale_two_magnifies_the_middle() -> None:
    pictures = random_pictures(1, 1, 16, 16)
    middle = geometry.random_resized_crop(pictures, torch.tensor([[0.25, 0.25, 0.5, 0.5]]), 16)
    torch.testing.assert_close(affine(pictures, scale=2.0), middle, atol=1e-5, rtol=0)


def test_shear_of_45_degrees_moves_each_row_by_its_height() -> None:
    pictures = random_pictures(1, 1, 11, 11)
    sheared = affine(pictures, shear=45.0)
    torch.testing.assert_close(sheared[0, 0, 5], pictures[0, 0, 5], atol=1e-5, rtol=0)
    torch.testing.assert_close(sheared[0, 0, 8, 3:], pictures[0, 0, 8, :-3], atol=1e-5, rtol=0)
    torch.testing.assert_close(sheared[0, 0, 2, :-3], pictures[0, 0, 2, 3:], atol=1e-5, rtol=0)


def test_affine_parameters_compose_as_documented() -> None:
    """A bright dot lands where scaling, shearing, rotating, shifting its place by hand puts it."""
    size, rotation, shear, scale, shift = 101, 30.0, 20.0, 1.2, (0.1, -0.05)
    row, column = 60, 65
    picture = torch.zeros(1, 1, size, size)
    picture[0, 0, row - 1 : row + 2, column - 1 : column + 2] = 1.0
    x, y = (column - 50) * scale, (row - 50) * scale
    x += math.tan(math.radians(shear)) * y
    cosine, sine = math.cos(math.radians(rotation)), math.sin(math.radians(rotation))
    x, y = cosine * x + sine * y, -sine * x + cosine * y  # counter-clockwise with y down
    found = affine(picture, rotation, shear, scale, shift)[0, 0].numpy()
    expected = (50 + y + shift[1] * size, 50 + x + shift[0] * size)
    assert ndimage.center_of_mass(found) == pytest.approx(expected, abs=0.05)


def test_each_sample_has_its_own_map() -> None:
    pictures = random_pictures(1, 1, 14, 14).expand(2, -1, -1, -1)
    zero, one = torch.zeros(2), torch.ones(2)
    matrix = geometry.affine_matrix(torch.tensor([0.0, 90.0]), zero, one, torch.zeros(2, 2))
    result = geometry.sample(pictures, matrix, 14)
    torch.testing.assert_close(result[0], pictures[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(result[1], pictures[1].rot90(1, (1, 2)), atol=1e-5, rtol=0)


def test_constant_elastic_field_is_a_shift_and_zero_field_the_identity() -> None:
    pictures = random_pictures(2, 1, 20, 20)
    whole = geometry.crop_matrix(torch.tensor([[0.0, 0.0, 1.0, 1.0]] * 2))
    field = torch.zeros(2, 2, 4, 4)
    field[1, 0] = 0.1  # read two pixels further right
    result = geometry.sample(pictures, whole, 20, field=field, padding="zeros")
    torch.testing.assert_close(result[0], pictures[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(result[1, :, :, :-2], pictures[1, :, :, 2:], atol=1e-5, rtol=0)


def test_elastic_displacement_is_smooth_and_meets_its_corner_knots() -> None:
    field = random_pictures(3, 2, 4, 4) * 0.1 - 0.05
    displacement = geometry.elastic_displacement(field, 28)
    assert displacement.shape == (3, 28, 28, 2)
    whole = functional.interpolate(field, (28, 28), mode="bicubic", align_corners=True)
    torch.testing.assert_close(displacement, 2 * whole.permute(0, 2, 3, 1), atol=1e-6, rtol=0)
    torch.testing.assert_close(displacement[:, 0, 0], 2 * field[:, :, 0, 0])
    torch.testing.assert_close(displacement[:, -1, -1], 2 * field[:, :, -1, -1])
    # Knots are 9 pixels apart and differ by at most 0.1 of the side: a fold needs a step of 2/28.
    assert displacement.diff(dim=1).abs().max() < 0.06
    assert displacement.diff(dim=2).abs().max() < 0.06


@pytest.mark.parametrize("kernel_size", [3, 9])
def test_blur_equals_scipys(kernel_size: int) -> None:
    sigmas = [0.1, 0.7, 2.0]
    pictures = random_pictures(3, 2, 18, 21)
    result = geometry.gaussian_blur(pictures, torch.tensor(sigmas), kernel_size)
    for picture, sigma, blurred in zip(pictures.double().numpy(), sigmas, result, strict=True):
        expected = ndimage.gaussian_filter(
            picture, sigma, axes=(1, 2), radius=kernel_size // 2, mode="mirror"
        )
        np.testing.assert_allclose(blurred.numpy(), expected, atol=1e-6)


def test_blur_of_width_zero_is_the_identity() -> None:
    pictures = random_pictures(2, 1, 12, 12)
    blurred = geometry.gaussian_blur(pictures, torch.tensor([0.0, 1.0]), 5)
    assert torch.equal(blurred[0], pictures[0])
    assert not torch.allclose(blurred[1], pictures[1], atol=0.01)


@pytest.mark.parametrize("kernel_size", [4, 25])
def test_blur_refuses_impossible_kernels(kernel_size: int) -> None:
    with pytest.raises(UserError, match=f"odd kernel_size below 24 .* 12×12, found {kernel_size}"):
        geometry.gaussian_blur(random_pictures(1, 1, 12, 12), torch.ones(1), kernel_size)


@pytest.mark.parametrize("kernel_size", [3, 5])
def test_full_strokes_are_scipys_dilation_and_erosion(kernel_size: int) -> None:
    pictures = random_pictures(4, 3, 16, 16)
    result = geometry.stroke(pictures, torch.tensor([1.0, -1.0, 0.0, 0.5]), kernel_size)
    window = (1, kernel_size, kernel_size)
    thicker = ndimage.grey_dilation(pictures[0].numpy(), window, mode="nearest")
    thinner = ndimage.grey_erosion(pictures[1].numpy(), window, mode="nearest")
    np.testing.assert_array_equal(result[0].numpy(), thicker)
    np.testing.assert_array_equal(result[1].numpy(), thinner)
    assert torch.equal(result[2], pictures[2])
    halfway = (pictures[3].numpy() + ndimage.grey_dilation(pictures[3].numpy(), window)) / 2
    np.testing.assert_allclose(result[3, :, 3:-3, 3:-3].numpy(), halfway[:, 3:-3, 3:-3], atol=1e-6)


def test_erase_empties_the_boxes_of_the_chosen_samples_alone() -> None:
    pictures = torch.ones(2, 3, 10, 20)
    boxes = torch.tensor([[0.25, 0.1, 0.5, 0.3]] * 2)
    result = geometry.erase(pictures, boxes, torch.tensor([True, False]))
    expected = torch.ones(3, 10, 20)
    expected[:, 1:4, 5:15] = 0.0
    assert torch.equal(result[0], expected)
    assert torch.equal(result[1], pictures[1])


def test_resize_keeps_the_size_it_finds_and_averages_when_it_shrinks() -> None:
    pictures = random_pictures(2, 3, 32, 32)
    assert geometry.resize(pictures, 32) is pictures
    assert geometry.resize(pictures, 48).shape == (2, 3, 48, 48)
    # A checkerboard shrunk to half is grey only when it is smoothed; picking pixels would alias.
    board = (torch.arange(32)[:, None] + torch.arange(32)).remainder(2).float().expand(1, 1, 32, 32)
    small = geometry.resize(board, 16)
    torch.testing.assert_close(
        small[:, :, 2:-2, 2:-2], torch.full((1, 1, 12, 12), 0.5), atol=0.02, rtol=0
    )
