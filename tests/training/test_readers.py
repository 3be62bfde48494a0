"""Runs over shards: every reader learns the same, and a stream goes on where it was stopped."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenshot.config import Config, ProbeConfig
from eigenshot.configfile import load_config
from eigenshot.data.opening import open_source
from eigenshot.errors import UserError
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from eigenshot.training.probe import Probe
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


def test_a_stream_goes_on_in_the_window_that_was_chosen_for_it(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, out = settings(reader="streamed"), tmp_path / "parts"
    whole = pretrain(str(shards), config, tmp_path / "whole", device="cpu")
    with pytest.raises(Interrupted):
        pretrain(str(shards), config, out, device="cpu", reporter=Recorder(stop_at=8))
    # By now the machine has less memory, and a new run would take a smaller window.
    monkeypatch.setattr("eigenshot.data.reading.reader.available_memory", lambda: 16 * 16 * 3 * 80)
    pretrain(str(shards), config, out, device="cpu", resume=True)
    assert encoder_bytes(whole.folder) == encoder_bytes(out)


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


def test_pictures_that_a_stream_cannot_read_are_told(shards: Path, tmp_path: Path) -> None:
    """Before training those that the channels' mean has come upon, after it the others."""
    contents: list[bytes | None] = [picture(row, side=16) for row in range(2000)]
    contents[1000] = b"no picture"
    for path in shards.glob("*.parquet"):
        path.unlink()
    write_hub(shards / "train-00000-of-00001.parquet", contents, [0] * 2000, "a")
    config = settings(reader="streamed", window=2000, mean=[0.5] * 3, std=[0.2] * 3)
    reporter = Recorder()
    config = dataclasses.replace(
        config, training=dataclasses.replace(config.training, epochs=1, batch_size=500)
    )
    pretrain(str(shards), config, tmp_path / "run", device="cpu", reporter=reporter)
    (warning,) = reporter.warnings
    assert "others stand in for 1 unreadable picture" in warning
    assert "train-00000-of-00001.parquet, row 1000" in warning
    assert "shuffled within 2,000 images at a time" in reporter.notes


def test_unknown_labels_are_no_class_of_the_probe(shards: Path, tmp_path: Path) -> None:
    probed = tmp_path / "probed.parquet"
    contents: list[bytes | None] = [picture(row, side=16) for row in range(40)]
    write_hub(probed, contents, [row % 3 - 1 for row in range(40)], "ab")
    source = open_source(probed, image_size=16, channels=3)
    reporter = Recorder()
    probe = Probe(ProbeConfig(kind="knn"), source, 0, reporter)
    assert set(probe.labels.tolist()) == {0, 1}
    assert reporter.notes == ["probed.parquet: left out 14 images without a known label"]
    images = probe.source.images(probe.rows[:1])
    assert images.shape == (1, 3, 16, 16)


def test_a_resume_with_another_reader_names_both(shards: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        pretrain(str(shards), settings(), out, device="cpu", reporter=Recorder(stop_at=8))
    with pytest.raises(UserError, match=r"data\.reader: 'resident' in the run, 'streamed' asked"):
        pretrain(str(shards), settings(reader="streamed"), out, device="cpu", resume=True)


def test_a_stream_does_not_go_on_in_memory(shards: Path, tmp_path: Path) -> None:
    out, streamed = tmp_path / "run", settings(reader="streamed")
    with pytest.raises(Interrupted):
        pretrain(str(shards), streamed, out, device="cpu", reporter=Recorder(stop_at=8))
    with pytest.raises(UserError, match=r"data\.reader: 'streamed' in the run, 'resident' asked"):
        pretrain(str(shards), settings(reader="resident"), out, device="cpu", resume=True)


def test_a_full_disk_leaves_no_empty_run(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: object, value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("eigenshot.training.runfolder.write_json", full)
    with pytest.raises(UserError, match=r"cannot write to .*: No space left"):
        pretrain(str(shards), settings(), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
