"""What "auto" means for images of any size: how large they are kept, cut and looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn

from eigenshot.config import Config
from eigenshot.configfile import load_config
from eigenshot.errors import UserError
from eigenshot.training.choices import adopt_choices, resolve_size
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
    assert sizes(adopt_choices(asked, begun)) == sizes(begun)


def test_a_run_from_before_goes_on_with_views_as_large_as_its_images() -> None:
    begun = settled("photos/", data__image_size=64)
    assert sizes(adopt_choices(load_config("folder"), begun)) == (64, (), 0)


def test_a_place_that_is_a_path_is_treated_as_its_name(tmp_path: Path) -> None:
    assert sizes(settled(tmp_path)) == sizes(settled(str(tmp_path)))


def test_a_network_of_one_size_is_told_which_size_it_can_look_at(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    generator = np.random.default_rng(0)
    for number in range(16):
        pixels = generator.integers(0, 256, (70, 70, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{number}.png")
    network = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, 6))
    asked = {"training.epochs": 1, "projector.width": 8}
    with pytest.raises(UserError, match=r"cannot look at images of 90×90: .*encoder_size=64 is"):
        pretrain(
            photos, load_config("folder", asked), tmp_path / "run", device="cpu", backbone=network
        )
    config = load_config("folder", {**asked, "training.encoder_size": 64})
    run = pretrain(photos, config, tmp_path / "run", device="cpu", backbone=network)
    assert run.encoder.transform(photos).shape == (16, 6)
