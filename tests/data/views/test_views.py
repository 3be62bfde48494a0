"""View makers: what is drawn, what is applied, and that one is nothing but the other."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenshot.data.views import colour, geometry
from eigenshot.data.views.views import (
    SimclrOptions,
    SimclrView,
    StrokeOptions,
    StrokeView,
    TwoViews,
    View,
    create_view,
    normalise,
)
from eigenshot.errors import UserError

KINDS = ["simclr", "strokes", "none"]
STILL_SIMCLR: dict[str, Any] = {
    "crop_area_min": 1.0,
    "crop_ratio": 1.0,
    "flip": 0.0,
    "jitter": 0.0,
    "grey": 0.0,
    "blur": 0.0,
}
STILL_STROKES: dict[str, Any] = {
    "rotation": 0.0,
    "shear": 0.0,
    "scale_min": 1.0,
    "scale_max": 1.0,
    "shift": 0.0,
    "elastic": 0.0,
    "stroke": 0.0,
    "erase": 0.0,
    "noise": 0.0,
}


def seeded(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def random_pictures(count: int = 8, channels: int = 3, side: int = 20) -> Tensor:
    shape = (count, channels, side, side)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=seeded(7))


def view_of(kind: str, size: int = 20, **options: Any) -> View:
    """A view maker that leaves values in [0, 1]."""
    return create_view(kind, options, size=size, mean=[0.0], std=[1.0])


def simclr_view(**options: Any) -> SimclrView:
    return SimclrView(SimclrOptions(**options), 20, [0.0], [1.0])


def stroke_view(**options: Any) -> StrokeView:
    return StrokeView(StrokeOptions(**options), 20, [0.0], [1.0])


def changed(views: Tensor, images: Tensor) -> Tensor:
    """(batch,) which samples differ from the pictures by more than rounding."""
    return (views - images.float() / 255).abs().amax(dim=(1, 2, 3)) > 1e-4


def test_normalise_is_the_formula() -> None:
    images, mean, std = random_pictures(2), [0.5, 0.4, 0.3], [0.2, 0.25, 0.3]
    found = normalise(images, mean, std)
    assert found.dtype == torch.float32
    for channel in range(3):
        expected = (images[:, channel].double() / 255 - mean[channel]) / std[channel]
        torch.testing.assert_close(found[:, channel].double(), expected, atol=1e-5, rtol=0)
    assert torch.equal(normalise(images, torch.tensor(mean), torch.tensor(std)), found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("count", [1, 5])
def test_views_have_the_asked_size_and_stay_pictures(kind: str, channels: int, count: int) -> None:
    views = view_of(kind, size=28)(random_pictures(count, channels), seeded())
    assert views.shape == (count, channels, 28, 28)
    assert views.dtype == torch.float32
    assert views.min() >= -1e-6
    assert views.max() <= 1 + 1e-6
    assert views.std() > 0.05


@pytest.mark.parametrize("kind", KINDS)
def test_views_are_normalised_at_the_end(kind: str) -> None:
    images = random_pictures()
    plain = view_of(kind)(images, seeded())
    maker = create_view(kind, {}, size=20, mean=[0.5, 0.4, 0.3], std=[0.2, 0.25, 0.3])
    expected = colour.standardise(plain, [0.5, 0.4, 0.3], [0.2, 0.25, 0.3])
    torch.testing.assert_close(maker(images, seeded()), expected)


@pytest.mark.parametrize("kind", ["simclr", "strokes"])
def test_the_seed_decides_the_views_and_samples_differ(kind: str) -> None:
    images = random_pictures(1).expand(6, -1, -1, -1)
    maker = view_of(kind)
    views = maker(images, seeded(1))
    assert torch.equal(views, maker(images, seeded(1)))
    assert not torch.allclose(views, maker(images, seeded(2)), atol=0.05)
    for first in range(6):
        for second in range(first):
            assert not torch.allclose(views[first], views[second], atol=0.05)


@pytest.mark.parametrize("kind", ["simclr", "strokes"])
def test_only_the_given_generator_is_used(kind: str) -> None:
    maker, images = view_of(kind), random_pictures()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    generator = seeded()
    first = maker(images, generator)
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.allclose(first, maker(images, generator), atol=0.05)


@pytest.mark.parametrize("kind", ["simclr", "strokes"])
def test_a_sample_depends_on_its_own_picture_and_parameters_alone(kind: str) -> None:
    maker, images = view_of(kind), random_pictures(4)
    floats = colour.to_float(images)
    parameters = maker.draw(images.shape, seeded())
    together = maker.transform(floats, parameters)
    for index in range(4):
        own = {
            field.name: getattr(parameters, field.name)[index : index + 1]
            for field in dataclasses.fields(parameters)
        }
        alone = maker.transform(floats[index : index + 1], type(parameters)(**own))
        torch.testing.assert_close(alone, together[index : index + 1], atol=1e-5, rtol=0)


@pytest.mark.parametrize(("kind", "still"), [("simclr", STILL_SIMCLR), ("strokes", STILL_STROKES)])
def test_with_everything_off_views_are_the_pictures(kind: str, still: dict[str, Any]) -> None:
    images = random_pictures()
    assert torch.equal(view_of(kind, **still)(images, seeded()), images.float() / 255)
    assert torch.equal(view_of("none")(images, seeded()), images.float() / 255)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("simclr", {"crop_area_min": 0.5}),
        ("simclr", {"flip": 1.0}),
        ("simclr", {"jitter": 1.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}),
        ("simclr", {"jitter": 1.0, "brightness": 0.0, "saturation": 0.0, "hue": 0.0}),
        ("simclr", {"jitter": 1.0, "brightness": 0.0, "contrast": 0.0, "hue": 0.0}),
        ("simclr", {"jitter": 1.0, "brightness": 0.0, "contrast": 0.0, "saturation": 0.0}),
        ("simclr", {"grey": 1.0}),
        ("simclr", {"blur": 1.0, "blur_sigma_min": 0.5}),
        ("simclr", {"solarise": 1.0}),
        ("strokes", {"rotation": 20.0}),
        ("strokes", {"shear": 20.0}),
        ("strokes", {"scale_max": 1.5}),
        ("strokes", {"shift": 0.2}),
        ("strokes", {"elastic": 0.1}),
        ("strokes", {"stroke": 1.0}),
        ("strokes", {"erase": 1.0}),
        ("strokes", {"noise": 0.1}),
    ],
)
def test_each_operation_alone_changes_every_sample(kind: str, option: dict[str, Any]) -> None:
    images = random_pictures(32)
    still = STILL_SIMCLR if kind == "simclr" else STILL_STROKES
    assert changed(view_of(kind, **{**still, **option})(images, seeded()), images).all()


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("simclr", {"flip": 0.5}),
        ("simclr", {"jitter": 0.5}),
        ("simclr", {"grey": 0.5}),
        ("simclr", {"blur": 0.5, "blur_sigma_min": 0.5}),
        ("simclr", {"solarise": 0.5}),
        ("strokes", {"stroke": 0.5}),
        ("strokes", {"erase": 0.5}),
    ],
)
def test_half_a_probability_changes_half_the_samples(kind: str, option: dict[str, Any]) -> None:
    images = random_pictures(4000, side=8)
    still = STILL_SIMCLR if kind == "simclr" else STILL_STROKES
    views = view_of(kind, size=8, **{**still, **option})(images, seeded())
    share = changed(views, images).float().mean().item()
    assert share == pytest.approx(0.5, abs=0.032)  # four standard errors of 4000 coin tosses


def test_simclr_parameters_fill_their_ranges() -> None:
    maker = simclr_view(jitter=1.0, brightness=0.4, saturation=1.5, blur=1.0, solarise=1.0)
    drawn = maker.draw((20_000, 3, 32, 32), seeded())
    ranges = {
        "brightness": (0.6, 1.4),
        "contrast": (0.6, 1.4),
        "saturation": (0.0, 2.5),  # a factor is never below 0
        "hue": (-0.1, 0.1),
        "blur_sigma": (0.1, 2.0),
    }
    for name, (low, high) in ranges.items():
        values = getattr(drawn, name)
        assert low - 1e-5 <= values.min() <= low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) <= values.max() <= high + 1e-5
        assert values.mean().item() == pytest.approx((low + high) / 2, abs=0.02 * (high - low))
    assert torch.equal(drawn.solarise, torch.full((20_000,), 0.5))


def test_a_blur_can_grow_with_the_view() -> None:
    shape = (200, 3, 84, 84)
    fixed = view_of("simclr", size=56, blur=1.0).draw(shape, seeded())
    maker = view_of("simclr", size=56, blur=1.0, blur_side=224)
    torch.testing.assert_close(maker.draw(shape, seeded()).blur_sigma, fixed.blur_sigma / 4)
    maker.size = 112
    torch.testing.assert_close(maker.draw(shape, seeded()).blur_sigma, fixed.blur_sigma / 2)


def test_stroke_parameters_fill_their_ranges() -> None:
    drawn = stroke_view(stroke=1.0, stroke_strength=0.5).draw((20_000, 1, 8, 8), seeded())
    ranges = {
        "rotation": (-15.0, 15.0),
        "shear": (-10.0, 10.0),
        "scale": (0.8, 1.2),
        "shift": (-0.1, 0.1),
        "field": (-0.04, 0.04),
        "stroke": (-0.5, 0.5),
    }
    for name, (low, high) in ranges.items():
        values = getattr(drawn, name)
        assert low - 1e-5 <= values.min() <= low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) <= values.max() <= high + 1e-5
    assert drawn.noise is not None
    assert drawn.noise.std().item() == pytest.approx(0.05, rel=0.01)


def test_parameters_of_one_sample_are_independent() -> None:
    """Two parameters that shared a random number would be perfectly correlated."""
    drawn = simclr_view(jitter=1.0, blur=1.0).draw((5000, 3, 32, 32), seeded())
    columns = torch.stack(
        [
            drawn.boxes[:, 2] * drawn.boxes[:, 3],
            drawn.flip.float(),
            drawn.brightness,
            drawn.contrast,
            drawn.saturation,
            drawn.hue,
            drawn.grey.float(),
            drawn.blur_sigma,
        ]
    )
    correlation = torch.corrcoef(columns) - torch.eye(len(columns))
    assert correlation.abs().max() < 0.07  # five standard errors


def test_turning_one_operation_off_leaves_the_other_draws_alone() -> None:
    shape = (16, 3, 20, 20)
    with_flip = simclr_view().draw(shape, seeded())
    without = simclr_view(flip=0.0, hue=0.0).draw(shape, seeded())
    for name in ("boxes", "brightness", "contrast", "saturation", "grey", "blur_sigma"):
        assert torch.equal(getattr(with_flip, name), getattr(without, name))
    assert with_flip.flip.any()
    assert not without.flip.any()


def test_simclr_applies_its_operations_in_the_documented_order() -> None:
    maker = simclr_view(jitter=1.0, blur=1.0, solarise=0.5)
    images = colour.to_float(random_pictures(6))
    drawn = maker.draw(images.shape, seeded())
    expected = geometry.random_resized_crop(images, drawn.boxes, 20)
    expected = geometry.flip(expected, drawn.flip)
    expected = colour.adjust_brightness(expected, drawn.brightness)
    expected = colour.adjust_contrast(expected, drawn.contrast)
    expected = colour.adjust_saturation(expected, drawn.saturation)
    expected = colour.adjust_hue(expected, drawn.hue)
    expected[drawn.grey] = colour.to_grey(expected[drawn.grey])
    expected = geometry.gaussian_blur(expected, drawn.blur_sigma, 3)
    expected = colour.solarise(expected, drawn.solarise)
    found = maker.transform(images, drawn)
    # Solarising jumps at its threshold, so a pixel on it may fall to either side.
    assert ((found - expected).abs() > 1e-4).float().mean() < 1e-3


def test_erased_rectangles_are_background_of_the_asked_area() -> None:
    options = {**STILL_STROKES, "erase": 1.0, "erase_area_min": 0.1, "erase_area_max": 0.2}
    images = torch.full((500, 1, 40, 40), 255, dtype=torch.uint8)
    views = view_of("strokes", size=40, **options)(images, seeded())
    assert set(views.unique().tolist()) == {0.0, 1.0}
    area = (views == 0).float().mean(dim=(1, 2, 3))
    assert area.min() > 0.07  # the edges fall between pixels
    assert area.max() < 0.23
    assert area.mean().item() == pytest.approx(0.15, abs=0.01)


def test_two_views_follow_their_own_options() -> None:
    images = random_pictures()
    still, solarised = view_of("none"), view_of("simclr", **{**STILL_SIMCLR, "solarise": 1.0})
    view_a, view_b = TwoViews(still, solarised)(images, seeded())
    floats = images.float() / 255
    assert torch.equal(view_a, floats)
    torch.testing.assert_close(view_b, torch.where(floats < 0.5, floats, 1 - floats))
    maker = view_of("simclr")
    view_a, view_b = TwoViews(maker, maker)(images, seeded())
    assert not torch.allclose(view_a, view_b, atol=0.05)


def test_view_makers_have_no_state_to_save_and_move_with_their_module() -> None:
    pair = TwoViews(view_of("simclr"), view_of("strokes"))
    assert pair.state_dict() == {}
    assert isinstance(pair, nn.Module)
    assert pair.to("meta").view_a.mean.device.type == "meta"


def test_views_are_full_precision_inside_autocast() -> None:
    maker, images = view_of("simclr"), random_pictures()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        views = maker(images, seeded())
    assert torch.equal(views, maker(images, seeded()))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"flip": 1.5}, r"expected the augmentation's flip in \[0, 1\], found 1.5"),
        ({"grey": -0.1}, r"grey in \[0, 1\], found -0.1"),
        ({"hue": 0.6}, r"hue in \[0, 0.5\], found 0.6"),
        ({"crop_ratio": 0.5}, r"crop_ratio in \[1, 10\], found 0.5"),
        ({"blur": float("nan")}, r"blur in \[0, 1\], found nan"),
        ({"jitter": "often"}, r"jitter in \[0, 1\], found 'often'"),
        ({"jitter": True}, r"jitter in \[0, 1\], found True"),
        (
            {"crop_area_min": 0.9, "crop_area_max": 0.3},
            "augmentation's crop_area_min ≤ crop_area_max, found 0.9 and 0.3",
        ),
        ({"blur_sigma_min": 3.0}, "blur_sigma_min ≤ blur_sigma_max, found 3.0 and 2"),
        ({"solarize": 0.2}, "'simclr' has no option 'solarize'; did you mean 'solarise'"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        view_of("simclr", **options)


def test_other_misuse_is_named() -> None:
    with pytest.raises(UserError, match="unknown augmentation 'simclar'; did you mean 'simclr'"):
        view_of("simclar")
    with pytest.raises(UserError, match="augmentation 'none' has no option 'flip'"):
        view_of("none", flip=0.5)
    with pytest.raises(UserError, match=r"scale_min ≤ scale_max"):
        view_of("strokes", scale_min=2.0)
    with pytest.raises(UserError, match="view size of at least 1 pixel, found 0"):
        view_of("none", size=0)
    with pytest.raises(UserError, match=r"std above 0 in every channel, found \[0.0\]"):
        create_view("none", {}, size=8, mean=[0.0], std=[0.0])
    with pytest.raises(UserError, match="expected uint8 pictures"):
        view_of("simclr")(torch.zeros(2, 3, 8, 8), seeded())
    with pytest.raises(UserError, match="mean of 1 or 3 numbers for pictures with 3 channels"):
        normalise(random_pictures(), [0.5, 0.5], [1.0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["simclr", "strokes"])
def test_views_on_a_gpu_equal_the_cpus_and_can_be_captured(kind: str) -> None:
    images = random_pictures(16)
    maker = view_of(kind)
    drawn = maker.draw(images.shape, seeded())
    moved = type(drawn)(
        **{field.name: getattr(drawn, field.name).cuda() for field in dataclasses.fields(drawn)}
    )
    on_cpu = maker.transform(colour.to_float(images), drawn)
    on_gpu = maker.transform(colour.to_float(images.cuda()), moved)
    torch.testing.assert_close(on_gpu.cpu(), on_cpu, atol=1e-4, rtol=0)

    maker, resident = maker.cuda(), images.cuda()
    eager = [maker(resident, generator) for generator in [seeded(5, "cuda")] for _ in range(2)]
    generator, graph = seeded(5, "cuda"), torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        captured = maker(resident, generator)
    generator.manual_seed(5)
    for expected in eager:
        graph.replay()
        torch.testing.assert_close(captured, expected, atol=1e-5, rtol=0)
