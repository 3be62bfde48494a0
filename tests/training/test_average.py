"""An average of the weights over steps is what is kept of a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eigenshot.encoder import load_encoder
from eigenshot.errors import UserError
from eigenshot.networks import create_backbone
from eigenshot.tensorfile import read_tensors
from eigenshot.training.average import WeightAverage
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from tests.training.test_pretrain import Recorder, tiny


def test_an_average_is_the_recurrence_of_its_weights() -> None:
    network = create_backbone("conv4", widths=(2, 2, 2, 2), in_channels=1)
    average = WeightAverage(network, 0.6)
    expected = {name: value.double() for name, value in network.state_dict().items()}
    for step in range(1, 31):
        with torch.no_grad():
            for value in (*network.parameters(), *network.buffers()):
                value.add_(torch.ones_like(value))
        average.follow(network)
        kept = min(0.6, step / (step + 10))
        for name, value in network.state_dict().items():
            expected[name] = kept * expected[name] + (1 - kept) * value.double()
    found = average.backbone.state_dict()
    for name, value in expected.items():
        if "num_batches" in name:
            assert int(found[name]) == 30, "a count is not averaged"
        else:
            torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=1e-5)
    assert not any(parameter.requires_grad for parameter in average.parameters())


def test_the_average_is_the_encoder_and_survives_an_interruption(tmp_path: Path) -> None:
    config = tiny(training__average=0.9)
    unbroken = pretrain("glyphs", config, tmp_path / "unbroken", device="cpu")
    with pytest.raises(Interrupted):
        pretrain("glyphs", config, tmp_path / "broken", device="cpu", reporter=Recorder(stop_at=3))
    pretrain("glyphs", config, tmp_path / "broken", device="cpu", resume=True)
    files = [tmp_path / name / "encoder.safetensors" for name in ("unbroken", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()

    tensors, _ = read_tensors(
        tmp_path / "unbroken" / "checkpoints" / "last.safetensors", kind="eigenshot-checkpoint"
    )
    kept = load_encoder(tmp_path / "unbroken").backbone.state_dict()
    for name, value in kept.items():
        assert torch.equal(value, tensors[f"average.backbone.{name}"])
    moved = [n for n, v in kept.items() if not torch.equal(v, tensors[f"method.backbone.{n}"])]
    assert len(moved) > 5, "the average is not the weights themselves"
    plain = pretrain("glyphs", tiny(), tmp_path / "plain", device="cpu")
    assert plain.summary["final"]["loss"] == unbroken.summary["final"]["loss"], (
        "to average does not change what is learned"
    )


def test_a_share_of_one_is_refused() -> None:
    with pytest.raises(UserError, match=r"training.average must be below 1.*found 1.0"):
        tiny(training__average=1.0)
