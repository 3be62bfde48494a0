"""What "auto" means for images of any size: how large they are kept, cut and looked at."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from eigenshot.config import Config, differences
from eigenshot.configfile import config_from_table, load_config, to_toml
from eigenshot.data.source import ArraySource
from eigenshot.encoder import load_encoder
from eigenshot.errors import UserError
from eigenshot.training.choices import adopt_choices, resolve_batch, resolve_size
from eigenshot.training.pretrain import pretrain


def settled(data: Any, device: str = "cpu", **changes: Any) -> Config:
    asked = {key.replace("__", "."): value for key, value in changes.items()}
    return resolve_size(load_config("folder", asked), data, device)


def sizes(config: Config) -> tuple[Any, Any, Any]:
    return config.data.image_size, config.training.resolution, config.training.encoder_size


@pytest.mark.parametrize(
    ("device", "side", "looked_at"), [("cpu", 64, 90), ("cuda", 84, 118), ("mps", 64, 90)]
)
def test_photographs_are_kept_and_looked_at_larger_than_their_views(
    device: str, side: int, looked_at: int
) -> None:
    # No GPU is asked for: float32 is what every device has.
    config = settled("photos/", device, engine__precision="float32")
    assert sizes(config) == (2 * side, ((0.0, side),), looked_at)


def test_views_of_one_s_own_decide_how_large_they_are_kept() -> None:
    stages = [[0, 32], [0.3, 96], [0.9, 80]]
    config = settled("photos/", training__resolution=stages)
    assert sizes(config) == (192, ((0.0, 32), (0.3, 96), (0.9, 80)), 112)


def test_a_size_to_look_at_of_one_s_own_is_left_alone() -> None:
    assert sizes(settled("photos/", training__encoder_size=64)) == (128, ((0.0, 64),), 64)


def test_a_size_of_one_s_own_is_that_of_the_views_too() -> None:
    assert sizes(settled("photos/", data__image_size=100)) == (100, (), 0)


@pytest.mark.parametrize("data", ["images.npz", "glyphs", "fc100"])
def test_images_that_have_a_size_keep_it(data: str) -> None:
    assert sizes(settled(data)) == ("auto", (), 0)


@pytest.mark.parametrize(
    "changes", [{}, {"training__resolution": [[0, 48]]}, {"training__encoder_size": 70}]
)
def test_a_run_that_goes_on_has_the_sizes_that_it_began_with(changes: dict[str, Any]) -> None:
    begun = settled("photos/", "mps", engine__precision="float32", **changes)
    asked = load_config("folder", {key.replace("__", "."): v for key, v in changes.items()})
    assert sizes(adopt_choices(asked, begun, "photos/")) == sizes(begun)


def told(asked: dict[str, Any], begun: Config, data: Any = "photos/") -> list[str]:
    """What keeps a run that was started with the settled ``begun`` from going on as ``asked``."""
    stored = config_from_table(tomllib.loads(to_toml(begun)))
    config = resolve_size(adopt_choices(load_config("folder", asked), stored, data), data, "cpu")
    return [line.partition(":")[0] for line in differences(stored, config)]


@pytest.mark.parametrize("data", ["photos/", "images.npz"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    "changes", [{"training.resolution": [[0, 48]]}, {"training.encoder_size": 70}]
)
def test_sizes_that_were_asked_for_are_to_be_asked_for_again(
    changes: dict[str, Any], device: str, data: str
) -> None:
    begun = resolve_size(
        load_config("folder", {"engine.precision": "float32", **changes}), data, device
    )
    assert told(changes, begun, data) == []
    assert told({}, begun, data) == list(changes)


I96, I128 = {"data.image_size": 96}, {"data.image_size": 128}
V48, V64 = {"training.resolution": [[0, 48]]}, {"training.resolution": [[0, 64]]}
E67, E70 = {"training.encoder_size": 67}, {"training.encoder_size": 70}


@pytest.mark.parametrize(
    ("begun", "asked", "expected"),
    [
        (V48 | E70, E70, ["training.resolution"]),
        (V48 | E70, V48, ["training.encoder_size"]),
        (V48 | E70, {}, ["training.encoder_size", "training.resolution"]),
        # What is automatic for other views than those of the run is told neither.
        ({}, V48, ["training.resolution"]),
        ({}, E70, ["training.encoder_size"]),
        ({}, I96, ["data.image_size"]),
        (I128, I96, ["data.image_size"]),
        # Pictures as large as they are kept for views of 64, and views as large as pictures.
        ({}, I128, ["training.encoder_size", "training.resolution"]),
        # A size of pictures that is left out is the run's own.
        (I96, {}, []),
        (I96, V48, ["training.resolution"]),
        (I128 | V64, V64, []),
        (I128 | V64, {}, ["training.resolution"]),
        (I96 | E70, {}, ["training.encoder_size"]),
        (I128 | V48 | E67, V48, ["training.encoder_size"]),
    ],
)
def test_what_was_left_out_or_changed_is_told_and_nothing_else(
    begun: dict[str, Any], asked: dict[str, Any], expected: list[str]
) -> None:
    started = resolve_size(load_config("folder", begun), "photos/", "cpu")
    assert told(asked, started) == expected
    assert told(begun, started) == []


@pytest.mark.parametrize("side", [64, 84])
@pytest.mark.parametrize("asked", [{}, V48, E70, V48 | E70])
def test_a_run_from_before_goes_on_with_the_sizes_that_it_began_with(
    asked: dict[str, Any], side: int
) -> None:
    """Pictures had been as large as a device's views are now."""
    config = load_config("folder", {"data.image_size": side, **asked})
    assert told(asked, resolve_size(config, "photos/", "cpu")) == []


def test_the_largest_views_are_kept_in_the_largest_size() -> None:
    assert sizes(settled("photos/", training__resolution=[[0, 9000]]))[::2] == (16_384, 12_600)
    assert sizes(settled("photos/", training__resolution=[[0, 16_384]]))[::2] == (16_384, 16_384)


@pytest.mark.parametrize("parts", [5, 65])
def test_an_automatic_batch_is_not_split_into_parts_of_one(parts: int) -> None:
    source = ArraySource(torch.zeros(9, 1, 8, 8, dtype=torch.uint8), name="nine")
    config = load_config("folder", {"training.micro_batches": parts, "data.channels": 1})
    sentence = f"a batch of 8 images.*does not split into {parts} parts of two"
    with pytest.raises(UserError, match=sentence):
        resolve_batch(config, source, "cpu")


def test_a_place_that_is_a_path_is_treated_as_its_name(tmp_path: Path) -> None:
    assert sizes(settled(tmp_path)) == sizes(settled(str(tmp_path)))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(16):
        pixels = generator.integers(0, 256, (70, 70, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


def test_a_network_of_one_size_is_told_which_size_it_can_look_at(
    photos: Path, tmp_path: Path
) -> None:
    network = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, 6))
    asked = {"training.epochs": 1, "projector.width": 8}
    with pytest.raises(
        UserError, match=r"cannot look at images of 90×90: .*set training.encoder_size=64, the side"
    ):
        pretrain(
            photos, load_config("folder", asked), tmp_path / "run", device="cpu", backbone=network
        )
    config = load_config("folder", {**asked, "training.encoder_size": 64})
    run = pretrain(photos, config, tmp_path / "run", device="cpu", backbone=network)
    assert run.encoder.transform(photos).shape == (16, 6)


class PlacesOfItsOwn(nn.Module):
    """Made for images of one size, whose places have weights, and able to look at others too."""

    def __init__(self, image_size: int) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(1, 6, image_size // 8, image_size // 8))
        self.patches = nn.Conv2d(3, 6, 8, stride=8)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.patches(images)
        return (maps * functional.interpolate(self.places, maps.shape[-2:])).mean(dim=(2, 3))


@pytest.mark.parametrize("changes", [{}, {"training.resolution": [[0, 32], [0.5, 48]]}])
def test_a_network_made_for_a_size_is_made_for_it_again(
    changes: dict[str, Any], photos: Path, tmp_path: Path
) -> None:
    name = f"{__name__}:PlacesOfItsOwn"
    asked = {"training.epochs": 2, "projector.width": 8, "backbone.name": name, **changes}
    run = pretrain(photos, load_config("folder", asked), tmp_path / "run", device="cpu")
    again = load_encoder(tmp_path / "run", backbone=name)
    own = load_config("folder", {**asked, "backbone.options.image_size": 64})
    with pytest.raises(UserError, match="image_size cannot be set: it is the side of the smallest"):
        pretrain(photos, own, tmp_path / "other", device="cpu")
    assert again.preprocessing.image_size > again.backbone.state_dict()["stages.0.places"].shape[-1]
    np.testing.assert_array_equal(again.transform(photos), run.encoder.transform(photos))


@pytest.mark.parametrize(
    ("changes", "side"), [({}, 64), ({"training.resolution": [[0, 48], [0.5, 32]]}, 32)]
)
def test_a_module_that_was_passed_in_is_brought_along_as_a_factory(
    changes: dict[str, Any], side: int, photos: Path, tmp_path: Path
) -> None:
    """It is made for the size of the views; the options of the recipe's network are not its own."""
    asked = {"training.epochs": 1, "projector.width": 8, **changes}
    network = PlacesOfItsOwn(side)
    run = pretrain(
        photos, load_config("folder", asked), tmp_path / "run", device="cpu", backbone=network
    )
    again = load_encoder(tmp_path / "run", backbone=f"{__name__}:PlacesOfItsOwn")
    np.testing.assert_array_equal(again.transform(photos), run.encoder.transform(photos))
