"""A cache in the making: killed, interrupted, damaged, waited for, and without room."""

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

from eigenshot.data.cache import CacheUnavailable
from eigenshot.data.reading.pixelcache import cached_pixels, find_cached, verify
from tests.data.list_table import ListTable, noise_pngs
from tests.data.reading.test_pixelcache import (
    IMAGE_BYTES,
    SIZE,
    expected,
    flip,
    only,
    rows_read,
    suffixes,
    with_gaps,
)

ROOT = Path(__file__).parents[3]
CHUNK = 16  # rows, in tables as small as these


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where decoded pixels go; an empty cache for each test."""
    monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pixels"


def interrupt_after(rows: int) -> Callable[[int, int], None]:
    def progress(done: int, total: int) -> None:
        if done >= rows:
            raise KeyboardInterrupt

    return progress


def interrupted(images: list[bytes | None], rows: int) -> None:
    """A build that a person stops after so many rows."""
    with pytest.raises(KeyboardInterrupt):
        cached_pixels(ListTable(images), **SIZE, workers=1, progress=interrupt_after(rows))


BUILD = """
import sys
from pathlib import Path
from eigenshot.data.reading.pixelcache import cached_pixels
from tests.data.reading.test_pixelcache import SIZE, with_gaps
from tests.data.list_table import ListTable
table = ListTable(with_gaps(int(sys.argv[2])), log=Path(sys.argv[1]), delay=float(sys.argv[4]))
cached_pixels(table, **SIZE, workers=int(sys.argv[3]))
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Build a cache in another process; its rows are logged in ``tmp_path / "log"``."""
    started = []

    def build(count: int, workers: int, delay: float = 0.004) -> subprocess.Popen[bytes]:
        given = map(str, (tmp_path / "log", count, workers, delay))
        command = [sys.executable, "-c", BUILD, *given]
        started.append(subprocess.Popen(command, cwd=ROOT, start_new_session=True))
        return started[-1]

    yield build
    for process in started:
        if process.poll() is None or process.returncode:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its workers too
        process.wait()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "nothing happened for a minute"
        time.sleep(0.005)


def test_a_killed_build_is_taken_up(folder: Path, tmp_path: Path, start) -> None:
    process = start(400, 2, delay=0.05)  # ten seconds, however late the kill is
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


POOL = """
import time
from eigenshot.data.reading.workers import process_pool
pool = process_pool(2)
print([task.result() for task in [pool.submit(abs, -1) for _ in range(8)]], flush=True)
time.sleep(60)
"""


def test_idle_workers_end_soon_after_a_killed_parent() -> None:
    command = [sys.executable, "-c", POOL]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline()
        process.kill()
        # The workers have it as well: it is at its end when the last of them is gone.
        assert process.communicate(timeout=5) == (b"", None)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


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
