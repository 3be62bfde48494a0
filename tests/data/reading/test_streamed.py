"""Streams: windows that come in time, stand-ins for what cannot be read, killed workers."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from eigenshot.data.reading.order import Order, epoch_batches
from eigenshot.data.reading.prefetch import chunks_of, stand_ins
from eigenshot.data.reading.streamed import StreamedSource
from eigenshot.data.reading.workers import decode_rows
from eigenshot.data.source import ArraySource, Source
from eigenshot.errors import CorruptFileError, UserError
from tests.data.list_table import ListTable, noise_pngs

PICTURES = noise_pngs(64)
BROKEN = b"not a picture"
BYTES = 3 * 8 * 8  # of a decoded image


def stream(table: ListTable, window: int, **options) -> StreamedSource:
    return StreamedSource(
        table, **{"size": 8, "channels": 3, "workers": 1, **options, "window": window}
    )


def pixels_of(table: ListTable) -> np.ndarray:
    return decode_rows(table, range(len(table)), size=8, channels=3)[0]


def read_rows(log: Path) -> list[int]:
    return [int(line) for line in log.read_text().split()] if log.exists() else []


def eventually(fact: Callable[[], bool]) -> bool:
    for _ in range(500):
        if fact():
            return True
        time.sleep(0.02)
    return False


def children() -> set[int]:
    return {process.pid for process in multiprocessing.active_children() if process.pid}


@pytest.fixture
def workers() -> Callable[[], list[int]]:
    """The processes that have been started since the test began."""
    others = children()
    return lambda: sorted(children() - others)


def drawn(source: Source, **where: int) -> list[tuple[list[int], np.ndarray]]:
    batches = epoch_batches(source, **where)
    return [(rows.tolist(), source.images(rows).numpy()) for rows in batches]


def assert_same(one, other) -> None:
    assert [rows for rows, _ in one] == [rows for rows, _ in other]
    for (_, images), (_, others) in zip(one, other, strict=True):
        np.testing.assert_array_equal(images, others)


def test_it_is_a_source_that_tells_what_the_table_knows(workers) -> None:
    table = ListTable(PICTURES, labels=np.arange(64) % 2, class_names=("a", "b"))
    with stream(table, 16) as source:
        assert isinstance(source, Source)
        assert (len(source), source.shape, source.name) == (64, (3, 8, 8), "list")
        assert source.class_names == ("a", "b")
        np.testing.assert_array_equal(source.labels, np.arange(64) % 2)
        assert workers() == []  # none before there is work
        prints = {
            stream(ListTable(pictures), 5, size=size, channels=channels).fingerprint
            for pictures in (PICTURES, PICTURES[1:])
            for size, channels in [(8, 3), (9, 3), (8, 1)]
        }
        assert len(prints) == 6
        assert stream(table, 5).fingerprint == source.fingerprint


def test_a_window_that_covers_all_gives_the_batches_of_memory_and_decodes_once(tmp_path) -> None:
    table = ListTable(PICTURES[:50], log=tmp_path / "log")
    memory = ArraySource(torch.from_numpy(pixels_of(ListTable(PICTURES[:50]))))
    with stream(table, 50) as source:
        for epoch in range(2):
            where = {"seed": 7, "epoch": epoch, "batch_size": 16}
            assert_same(drawn(source, **where), drawn(memory, **where))
        assert sorted(read_rows(table.log)) == list(range(50))
        assert source.held_bytes == 50 * BYTES


def test_a_small_window_has_every_row_once_an_epoch_with_its_own_pixels() -> None:
    table = ListTable(PICTURES)
    pixels = pixels_of(table)
    orders = []
    with stream(table, 21) as source:  # rounded down to 16, two batches
        for seed, epoch in [(0, 0), (0, 1), (1, 0)]:
            batches = drawn(source, seed=seed, epoch=epoch, batch_size=8)
            order = Order(64, seed, 16, table.groups)
            for number, (rows, images) in enumerate(batches):
                np.testing.assert_array_equal(images, pixels[rows])
                assert set(rows) <= set(order.rows(epoch, number // 2).tolist())
            assert sorted(itertools.chain(*(rows for rows, _ in batches))) == list(range(64))
            orders.append([rows for rows, _ in batches])
        assert source.held_bytes == 2 * 16 * BYTES
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_an_epoch_entered_late_is_the_same_and_reads_nothing_of_earlier_windows(tmp_path) -> None:
    where = {"seed": 0, "epoch": 3, "batch_size": 4}
    with stream(ListTable(PICTURES), 12) as source:
        whole = drawn(source, **where)
        for first in (1, 3, 15):
            assert_same(drawn(source, **where, first=first), whole[first:])
    assert len(whole) == 16
    log = tmp_path / "log"
    with stream(ListTable(PICTURES, log=log), 12) as source:
        assert_same(drawn(source, **where, first=7), whole[7:])
        order = Order(64, 0, 12, source.groups)
        needed = {row for number in range(2, 6) for row in order.rows(3, number).tolist()}
        following = set(order.rows(4, 0).tolist())
        read = read_rows(log)
        assert needed <= set(read) <= needed | following


def test_the_next_window_is_decoded_before_it_is_asked_for(tmp_path) -> None:
    table = ListTable(PICTURES, log=tmp_path / "log")
    with stream(table, 16) as source:
        source.hold(np.arange(16), then=np.arange(16, 32))
        assert eventually(lambda: sorted(read_rows(table.log)) == list(range(32)))
        source.hold(np.arange(16, 32)[::-1])
        np.testing.assert_array_equal(source.images([31, 16]), pixels_of(table)[[31, 16]])
        assert read_rows(table.log).count(20) == 2  # once by the stream, once by this test


def test_another_window_than_was_announced_is_decoded_all_the_same() -> None:
    table = ListTable(PICTURES, delay=0.002)
    with stream(table, 16) as source:
        source.hold(np.arange(16), then=np.arange(16, 32))
        source.hold(np.arange(40, 50))
        assert source.held_bytes == 10 * BYTES
        np.testing.assert_array_equal(source.images(range(40, 50)), pixels_of(table)[40:50])


def test_at_most_two_windows_are_ever_decoded() -> None:
    table = ListTable(PICTURES)
    most = 0
    with stream(table, 8) as source:
        for epoch in range(2):
            for rows in epoch_batches(source, seed=0, epoch=epoch, batch_size=4):
                source.images(rows)
                most = max(most, source.held_bytes)
        source.close()
        assert source.held_bytes == 0
    assert most == 2 * 8 * BYTES


def test_a_window_smaller_than_a_batch_holds_one_batch() -> None:
    with stream(ListTable(PICTURES[:20]), 3) as source:
        batches = drawn(source, seed=0, epoch=0, batch_size=8)
        assert [len(rows) for rows, _ in batches] == [8, 8]
        assert source.held_bytes <= 2 * 8 * BYTES


def test_fewer_images_than_a_batch_make_no_batch_and_no_work(tmp_path) -> None:
    table = ListTable(PICTURES[:5], log=tmp_path / "log")
    with stream(table, 3) as source:
        assert drawn(source, seed=0, epoch=0, batch_size=6) == []
    assert read_rows(table.log) == []


def test_any_rows_can_be_had_with_or_without_a_window() -> None:
    table = ListTable(PICTURES)
    pixels = pixels_of(table)
    with stream(table, 16) as source:
        for _ in range(2):
            for rows in ([5], [60, 3, 3, -1, 17], np.arange(64)[::-1], []):
                images = source.images(rows)
                assert images.dtype == torch.uint8
                np.testing.assert_array_equal(images, pixels[np.array(rows, dtype=int)])
            mask = np.arange(64) % 5 == 0
            np.testing.assert_array_equal(source.images(torch.from_numpy(mask)), pixels[mask])
            source.hold(np.arange(2, 18))
        source.images([3])[:] = 0  # a copy: the window is not touched
        np.testing.assert_array_equal(source.images([3]), pixels[[3]])
        with pytest.raises(IndexError, match="64 images, found index 64"):
            source.images([64])
        with pytest.raises(UserError, match="integer indices"):
            source.images([0.5])
        with pytest.raises(UserError, match="at least 1 image to hold"):
            source.hold(np.arange(0))


def test_chunks_end_where_groups_do_and_only_long_groups_are_cut() -> None:
    groups = np.array([0, 4, 8, 12, 30, 33])
    rows = np.array([0, 1, 4, 5, 6, 7, 8, *range(12, 33)])
    chunks = [rows[part].tolist() for part in chunks_of(rows, groups, 6)]
    assert chunks == [
        [0, 1, 4, 5, 6, 7],
        [8],
        [12, 13, 14, 15, 16, 17],
        [18, 19, 20, 21, 22, 23],
        [24, 25, 26, 27, 28, 29],
        [30, 31, 32],
    ]
    singles = chunks_of(np.arange(1000), np.arange(1001), 256)
    assert [part.stop - part.start for part in singles] == [256, 256, 256, 232]


def test_the_next_readable_of_its_chunk_stands_in_or_one_of_the_nearest_chunk() -> None:
    parts = [slice(0, 3), slice(3, 5), slice(5, 9), slice(9, 10)]
    readable = np.array([1, 1, 0, 0, 0, 0, 0, 1, 1, 0], dtype=bool)
    places, instead = stand_ins(readable, parts)
    assert dict(zip(places.tolist(), instead.tolist(), strict=True)) == {
        2: 0,  # after the last the first
        3: 7,  # of two neighbours the later
        4: 8,
        5: 7,
        6: 7,
        9: 7,
    }
    places, _ = stand_ins(np.ones(10, dtype=bool), parts)
    assert len(places) == 0


def test_unreadable_pictures_are_replaced_and_named_once() -> None:
    pictures = list(PICTURES)
    pictures[3], pictures[10], pictures[11] = BROKEN, None, BROKEN
    table = ListTable(pictures)
    pixels = pixels_of(table)
    with stream(table, 32) as source:
        for _ in range(2):
            source.hold(np.arange(32))
            np.testing.assert_array_equal(source.images([3, 10, 11]), pixels[[4, 12, 12]])
            source.hold(np.arange(32, 64))
            np.testing.assert_array_equal(source.images([11, 3]), pixels[[12, 4]])
        assert [place for place, _ in source.unreadable] == ["list[3]", "list[10]", "list[11]"]
        assert "no picture" in source.unreadable[1][1]


def test_a_stand_in_does_not_depend_on_what_else_is_asked_for() -> None:
    pictures = [*PICTURES[:20], BROKEN]
    source = stream(ListTable(pictures), 4)
    first = pixels_of(ListTable(PICTURES[:1]))[0]
    for rows in ([20], [7, 20, 8], [20, 20]):
        np.testing.assert_array_equal(source.images(rows)[rows.index(20)], first)
    nothing = stream(ListTable([BROKEN] * 3), 2)
    with pytest.raises(UserError, match="none of the 3 images in list"):
        nothing.images([1])


def test_too_many_unreadable_pictures_end_the_stream_with_a_way_on() -> None:
    pictures = [*PICTURES[:20], *[BROKEN] * 10]
    with stream(ListTable(pictures), 30) as source:
        with pytest.raises(UserError, match=r"10 of the first 30 images \(33.3%\).*list\[20\]"):
            source.hold(np.arange(30))
        with pytest.raises(UserError, match=r"data.max_unreadable=0.5"):
            source.hold(np.arange(30))
    with stream(ListTable(pictures), 30, max_unreadable=0.5) as source:
        source.hold(np.arange(30))
        assert len(source.unreadable) == 10
    nothing = stream(ListTable([BROKEN] * 30), 30, max_unreadable=1.0)
    with nothing, pytest.raises(UserError, match="none of the 30 images"):
        nothing.hold(np.arange(30))


def test_an_error_of_the_next_window_comes_when_it_is_asked_for() -> None:
    class Cut(ListTable):
        def read(self, rows):
            if 20 in rows:
                raise CorruptFileError("shard 2 is damaged; fetch it again")
            return super().read(rows)

    table = Cut(PICTURES)
    with stream(table, 16) as source:
        source.hold(np.arange(16), then=np.arange(16, 32))
        np.testing.assert_array_equal(source.images([15]), pixels_of(ListTable(PICTURES))[[15]])
        for _ in range(2):
            with pytest.raises(CorruptFileError, match=r"^shard 2 is damaged; fetch it again$"):
                source.hold(np.arange(16, 32))
        source.hold(np.arange(32, 48))  # and the rest is still to be had


def test_a_shard_damaged_inside_is_named(tmp_path) -> None:
    from eigenshot.data.tables.shards import open_shards

    path = tmp_path / "train-00000-of-00001.parquet"
    # Other pictures in every row: a dictionary would keep all of them in one place.
    table = pa.table({"image": pa.array([{"bytes": data, "path": ""} for data in PICTURES])})
    pq.write_table(table, path, row_group_size=16, compression="none", use_dictionary=False)
    shards = open_shards([path], name="shards")
    content = bytearray(path.read_bytes())
    start = pq.ParquetFile(path).metadata.row_group(3).column(0).data_page_offset
    content[start : start + 64] = b"\xff" * 64
    path.write_bytes(content)
    with StreamedSource(shards, size=8, channels=3, window=32, workers=1) as source:
        source.hold(np.arange(32))
        np.testing.assert_array_equal(source.images(range(32)), pixels_of(ListTable(PICTURES))[:32])
        with pytest.raises(CorruptFileError, match=r"train-00000-of-00001.parquet"):
            source.hold(np.arange(32, 64))


def test_a_killed_worker_is_replaced_once_and_a_second_time_memory_is_blamed(
    tmp_path, workers
) -> None:
    table = ListTable(PICTURES, log=tmp_path / "log", delay=0.02)
    with stream(table, 16) as source:
        source.hold(np.arange(4), then=np.arange(16, 32))
        assert eventually(lambda: 16 in read_rows(table.log))
        (before,) = workers()
        os.kill(before, signal.SIGKILL)
        source.hold(np.arange(16, 32), then=np.arange(32, 48))
        np.testing.assert_array_equal(
            source.images(range(16, 32)), pixels_of(ListTable(PICTURES))[16:32]
        )
        source.hold(np.arange(32, 48), then=np.arange(48, 64))
        for time_killed in (1, 2):
            assert eventually(lambda n=time_killed: read_rows(table.log).count(48) == n)
            os.kill(workers()[0], signal.SIGKILL)
        with pytest.raises(UserError, match="memory is short; choose a smaller window"):
            source.hold(np.arange(48, 64))
        source.hold(np.arange(4))  # and it goes on, if it is asked to


def test_processes_end_with_the_source(workers) -> None:
    source = stream(ListTable(PICTURES, delay=0.05), 16)
    source.hold(np.arange(4), then=np.arange(32, 64))
    assert len(workers()) == 1
    source.close()
    assert workers() == []
    source.hold(np.arange(4), then=np.arange(32, 64))
    assert len(workers()) == 1
    del source
    gc.collect()
    assert eventually(lambda: workers() == [])


def test_an_interrupt_while_waiting_ends_at_once_and_leaves_no_process(workers) -> None:
    with stream(ListTable(PICTURES, delay=0.5), 64) as source:
        began = time.monotonic()
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            source.hold(np.arange(64))
        assert time.monotonic() - began < 10
        assert workers() == []


SCRIPT = """
import numpy as np
from eigenshot.data.reading.order import epoch_batches
from eigenshot.data.reading.streamed import StreamedSource
from tests.data.list_table import ListTable, noise_pngs

print("once")

class OwnTable(ListTable):
    pass

source = StreamedSource(OwnTable(noise_pngs(32)), size=8, channels=3, window=8, workers=2)
for rows in epoch_batches(source, seed=0, epoch=0, batch_size=4):
    images = source.images(rows)
print(images.shape[0], len(source.unreadable))
"""


def test_a_script_needs_no_main_guard_and_ends_by_itself(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "once\n4 0\n"


def test_workers_load_no_torch() -> None:
    code = "import eigenshot.data.reading.prefetch, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_spread_is_of_the_size_asked_for_from_everywhere_and_from_few_groups() -> None:
    table = ListTable([b""] * 10_000, group=100)
    rows = stream(table, 8).spread(640)
    assert 600 <= len(rows) <= 640
    assert (np.diff(rows) > 0).all()
    assert rows[0] < 100
    assert rows[-1] >= 9_900
    assert len(np.unique(rows // 100)) <= 21
    assert np.diff(rows).max() < 700
    for count in (1, 33, 9_999):
        assert 0.5 * count <= len(stream(table, 8).spread(count)) <= count + 32
    np.testing.assert_array_equal(stream(table, 8).spread(20_000), np.arange(10_000))
    single = stream(ListTable([b""] * 1000, group=1), 8).spread(64)
    assert len(single) == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window of at least 1 image, found 0"),
        ({"window": 2.5}, "found 2.5"),
        ({"window": 4, "workers": 0}, "workers of at least 1 process"),
        ({"window": 4, "max_unreadable": 2}, "max_unreadable between 0 and 1"),
        ({"window": 4, "size": 0}, "image size"),
        ({"window": 4, "channels": 2}, "channel"),
    ],
)
def test_impossible_options_are_refused(options, message: str) -> None:
    with pytest.raises(UserError, match=message):
        stream(ListTable(PICTURES), **options)


def test_an_empty_table_is_refused() -> None:
    with pytest.raises(UserError, match="has no images"):
        stream(ListTable([]), 4)


@pytest.mark.realdata
def test_real_shards_are_streamed_as_they_are_decoded() -> None:
    from eigenshot.data.tables.shards import find_shards, open_shards

    shards = find_shards(Path(os.environ["EIGENSHOT_DATA"]) / "cifar100")
    table = open_shards(shards["test"], name="cifar100")
    with StreamedSource(table, size=32, channels=3, window=512) as source:
        batches = epoch_batches(source, seed=0, epoch=0, batch_size=128)
        for rows in itertools.islice(batches, 6):
            expected, failures = decode_rows(table, rows, size=32, channels=3)
            assert not failures
            np.testing.assert_array_equal(source.images(rows), expected)
        assert source.unreadable == []
