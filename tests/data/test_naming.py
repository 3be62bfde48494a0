"""What a name of data stands for."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from eigenshot.data.folder import load_folder
from eigenshot.data.naming import (
    choose_split,
    hub_id,
    is_benchmark,
    is_picture_folder,
    is_sizeless,
    open_named,
    pretraining_split,
    resolve,
    splits_of,
)
from eigenshot.data.opening import as_images, channel_statistics, open_source
from eigenshot.data.reading.reader import Reading, open_table
from eigenshot.errors import UserError
from tests.data.list_table import ListTable, noise_pngs
from tests.data.parquet_files import picture, write, write_hub


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
    assert hub_id("uoft-cs/cifar100@plain") == "uoft-cs/cifar100@plain"
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


@pytest.fixture
def repository(tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a hub repository is to the library: here a folder of that name in the current one."""
    monkeypatch.setenv("EIGENSHOT_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").mkdir()
    shards.rename(tmp_path / "owner" / "pets")
    return "hub:owner/pets"


def test_a_hub_repository_opens_on_its_first_use(repository: str, tmp_path: Path) -> None:
    table = open_named(repository, "test")
    assert (len(table), table.name) == (6, "owner/pets (test)")
    assert (tmp_path / "data" / "hub" / "owner--pets").is_dir()
    source = open_source(repository, image_size=8, channels=3, split="train")
    assert len(source) == 12


def test_pretraining_does_not_see_the_test_split_of_a_new_repository(repository: str) -> None:
    """The splits are asked for first, and known only when the repository is here."""
    assert pretraining_split(repository) == "train"
    assert choose_split(repository, "test") == "test"
    assert resolve(repository).name == "owner--pets"


def test_test_classes_alone_are_nothing_to_learn_from() -> None:
    with pytest.raises(UserError, match="cub-2010 has test classes only: pretrain on another"):
        pretraining_split("cub-2010")
    with pytest.raises(UserError, match="'cub-2010' has no split 'train'; it has test"):
        choose_split("cub-2010", "train")


def test_a_single_split_is_taken_for_everything(shards: Path) -> None:
    (shards / "train-00000-of-00001.parquet").unlink()
    assert choose_split(shards, "train") == pretraining_split(shards) == "test"
    source = open_source(shards, image_size=8, channels=3, split="test")
    assert (len(source), source.name) == (6, "own (test)")


def test_shards_that_tell_no_split_are_left_out_beside_those_that_do(shards: Path) -> None:
    write_hub(shards / "extra.parquet", [picture(99)], [0], "abc")
    for split, count in (("train", 12), ("test", 6), (None, 18)):
        table = open_named(shards, split)
        assert len(table) == count
        assert table.note == "left out, as their names tell no split: extra.parquet"
    for path in shards.glob("t*.parquet"):
        path.unlink()
    assert (len(open_named(shards, None)), choose_split(shards, "test")) == (1, None)


def test_of_shards_and_picture_files_those_are_read_that_hold_the_images(shards: Path) -> None:
    (shards / "cover.png").write_bytes(picture(1))
    table = open_named(shards, None)
    assert len(table) == 18
    assert table.note is not None
    assert "1 image in files of their own beside its parquet shards" in table.note
    for path in shards.glob("*.parquet"):
        path.unlink()
    write(shards / "features.parquet", {"features": [[0.5, 1.0]], "label": [0]})
    assert is_picture_folder(shards)
    table = open_named(shards, None)
    assert [table.describe(row) for row in range(len(table))] == ["cover.png"]
    assert table.note == "ignored, without a column of images: features.parquet"
    loaded = load_folder(shards, image_size=8)
    assert (len(loaded), loaded.note) == (1, table.note)
    (shards / "cover.png").unlink()
    with pytest.raises(UserError, match="has no column of encoded images"):
        open_named(shards, None)


def test_a_part_that_cannot_be_listed_does_not_hide_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dog").mkdir()
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").write_bytes(picture(1))
    scandir = os.scandir

    def guarded(path: str):
        if str(path) == str(tmp_path / "dog"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    table = open_named(tmp_path, None)
    assert len(table) == 1
    assert table.faults == ("cannot look into dog/: permission denied",)


def test_no_name_is_no_folder() -> None:
    with pytest.raises(UserError, match="found an empty text"):
        open_source("", image_size=8, channels=3)
    with pytest.raises(UserError, match="found an empty text"):
        pretraining_split(" ")


def test_settings_of_a_reader_that_do_nothing_are_said(shards: Path) -> None:
    said: list[str] = []
    pixels = np.zeros((4, 8, 8), np.uint8)
    reading = Reading("streamed", 10, note=said.append)
    open_source(pixels, image_size=8, channels=1, reading=reading)
    assert said == [
        "these images are in memory already, so data.reader=streamed and "
        "data.window=10 does nothing"
    ]
    said.clear()
    reading = Reading("mapped", 10, note=said.append)
    open_source(shards, image_size=8, channels=3, split="test", reading=reading)
    assert "own (test) is not streamed, so data.window=10 does nothing" in said
