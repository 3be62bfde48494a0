"""Statistics of batch normalisation: of the training's views, or of whole images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from eigenshot.data.opening import open_source
from eigenshot.data.source import ArraySource
from eigenshot.encoder import Encoder, Preprocessing, load_encoder
from eigenshot.errors import UserError
from eigenshot.networks import create_backbone
from eigenshot.networks.normalisation import measuring
from eigenshot.training.pretrain import pretrain
from eigenshot.training.statistics import with_statistics
from tests.training.test_pretrain import tiny


def encoder(size: int = 16) -> Encoder:
    torch.manual_seed(0)
    backbone = create_backbone("resnet12", widths=(4, 6, 8, 10), drop_block=0.5).eval()
    return Encoder(backbone, Preprocessing(size, 3, (0.5,) * 3, (0.25,) * 3), {"name": "resnet12"})


def images(count: int, side: int = 16) -> ArraySource:
    shape, generator = (count, 3, side, side), torch.Generator().manual_seed(1)
    return ArraySource(torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator))


def test_they_are_the_mean_over_batches_of_whole_images() -> None:
    made, source = encoder(), images(600)
    settled = with_statistics(made, source)
    block = made.backbone.stages[0]
    maps = [
        block.body[0](made.normalise(source.pixels[rows])).detach()
        for rows in (slice(0, 256), slice(256, 512))  # the rest is no batch
    ]
    layer = settled.backbone.stages[0].body[1]
    mean = torch.stack([x.mean(dim=(0, 2, 3)) for x in maps]).mean(dim=0)
    variance = torch.stack([x.var(dim=(0, 2, 3)) for x in maps]).mean(dim=0)
    torch.testing.assert_close(layer.running_mean, mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.running_var, variance, rtol=1e-4, atol=1e-5)


def test_features_of_the_images_are_then_those_of_their_own_batch() -> None:
    """Of a single batch, statistics and those that training would use are the same."""
    made, source = encoder(), images(64)
    settled = with_statistics(made, source)
    made.backbone.train()
    for part in made.backbone.modules():
        if not isinstance(part, nn.BatchNorm2d):
            part.training = False
    in_training = made.features(source.pixels).detach().numpy()
    # Running variances are divided by one less than the number of values.
    np.testing.assert_allclose(settled.transform(source), in_training, rtol=0.05, atol=0.02)


def test_nothing_else_changes() -> None:
    made, source = encoder(), images(64)
    before = {name: value.clone() for name, value in made.backbone.state_dict().items()}
    settled = with_statistics(made, source)
    after = made.backbone.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    for name, value in settled.backbone.state_dict().items():
        followed = "running" in name or "tracked" in name
        assert torch.equal(value, before[name]) != followed, name
    assert not any(part.training for part in settled.backbone.modules())
    momenta = [m.momentum for m in settled.backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    assert set(momenta) == {0.1}


def test_images_are_looked_at_in_the_size_of_the_encoder() -> None:
    source = images(64, side=24)
    found = with_statistics(encoder(), source).backbone.state_dict()
    expected = with_statistics(encoder(), source.resized(16)).backbone.state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_layers_are_as_they_were_after_an_error() -> None:
    network = encoder().backbone.train()
    images = torch.zeros(2, 1, 16, 16)  # of one channel, where three are expected
    with pytest.raises(UserError, match="expected images"), measuring(network):
        network(images)
    assert all(part.training for part in network.modules())
    assert {m.momentum for m in network.modules() if isinstance(m, nn.BatchNorm2d)} == {0.1}


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_a_run_ends_with_the_statistics_of_its_images_if_so_asked(
    tmp_path: Path, average: float
) -> None:
    for statistics in ("views", "images"):
        config = tiny(training__statistics=statistics, training__average=average)
        pretrain("glyphs", config, tmp_path / statistics, device="cpu")
    plain, settled = (load_encoder(tmp_path / name) for name in ("views", "images"))
    source = open_source("glyphs", split="train", image_size=28, channels=1, per_class=1)
    expected = with_statistics(plain, source).backbone.state_dict()
    for name, value in settled.backbone.state_dict().items():
        torch.testing.assert_close(value, expected[name], msg=name)
    assert settled.provenance["config"]["training"]["statistics"] == "images"
