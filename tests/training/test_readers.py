"""Runs over shards: every reader learns the same, and a stream goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenshot.config import Config
from eigenshot.configfile import load_config
from eigenshot.errors import UserError
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from tests.data.parquet_files import picture, write_hub
from tests.training.test_pretrain import Recorder


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "cache"))
    for number in range(2):
        contents = [picture(100 * number + row, side=16) for row in range(40)]
        file = tmp_path / "shards" / f"train-{number:05d}-of-00002.parquet"
        write_hub(file, contents, [row % 4 for row in range(40)], "abcd")
    return tmp_path / "shards"


def settings(**data: Any) -> Config:
    small = {
        "data.image_size": 16,
        "backbone.name": "conv4",
        "backbone.options.widths": [4, 4, 4, 8],
        "projector.width": 16,
        "training.epochs": 3,
        "training.batch_size": 16,
    }
    return load_config("folder", {**small, **{f"data.{key}": v for key, v in data.items()}})


def encoder_bytes(folder: Path) -> bytes:
    return (folder / "encoder.safetensors").read_bytes()


def weights(folder: Path) -> bytes:
    """The encoder without its header, which names the reader and the window."""
    from eigenshot.tensorfile import read_tensors

    tensors, _ = read_tensors(folder / "encoder.safetensors", kind="eigenshot-encoder")
    return b"".join(np.ascontiguousarray(t).tobytes() for _, t in sorted(tensors.items()))


def test_every_reader_learns_the_same(shards: Path, tmp_path: Path) -> None:
    found = set()
    for kind in ("resident", "mapped", "streamed"):
        reporter = Recorder()
        out = tmp_path / kind
        pretrain(str(shards), settings(reader=kind), out, device="cpu", reporter=reporter)
        assert any(kind in note for note in reporter.notes)
        found.add(weights(out))
    assert len(found) == 1


def test_a_stopped_stream_goes_on_exactly(shards: Path, tmp_path: Path) -> None:
    config = settings(reader="streamed", window=32)
    pretrain(str(shards), config, tmp_path / "whole", device="cpu")
    with pytest.raises(Interrupted):
        pretrain(
            str(shards), config, tmp_path / "parts", device="cpu", reporter=Recorder(stop_at=8)
        )
    automatic = settings()  # what was chosen is kept
    pretrain(str(shards), automatic, tmp_path / "parts", device="cpu", resume=True)
    assert encoder_bytes(tmp_path / "whole") == encoder_bytes(tmp_path / "parts")


def test_another_window_would_be_another_run(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        pretrain(
            str(shards),
            settings(reader="streamed", window=32),
            out,
            device="cpu",
            reporter=Recorder(stop_at=8),
        )
    with pytest.raises(UserError, match=r"data\.window: 32 in the run, 48 asked"):
        pretrain(str(shards), settings(reader="streamed", window=48), out, resume=True)
