"""The decoded cache: what it holds, what it survives, and what it says when it cannot be made."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from eigenshot.data.cachebuild import plan_chunks
from eigenshot.data.decoding import MISSING, decode_rows
from eigenshot.data.pixelcache import (
    CacheUnavailable,
    DecodedCache,
    cached_pixels,
    decode_table,
    find_cached,
    verify,
)
from eigenshot.data.source import ArraySource
from eigenshot.errors import UserError
from tests.data.tables import DeadlyTable, ListTable, noise_pngs

ROOT = Path(__file__).parents[2]
SIZE = {"size": 8, "channels": 3}
IMAGE_BYTES = 3 * 8 * 8
CHUNK = 16  # rows, in tables as small as these


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where decoded pixels go; an empty cache for each test."""
    monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pixels"


def suffixes(folder: Path) -> set[str]:
    """Of all files of the cache but the lock, which stays."""
    return {file.suffix for file in folder.iterdir()} - {".lock"} if folder.exists() else set()


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


def interrupt_after(rows: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= rows:
            raise KeyboardInterrupt

    return progress


def interrupted(images: list[bytes | None], rows: int) -> None:
    """A build that a person stops after so many rows."""
    with pytest.raises(KeyboardInterrupt):
        cached_pixels(ListTable(images), **SIZE, workers=1, progress=interrupt_after(rows))


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
    code = "import sys, eigenshot.data.cachebuild; sys.exit('torch' in sys.modules)"
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


BUILD = """
import sys
from pathlib import Path
from eigenshot.data.pixelcache import cached_pixels
from tests.data.test_pixelcache import SIZE, with_gaps
from tests.data.tables import ListTable
table = ListTable(with_gaps(int(sys.argv[2])), log=Path(sys.argv[1]), delay=0.004)
cached_pixels(table, **SIZE, workers=int(sys.argv[3]))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[int, int], subprocess.Popen[bytes]]]:
    """Build a cache in another process; its rows are logged in ``tmp_path / "log"``."""
    started = []

    def build(count: int, workers: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", BUILD, str(tmp_path / "log"), str(count), str(workers)]
        started.append(subprocess.Popen(command, cwd=ROOT, start_new_session=True))
        return started[-1]

    yield build
    for process in started:
        if process.poll() is None or process.returncode:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # workers outlive a killed parent a while
        process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "nothing happened for a minute"
        time.sleep(0.005)


def test_a_killed_build_is_taken_up(folder: Path, tmp_path: Path, start) -> None:
    process = start(400, 2)
    wait_for(lambda: any(file.read_text().count("\n") > 4 for file in folder.glob("*.journal")))
    time.sleep(random.Random().uniform(0, 0.3))
    process.kill()
    process.wait()
    lines = only(folder, ".journal").read_text().splitlines(keepends=True)
    finished = {json.loads(line)[0] for line in lines[1:] if line.endswith("\n")}
    table = ListTable(with_gaps(400), log=tmp_path / "second log")
    cache = cached_pixels(table, **SIZE, workers=1)
    again = rows_read(tmp_path / "second log")
    assert len(finished) >= 4
    assert not {row // CHUNK * CHUNK for row in again} & finished
    assert len(again) == len(set(again)) == 400 - CHUNK * len(finished)
    np.testing.assert_array_equal(cache.pixels().numpy(), expected(ListTable(with_gaps(400))))
    assert verify(cache)
    assert suffixes(folder) == {".u8", ".json"}


def test_of_two_processes_one_does_the_work(tmp_path: Path, start) -> None:
    process = start(200, 1)
    wait_for(lambda: bool(rows_read(tmp_path / "log")))
    notes: list[str] = []
    table = ListTable(with_gaps(200), log=tmp_path / "log")
    cache = cached_pixels(table, **SIZE, note=notes.append)
    assert notes == ["waiting for another process that is decoding list"]
    assert process.wait() == 0
    assert rows_read(tmp_path / "log") == list(range(200))
    assert verify(cache)


def test_an_interrupted_build_goes_on_where_it_stopped(folder: Path, tmp_path: Path) -> None:
    images, log, told = with_gaps(), tmp_path / "log", list[tuple[int, int]]()
    interrupted(images, rows=48)
    assert suffixes(folder) == {".partial", ".journal"}
    cache = cached_pixels(
        ListTable(images, log=log), **SIZE, workers=1, progress=lambda *done: told.append(done)
    )
    assert rows_read(log) == list(range(48, 100))
    assert told == [(48, 100), (64, 100), (80, 100), (96, 100), (100, 100)]
    np.testing.assert_array_equal(cache.pixels().numpy(), expected(ListTable(images)))


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_a_damaged_chunk_is_noticed_and_decoded_again(folder: Path, tmp_path: Path) -> None:
    images, log = with_gaps(), tmp_path / "log"
    interrupted(images, rows=48)
    flip(only(folder, ".partial"), 20 * IMAGE_BYTES)
    cache = cached_pixels(ListTable(images, log=log), **SIZE, workers=1)
    assert rows_read(log) == [*range(16, 32), *range(48, 100)]
    np.testing.assert_array_equal(cache.pixels().numpy(), expected(ListTable(images)))


@pytest.mark.parametrize(
    ("spoil", "kept"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:-5]], 32),  # torn
        (lambda lines: [*lines, b'{"chunk": 1}\n', b"[48, 1, [[9, 0]]]\n", b"\xff\n"], 48),
        (lambda lines: [b'["other work"]\n', *lines[1:]], 0),
        (lambda lines: [b"\0\0\0", *lines[1:]], 0),
        (lambda lines: [], 0),
    ],
)
def test_a_spoiled_journal_is_believed_as_far_as_it_goes(
    folder: Path, tmp_path: Path, spoil, kept: int
) -> None:
    images, log = noise_pngs(100), tmp_path / "log"
    interrupted(images, rows=48)
    journal = only(folder, ".journal")
    journal.write_bytes(b"".join(spoil(journal.read_bytes().splitlines(keepends=True))))
    cache = cached_pixels(ListTable(images, log=log), **SIZE, workers=1)
    assert rows_read(log) == list(range(kept, 100))
    np.testing.assert_array_equal(cache.pixels().numpy(), expected(ListTable(images)))


@pytest.mark.parametrize(("moment", "kept"), [("fsync", 64), ("replace", 0)])
def test_an_interrupt_while_finishing_breaks_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, kept: int
) -> None:
    images, log, real = noise_pngs(100), tmp_path / "log", getattr(os, moment)
    images[70] = None  # what lies before is not moved when the gap is closed

    def stop(*arguments: Path) -> None:
        if moment == "fsync" and list(folder.glob("*.squeezed")):
            raise KeyboardInterrupt
        if moment == "replace" and str(arguments[1]).endswith(".json"):
            raise KeyboardInterrupt
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, moment, stop)
        with pytest.raises(KeyboardInterrupt):
            cached_pixels(ListTable(images), **SIZE)
    assert find_cached(ListTable(images), **SIZE) is None
    cache = cached_pixels(ListTable(images, log=log), **SIZE, workers=1)
    assert rows_read(log) == list(range(kept, 100))
    np.testing.assert_array_equal(cache.pixels().numpy(), expected(ListTable(images)))
    assert suffixes(folder) == {".u8", ".json"}


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


NO_ROOM = "has no room .*: 2 MiB are needed, [0-9,]+ MiB are free; set EIGENSHOT_CACHE .* stream"


def test_a_file_that_may_not_grow_so_large_says_so(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with pytest.raises(CacheUnavailable, match=NO_ROOM):
            cached_pixels(ListTable(noise_pngs(10)), size=256, channels=3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert suffixes(folder) == set()


def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not permitted")
    try:
        monkeypatch.setenv("EIGENSHOT_CACHE", str(disk))
        with pytest.raises(CacheUnavailable, match=NO_ROOM):
            cached_pixels(ListTable(noise_pngs(10)), size=256, channels=3)
        assert suffixes(disk / "pixels") == set()
        cached_pixels(ListTable(noise_pngs(10)), **SIZE)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_space_is_claimed_where_the_file_system_cannot_reserve_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupted(noise_pngs(100), rows=48)
    monkeypatch.delattr(os, "posix_fallocate")
    cache = cached_pixels(ListTable(noise_pngs(100)), **SIZE)
    np.testing.assert_array_equal(cache.pixels().numpy(), expected(ListTable(noise_pngs(100))))


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
