"""Copies of what data once were do not pile up, and no one's work is removed under their hands."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from eigenshot.data.reading.pixelcache import cached_pixels, find_cached
from eigenshot.data.reading.workers import decode_rows
from eigenshot.errors import UserError
from tests.data.list_table import ListTable, noise_pngs
from tests.data.parquet_files import cells, opened, picture, write

SIZE = {"size": 8, "channels": 3}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pixels"


def files(folder: Path) -> list[str]:
    return sorted(file.suffix for file in folder.iterdir())


def table(seed: int, name: str = "list", count: int = 4) -> ListTable:
    made = ListTable(noise_pngs(count, seed=seed))
    made.name = name
    return made


def test_a_new_state_of_the_data_takes_the_place_of_the_old(folder: Path) -> None:
    old = cached_pixels(table(0), **SIZE)
    pixels = old.pixels()
    before = pixels.clone()
    cached_pixels(table(1), **SIZE)
    assert files(folder) == [".json", ".u8"]
    assert find_cached(table(0), **SIZE) is None
    assert torch.equal(pixels, before), "who has the old one mapped keeps it"


def test_other_data_and_other_sizes_are_left_alone(folder: Path) -> None:
    kept = [table(0, "other"), table(0)]
    for one in kept:
        cached_pixels(one, **SIZE)
    cached_pixels(table(0), size=4, channels=3)
    cached_pixels(table(1), size=4, channels=1)
    assert all(find_cached(one, **SIZE) is not None for one in kept)


def test_an_abandoned_build_is_cleared_away_but_not_one_that_goes_on(folder: Path) -> None:
    broken = ListTable([b"no picture", *noise_pngs(3)])
    said: list[str] = []
    with pytest.raises(UserError, match="cannot be read"):
        cached_pixels(broken, **SIZE, note=said.append)
    assert said == ["what is decoded of list is kept; the next run goes on from there"]
    assert files(folder) == [".journal", ".partial"]
    (journal,) = folder.glob("*.journal")
    with journal.with_suffix(".lock").open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        cached_pixels(table(1), **SIZE)
        assert journal.exists()
    cached_pixels(table(2), **SIZE)
    assert files(folder) == [".json", ".u8"]


def test_a_shard_changed_at_equal_size_is_decoded_anew(tmp_path: Path, folder: Path) -> None:
    """The change is far from the beginning of the pictures, which is all that is digested."""
    path = tmp_path / "train.parquet"
    plain = {"compression": "none", "write_statistics": False, "use_dictionary": False}
    found = []
    for number, last in enumerate((2, 3)):
        contents = cells([picture(value, side=64, kind="BMP") for value in (1, last)])
        write(path, {"image": contents}, **plain)
        os.utime(path, ns=(number, number))
        table = opened(path)
        found.append((path.stat().st_size, table.fingerprint))
        pixels = cached_pixels(table, **SIZE).pixels()
        expected, _ = decode_rows(table, [0, 1], **SIZE)
        np.testing.assert_array_equal(pixels.numpy(), expected)
    assert found[0] == found[1]
    assert files(folder) == [".json", ".u8"]
