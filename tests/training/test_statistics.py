"""Statistics of batch normalisation: of the training's views, or of whole images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from eigenshot.data.opening import open_source
from eigenshot.data.reading.streamed import StreamedSource
from eigenshot.data.source import ArraySource
from eigenshot.encoder import Encoder, Preprocessing, load_encoder
from eigenshot.errors import UserError
from eigenshot.networks import create_backbone
from eigenshot.networks.normalisation import measuring
from eigenshot.randomness import numpy_generator
from eigenshot.training import statistics
from eigenshot.training.pretrain import pretrain
from eigenshot.training.statistics import with_statistics
from tests.data.list_table import ListTable
from tests.data.parquet_files import picture
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
    order = torch.from_numpy(numpy_generator(0, "statistics").permutation(600))
    maps = [
        block.body[0](made.normalise(source.pixels[rows])).detach()
        for rows in order[:512].chunk(2)  # the rest is no batch
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


def test_each_batch_has_images_from_all_over_a_sorted_source() -> None:
    black = torch.zeros(64, 3, 16, 16, dtype=torch.uint8)
    sorted_by_class = torch.cat([black, black + 255])
    alternating = torch.stack([black, black + 255], dim=1).flatten(0, 1)
    first = "stages.0.body.1.running_var"  # of two colours; of a single one it is nearly 0
    at_once = with_statistics(encoder(), ArraySource(sorted_by_class)).backbone.state_dict()
    for pixels in (sorted_by_class, alternating):
        found = with_statistics(encoder(), ArraySource(pixels), batch=32).backbone.state_dict()
        torch.testing.assert_close(found[first], at_once[first], rtol=0.1, atol=0)


def test_of_many_images_some_from_all_over_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    source = images(200)
    monkeypatch.setattr(statistics, "_IMAGES", 64)
    found = with_statistics(encoder(), source, batch=16).backbone.state_dict()
    rows = np.linspace(0, 199, 64).astype(np.int64)
    assert rows[0] == 0
    assert rows[-1] == 199
    some = ArraySource(source.images(rows))
    expected = with_statistics(encoder(), some, batch=16).backbone.state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_of_a_stream_they_are_those_of_its_images() -> None:
    table = ListTable([picture(row) for row in range(40)], group=8)
    stream = StreamedSource(table, size=16, channels=3, window=16, workers=1)
    with stream:
        found = with_statistics(encoder(), stream, batch=16).backbone.state_dict()
        kept = ArraySource(stream.images(np.arange(40)))
    expected = with_statistics(encoder(), kept, batch=16).backbone.state_dict()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


class Frozen(nn.BatchNorm2d):
    """A layer that does not train, whatever it is told."""

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)


@pytest.mark.parametrize("idle", [False, True])
def test_a_layer_that_is_frozen_or_sees_no_image_keeps_its_own(idle: bool) -> None:
    layer = nn.BatchNorm2d(3) if idle else Frozen(3).eval()
    layer.running_mean.fill_(3.0)
    layer.running_var.fill_(9.0)
    beside = nn.BatchNorm2d(3)
    network = nn.Sequential(layer, beside)
    with measuring(network):
        (beside if idle else network)(torch.randn(8, 3, 4, 4))
    assert layer.running_mean.tolist() == [3.0] * 3
    assert layer.running_var.tolist() == [9.0] * 3
    assert beside.running_var.tolist() != [1.0] * 3


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


@pytest.mark.parametrize(("average", "parts"), [(0.0, 1), (0.9, 1), (0.0, 4)])
def test_a_run_ends_with_the_statistics_of_its_images_if_so_asked(
    tmp_path: Path, average: float, parts: int
) -> None:
    """In batches no larger than what goes through the network at once in training."""
    settings = {"training__average": average, "training__micro_batches": parts}
    for kind in ("views", "images"):
        config = tiny(training__statistics=kind, **settings)
        pretrain("glyphs", config, tmp_path / kind, device="cpu")
    plain, settled = (load_encoder(tmp_path / name) for name in ("views", "images"))
    source = open_source("glyphs", split="train", image_size=28, channels=1, per_class=1)
    at_once = int(config.training.batch_size) // parts
    expected = with_statistics(plain, source, batch=at_once).backbone.state_dict()
    for name, value in settled.backbone.state_dict().items():
        torch.testing.assert_close(value, expected[name], msg=name)
    assert settled.provenance["config"]["training"]["statistics"] == "images"
