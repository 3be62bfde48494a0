"""What a name of data stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eigenshot.data.naming import (
    choose_split,
    hub_id,
    is_benchmark,
    is_picture_folder,
    is_sizeless,
    pretraining_split,
    splits_of,
)
from eigenshot.data.opening import as_images, channel_statistics, open_source
from eigenshot.data.reader import Reading, open_table
from eigenshot.errors import UserError
from tests.data.parquet_files import picture, write_hub
from tests.data.tables import ListTable, noise_pngs


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the hub's layout: 12 images to train, 6 to test, of three classes."""
    monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "own"
    for split, rows in (("train", range(12)), ("test", range(20, 26))):
        contents, labels = [picture(row) for row in rows], [row % 3 for row in rows]
        write_hub(folder / f"{split}-00000-of-00001.parquet", contents, labels, "abc")
    return folder


def test_shards_are_named_like_a_folder(shards: Path) -> None:
    assert splits_of(str(shards)) == ("train", "test")
    assert is_sizeless(shards)
    assert not is_picture_folder(shards)
    assert pretraining_split(shards) == "train"
    assert len(open_source(shards, image_size=8, channels=3)) == 18
    assert len(open_source(shards, image_size=8, channels=3, split="train")) == 12
    one = shards / "test-00000-of-00001.parquet"
    source = open_source(one, image_size=4, channels=1)
    assert source.shape == (1, 4, 4)
    assert len(as_images(one, image_size=8, channels=3)) == 6
    with pytest.raises(UserError, match="no split 'validation'; it has train, test"):
        choose_split(shards, "validation")
    with pytest.raises(UserError, match="has no split 'dev'; its splits: train, test"):
        open_source(shards, image_size=8, channels=3, split="dev")


def test_a_hub_repository_is_told_from_a_mistyped_path(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert hub_id("uoft-cs/cifar100") == "uoft-cs/cifar100"
    assert hub_id("hub:photos/cats") == "photos/cats"
    assert [hub_id(name) for name in ("photos/cats", "./a", "cifar10", "a/b/c", "~/x")] == [
        None
    ] * 5
    with pytest.raises(UserError, match="expected hub:owner/name"):
        hub_id("hub:nobody")


def test_benchmarks_come_before_folders(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("EIGENSHOT_DATA", str(tmp_path))
    assert is_benchmark("fc100")
    assert is_benchmark("glyphs")
    assert pretraining_split("stl10") == "pretrain"
    assert choose_split("stl10", "train") == "train"
    assert choose_split("fc100", "validation") == "validation"
    with pytest.raises(UserError, match=r"parquet.*cifar100") as error:
        open_source("fc100", image_size=32, channels=3)
    assert str(tmp_path / "cifar100") in str(error.value)
    with pytest.raises(UserError, match="did you mean 'fc100'"):
        open_source("fc10", image_size=32, channels=3)


def test_a_folder_has_no_splits(tmp_path: Path) -> None:
    content = noise_pngs(1)[0]
    assert content is not None
    (tmp_path / "a.png").write_bytes(content)
    assert is_picture_folder(tmp_path)
    assert choose_split(tmp_path, "test") is None
    with pytest.raises(UserError, match="has no splits; leave --split out"):
        open_source(tmp_path, image_size=8, channels=3, split="test")


def test_statistics_of_a_stream_are_those_of_the_images() -> None:
    table = ListTable(noise_pngs(50))
    streamed = open_table(table, size=8, channels=3, reading=Reading("streamed", 10))
    held = open_table(table, size=8, channels=3, reading=Reading("resident"))
    np.testing.assert_allclose(channel_statistics(streamed), channel_statistics(held), atol=1e-6)
