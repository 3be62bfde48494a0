"""The decoded cache: what it holds, when it is believed, and where it cannot be made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from eigenshot.data.cache import CacheUnavailable
from eigenshot.data.reading.chunks import decode_table, plan_chunks
from eigenshot.data.reading.pixelcache import (
    DecodedCache,
    cached_pixels,
    find_cached,
    verify,
)
from eigenshot.data.reading.workers import MISSING, decode_rows
from eigenshot.data.source import ArraySource
from eigenshot.data.tables.folder_table import FolderTable
from eigenshot.errors import UserError
from tests.data.list_table import DeadlyTable, ListTable, noise_pngs

SIZE = {"size": 8, "channels": 3}
IMAGE_BYTES = 3 * 8 * 8


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where decoded pixels go; an empty cache for each test."""
    monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pixels"


def suffixes(folder: Path) -> set[str]:
    """Of all files of the cache."""
    return {file.suffix for file in folder.iterdir()} if folder.exists() else set()


def only(folder: Path, suffix: str) -> Path:
    (file,) = folder.glob(f"*{suffix}")
    return file


def rows_read(log: Path) -> list[int]:
    return sorted(map(int, log.read_text().split())) if log.exists() else []


def expected(table: ListTable, **options: int) -> np.ndarray:
    """The readable pictures, decoded directly."""
    pixels, failures = decode_rows(table, range(len(table)), **options or SIZE)
    return np.delete(pixels, list(failures), axis=0)


def with_gaps(count: int = 100) -> list[bytes | None]:
    """Pictures of which some are missing, broken or empty."""
    images = noise_pngs(count)
    images[3], images[40], images[41] = None, b"not a picture", b""
    return images


@pytest.mark.parametrize("channels", [1, 3])
def test_the_cache_holds_what_direct_decoding_gives(folder: Path, channels: int) -> None:
    table = ListTable(noise_pngs(50, side=12))
    cache = cached_pixels(table, size=np.int64(10), channels=channels)
    pixels = cache.pixels()
    assert cache.shape == tuple(pixels.shape) == (50, channels, 10, 10)
    assert suffixes(folder) == {".u8", ".json"}
    np.testing.assert_array_equal(pixels.numpy(), expected(table, size=10, channels=channels))
    pixels.zero_()  # one's own copy, not the file
    assert verify(cache)
    assert cache.pixels().any()


def test_processes_give_the_same_bytes() -> None:
    table = ListTable(with_gaps())
    pixels, kept, unreadable = decode_table(table, **SIZE, workers=2)
    cache = cached_pixels(table, **SIZE, workers=2)
    np.testing.assert_array_equal(pixels, expected(table))
    np.testing.assert_array_equal(cache.pixels().numpy(), pixels)
    np.testing.assert_array_equal(cache.kept, kept)
    assert cache.unreadable == unreadable
    assert verify(cache)


def test_workers_load_no_torch() -> None:
    code = "import sys, eigenshot.data.reading.chunks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_finished_cache_is_opened_and_nothing_decoded(tmp_path: Path) -> None:
    images, log = noise_pngs(20), tmp_path / "log"
    assert find_cached(ListTable(images), **SIZE) is None
    first = cached_pixels(ListTable(images), **SIZE)
    again = cached_pixels(ListTable(images, log=log), **SIZE)
    found = find_cached(ListTable(images, log=log), **SIZE)
    assert isinstance(found, DecodedCache)
    assert again.file == found.file == first.file
    assert again.fingerprint == found.fingerprint == first.fingerprint
    assert rows_read(log) == []
    for other in ({"size": 9, "channels": 3}, {"size": 8, "channels": 1}):
        assert find_cached(ListTable(images), **other) is None
    assert find_cached(ListTable(noise_pngs(20, seed=1)), **SIZE) is None


def test_a_folder_is_decoded_anew_once_a_permission_is_repaired(tmp_path: Path) -> None:
    picture = tmp_path / "photos" / "a.png"
    picture.parent.mkdir()
    picture.write_bytes(noise_pngs(1)[0] or b"")
    picture.chmod(0o400)
    cached_pixels(FolderTable(picture.parent), **SIZE)
    assert find_cached(FolderTable(picture.parent), **SIZE) is not None
    time.sleep(0.02)  # the clock of some file systems is this coarse
    picture.chmod(0o600)
    assert find_cached(FolderTable(picture.parent), **SIZE) is None


def test_the_fingerprint_is_that_of_an_array(tmp_path: Path) -> None:
    images, labels, names = with_gaps(), np.arange(100) % 3, ("a", "b", "ü")
    cache = cached_pixels(ListTable(images, labels, names), **SIZE)
    source = ArraySource(cache.pixels(), labels[cache.kept], names)
    assert cache.fingerprint == source.fingerprint
    # The same pictures under other labels share the pixels, but not the fingerprint.
    log = tmp_path / "log"
    for _ in range(2):
        bare = cached_pixels(ListTable(images, log=log), **SIZE)
        assert bare.file == cache.file
        assert bare.fingerprint == ArraySource(cache.pixels()).fingerprint != cache.fingerprint
    assert cached_pixels(ListTable(images, labels, names), **SIZE).fingerprint == cache.fingerprint
    assert rows_read(log) == []


def test_unreadable_rows_are_left_out_and_listed() -> None:
    table = ListTable(with_gaps())
    for cache in (cached_pixels(table, **SIZE), find_cached(table, **SIZE)):
        assert cache is not None
        assert cache.shape[0] == 97
        assert cache.kept.dtype == np.int64
        assert cache.kept.tolist() == [row for row in range(100) if row not in (3, 40, 41)]
        assert [place for place, _ in cache.unreadable] == ["list[3]", "list[40]", "list[41]"]
        assert cache.unreadable[0][1] == MISSING
        assert cache.unreadable[2][1] == "the file is empty"
        assert verify(cache)


def test_a_higher_limit_takes_up_the_refused_work(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    message = r"3 of 100 images \(3\.0%\) in list .* more than the 1\.0% allowed: list\[3\] \(there"
    with pytest.raises(UserError, match=message):
        cached_pixels(ListTable(with_gaps()), **SIZE, max_unreadable=0.01)
    with pytest.raises(UserError, match=message):
        decode_table(ListTable(with_gaps()), **SIZE, max_unreadable=0.01)
    assert suffixes(folder) == {".partial", ".journal"}
    cache = cached_pixels(ListTable(with_gaps(), log=log), **SIZE)
    assert rows_read(log) == []
    np.testing.assert_array_equal(cache.pixels().numpy(), expected(ListTable(with_gaps())))
    with pytest.raises(UserError, match=message):  # the limit holds for a finished cache too
        cached_pixels(ListTable(with_gaps()), **SIZE, max_unreadable=0.01)


def test_what_is_wholly_unreadable_is_refused(folder: Path) -> None:
    for use in (cached_pixels, decode_table):
        with pytest.raises(UserError, match="none of the 5 images in list can be read"):
            use(ListTable([None] * 5), **SIZE, max_unreadable=1.0)
        with pytest.raises(UserError, match="list has no images"):
            use(ListTable([]), **SIZE)
        with pytest.raises(UserError, match=r"max_unreadable between 0 and 1, found 1\.5"):
            use(ListTable(noise_pngs(2)), **SIZE, max_unreadable=1.5)
    assert suffixes(folder) == set()


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def alter(header: Path, **values: object) -> None:
    header.write_text(json.dumps({**json.loads(header.read_text()), **values}))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data, header: header.unlink(),
        lambda data, header: data.unlink(),
        lambda data, header: os.truncate(data, 1000),
        lambda data, header: header.write_bytes(header.read_bytes()[:40]),
        lambda data, header: header.write_bytes(b"\xff\xfe"),
        lambda data, header: header.write_text("[]"),
        lambda data, header: alter(header, unreadable=[[1000, "far away"]]),
        lambda data, header: alter(header, unreadable=3),
        lambda data, header: alter(header, fingerprints=None),
        lambda data, header: alter(header, version=0),
    ],
)
def test_half_a_cache_is_made_again(folder: Path, spoil) -> None:
    table = ListTable(with_gaps())
    first = cached_pixels(table, **SIZE)
    spoil(only(folder, ".u8"), only(folder, ".json"))
    assert find_cached(table, **SIZE) is None
    again = cached_pixels(table, **SIZE)
    assert again.fingerprint == first.fingerprint
    assert verify(again)
    assert suffixes(folder) == {".u8", ".json"}


def test_verifying_finds_a_flipped_bit_and_a_lost_file(folder: Path) -> None:
    cache = cached_pixels(ListTable(with_gaps()), **SIZE)
    assert verify(cache)
    flip(cache.file, -1)
    assert not verify(cache)
    cache.file.unlink()
    assert not verify(cache)
    with pytest.raises(UserError, match=r"cannot read .*u8.*run again"):
        cache.pixels()


@pytest.mark.parametrize("place", ["under a file", "/proc/cache"])
def test_a_cache_that_cannot_be_written_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").touch()
    chosen = tmp_path / "file" / "cache" if place == "under a file" else Path(place)
    monkeypatch.setenv("EIGENSHOT_CACHE", str(chosen))
    assert find_cached(ListTable(noise_pngs(2)), **SIZE) is None
    message = f"cannot write decoded images of list to {chosen}/pixels: .*EIGENSHOT_CACHE"
    with pytest.raises(CacheUnavailable, match=message):
        cached_pixels(ListTable(noise_pngs(2)), **SIZE)


def test_a_finished_cache_is_read_where_nothing_can_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cached_pixels(ListTable(noise_pngs(2)), **SIZE)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    relabelled = ListTable(noise_pngs(2), labels=[0, 1], class_names=("a", "b"))
    cache = cached_pixels(relabelled, **SIZE)
    assert cache.fingerprint == ArraySource(cache.pixels(), np.arange(2), "ab").fingerprint


def test_a_worker_that_dies_is_reported_as_such() -> None:
    for use in (cached_pixels, decode_table):
        with pytest.raises(UserError, match=r"decoded list was ended .* memory"):
            use(DeadlyTable(noise_pngs(100)), **SIZE, workers=2)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such limit")
def test_a_cache_larger_than_the_memory_is_mapped(tmp_path: Path) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shape = (memory // IMAGE_BYTES * 3, 3, 8, 8)
    file = tmp_path / "sparse.u8"
    file.touch()
    os.truncate(file, int(np.prod(shape)))
    pixels = DecodedCache(file, shape, "", np.arange(0), (), ()).pixels()
    pixels[-1] = 7
    assert (pixels[-2:].amax().item(), pixels[:2].amax().item()) == (7, 0)


@pytest.mark.parametrize("group", [1, 7, 100, 1000, 5000])
def test_chunks_are_whole_groups_or_even_parts_of_one(group: int) -> None:
    groups = np.append(np.arange(0, 40_000, group), 40_000)
    chunks = plan_chunks(groups, 3 * 32 * 32)
    assert [row for rows in chunks for row in rows] == list(range(40_000))
    assert max(map(len, chunks)) <= 512
    for rows in chunks:
        inside = groups[(groups > rows.start) & (groups < rows.stop)]
        assert len(inside) == 0 or {rows.start, rows.stop} <= set(groups.tolist())
    assert min(map(len, chunks[:-1])) >= min(400, group)


@pytest.mark.realdata
def test_real_photographs_through_processes() -> None:
    from pyarrow.parquet import read_table

    shard = Path(os.environ["EIGENSHOT_DATA"]) / "cub200_2010" / "test-00000-of-00001.parquet"
    encoded = [entry["bytes"] for entry in read_table(shard).column("image").to_pylist()]
    table = ListTable(encoded, group=1000)
    cache = cached_pixels(table, size=84, channels=3, workers=2)
    assert len(cache.kept) == len(encoded)
    assert verify(cache)
    np.testing.assert_array_equal(
        cache.pixels()[::50].numpy(),
        decode_rows(table, range(0, len(table), 50), size=84, channels=3)[0],
    )


def test_an_interrupt_says_that_the_next_run_goes_on(folder: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    said: list[str] = []
    table = ListTable(noise_pngs(100))
    with pytest.raises(KeyboardInterrupt):
        cached_pixels(table, **SIZE, progress=interrupt, note=said.append, workers=1)
    assert said == ["what is decoded of list is kept; the next run goes on from there"]
    assert suffixes(folder) == {".partial", ".journal"}
    cached_pixels(table, **SIZE)
    assert suffixes(folder) == {".u8", ".json"}
