"""Parquet shards as the hub and others write them."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from eigenshot.data.reading.workers import decode_rows, process_pool
from eigenshot.data.tables import parquet
from eigenshot.data.tables.encoded import Encoded, Selection
from eigenshot.data.tables.shards import ShardTable, find_shards
from eigenshot.errors import CorruptFileError, UserError
from tests.data.parquet_files import CELL, cells, labels_of, opened, picture, write, write_hub


@pytest.fixture
def two_shards(tmp_path: Path) -> ShardTable:
    """Ten rows in row groups of 3, 3, 1 and 3 rows; row r holds ``picture r``."""
    shards = []
    for number, rows in enumerate((range(7), range(7, 10))):
        columns = {"img": cells([b"picture %d" % row for row in rows]), "label": list(rows)}
        path = tmp_path / f"train-0000{number}-of-00002.parquet"
        shards.append(write(path, columns, row_group_size=3))
    return opened(*shards)


def test_a_table_says_what_it_holds(two_shards: ShardTable) -> None:
    table: Encoded = two_shards
    assert len(table) == 10
    assert table.groups.tolist() == [0, 3, 6, 7, 10]
    assert two_shards.shard_starts.tolist() == [0, 7, 10]
    assert [path.name for path in two_shards.shards] == [
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
    ]
    assert two_shards.encoded_bytes == sum(path.stat().st_size for path in two_shards.shards)
    assert table.describe(6) == "train-00000-of-00002.parquet, row 6"
    assert table.describe(7) == "train-00001-of-00002.parquet, row 0"
    assert labels_of(two_shards) == list(range(10))
    assert table.class_names == tuple("0123456789")


def test_rows_are_read_in_any_order_and_more_than_once(two_shards: ShardTable) -> None:
    rows = [9, 0, 3, 2, 9, 6, 7, 0]
    assert two_shards.read(rows) == [b"picture %d" % row for row in rows]
    assert two_shards.read(np.arange(10)) == [b"picture %d" % row for row in range(10)]
    assert two_shards.read([]) == []


@pytest.mark.parametrize("row", [-1, 10])
def test_rows_outside_the_table_are_refused(two_shards: ShardTable, row: int) -> None:
    with pytest.raises(IndexError, match=r"0\.\.9"):
        two_shards.read([0, row])


def test_large_row_groups_are_cut(tmp_path: Path) -> None:
    contents = [b"%d" % row for row in range(10_000)]
    first = write(tmp_path / "a.parquet", {"image": contents}, row_group_size=9000)
    table = opened(first, write(tmp_path / "b.parquet", {"image": contents[:5]}))
    assert table.groups.tolist() == [0, 4096, 8192, 9000, 10_000, 10_005]
    rows = np.random.default_rng(0).permutation(10_005)
    assert table.read(rows) == [b"%d" % (row % 10_000) for row in rows]


def test_large_pictures_are_read_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_PIECE_BYTES", 3000)
    monkeypatch.setattr(parquet, "_KEPT_BYTES", 7000)
    contents = [bytes([row]) * 1000 for row in range(50)]
    path = write(tmp_path / "a.parquet", {"image": contents}, use_dictionary=False)
    table = opened(path)
    assert table.groups.tolist() == [0, 50]
    for rows in ([49], [0, 1, 2], list(range(50)), [30, 5, 5, 48]):
        assert table.read(rows) == [contents[row] for row in rows]
    assert 0 < table._reader._pieces.total <= 7000


def test_small_reads_in_order_read_a_row_group_once(
    two_shards: ShardTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    whole = pq.ParquetFile.iter_batches

    def counted(file: pq.ParquetFile, *arguments: Any, **options: Any) -> Any:
        started.append(options["columns"])
        return whole(file, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    for row in range(10):
        two_shards.read([row])
    assert started == [["img.bytes", "img.path"]] * 4


def test_rows_without_a_picture_are_none(tmp_path: Path) -> None:
    values = [None, {"bytes": None, "path": None}, {"bytes": b"", "path": "no.png"}]
    values.append({"bytes": b"x", "path": "no.png"})
    table = opened(write(tmp_path / "a.parquet", {"image": pa.array(values, type=CELL)}))
    assert table.read(range(4)) == [None, None, None, b"x"]
    plain = opened(write(tmp_path / "b.parquet", {"image": pa.array([b"x", None, b""])}))
    assert plain.read(range(3)) == [b"x", None, None]
    pixels, failures = decode_rows(plain, [1], size=8, channels=3)
    assert not pixels.any()
    assert list(failures) == [1]


def test_a_path_is_read_beside_its_shard_and_nowhere_else(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.png").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    named = ["sub/a.png", "sub", "../secret", str(tmp_path / "secret"), "nul\0", "missing"]
    values = pa.array([{"bytes": None, "path": path} for path in named], type=CELL)
    table = opened(write(folder / "a.parquet", {"image": values}))
    assert table.read(range(len(named))) == [b"inside", None, None, None, None, None]


def test_a_fresh_process_reads_the_same(two_shards: ShardTable) -> None:
    two_shards.read([0])  # files are open and rows in memory
    fingerprint = two_shards.fingerprint
    assert b"picture 0" not in pickle.dumps(two_shards)
    with process_pool(1) as pool:
        assert pool.submit(two_shards.read, [8, 1]).result() == [b"picture 8", b"picture 1"]
        copy = pool.submit(pickle.loads, pickle.dumps(two_shards)).result()
    assert copy.fingerprint == fingerprint
    assert labels_of(copy) == labels_of(two_shards)


def test_workers_need_no_torch() -> None:
    code = "import sys, eigenshot.data.tables.shards; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_threads_share_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "_KEPT_BYTES", 2000)
    monkeypatch.setattr(parquet, "_KEPT_FILES", 2)
    contents = [b"picture %d" % row for row in range(400)]
    shards = [
        write(tmp_path / f"{n}.parquet", {"image": contents[n * 100 :][:100]}, row_group_size=30)
        for n in range(4)
    ]
    table = opened(*shards)

    def read(seed: int) -> bool:
        rows = np.random.default_rng(seed).integers(0, 400, 20)
        return table.read(rows) == [contents[row] for row in rows]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(100)))


def test_classes_and_rows_can_be_selected(two_shards: ShardTable) -> None:
    chosen = Selection(two_shards, np.array([2, 8]), np.array([1, 0]), ("8", "2"), "two")
    assert chosen.read([0, 1]) == [b"picture 2", b"picture 8"]
    assert chosen.describe(1) == "train-00001-of-00002.parquet, row 1"
    selection = Selection(two_shards, np.array([1, 2, 6, 9]), None, (), "some")
    assert selection.groups.tolist() == [0, 2, 3, 4]
    assert selection.fingerprint != chosen.fingerprint


def test_what_travels_to_a_worker_does_not_grow_with_the_rows(two_shards: ShardTable) -> None:
    labels = np.zeros(len(two_shards), np.int64)
    selection = Selection(two_shards, np.arange(len(two_shards)), labels, ("a",), "all")
    pictures = pickle.loads(pickle.dumps(selection.pictures()))
    rows = [len(selection) - 1, 0]
    assert pictures.read(selection.places(rows)) == selection.read(rows)
    assert not any(
        isinstance(value, np.ndarray) and len(value) >= len(two_shards)
        for value in vars(pictures).values()
    )
    assert not hasattr(pictures, "labels")


def test_the_fingerprint_is_of_content_not_of_place_or_time(tmp_path: Path) -> None:
    path = write_hub(tmp_path / "a.parquet", [picture(0), picture(1)], [0, 1], ["cat", "dog"])
    moved = Path(shutil.copy(path, tmp_path / "b.parquet"))
    os.utime(moved, (0, 0))
    assert opened(path).fingerprint == opened(moved).fingerprint


def test_a_file_changed_in_a_place_that_no_digest_reads_is_another(tmp_path: Path) -> None:
    """One byte far inside a row group's pictures, of which only the beginning is digested."""
    contents = [picture(row, side=64) for row in range(4)]
    path = write_hub(tmp_path / "a.parquet", contents, [0] * 4, ["cat"])
    before = opened(path)
    identity, fingerprint = before.identity, before.fingerprint
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 255
    path.write_bytes(changed)
    os.utime(path, ns=(0, 0))
    assert opened(path).fingerprint == fingerprint
    assert opened(path).identity != identity


@pytest.mark.parametrize("change", ["picture", "label", "class name", "order", "label column"])
def test_the_fingerprint_changes_with_the_content(tmp_path: Path, change: str) -> None:
    contents, labels, names = [picture(0), picture(1)], [0, 1], ["cat", "dog"]
    before = opened(write_hub(tmp_path / "a.parquet", contents, labels, names)).fingerprint
    if change == "picture":
        contents[1] = contents[1][:-20] + b"x" + contents[1][-19:]
    if change == "order":
        contents.reverse()
    labels = [1, 0] if change == "label" else labels
    names = ["cat", "cow"] if change == "class name" else names
    path = write_hub(tmp_path / "b.parquet", contents, labels, names)
    options: dict[str, Any] = {"label_columns": ()} if change == "label column" else {}
    assert opened(path, **options).fingerprint != before


def test_the_order_of_shards_matters(two_shards: ShardTable) -> None:
    assert opened(*reversed(two_shards.shards)).fingerprint != two_shards.fingerprint


def test_a_truncated_shard(tmp_path: Path) -> None:
    path = write_hub(tmp_path / "a.parquet", [picture(0)], [0], ["cat"])
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(CorruptFileError, match=r"a\.parquet is damaged or was cut short; fetch it"):
        opened(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"PAR", "not a parquet file"),
        (b"<html>not found</html>" * 9, "not a parquet file"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "a Git LFS pointer.*git lfs pull",
        ),
    ],
)
def test_what_is_not_parquet(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(CorruptFileError, match=rf"a\.parquet is {message}.*fetch it again"):
        opened(path)


def test_a_damaged_footer(tmp_path: Path) -> None:
    path = write_hub(tmp_path / "a.parquet", [picture(0)], [0], ["cat"])
    content = path.read_bytes()
    path.write_bytes(content[:-60] + b"\xff" * 50 + content[-10:])
    with pytest.raises(CorruptFileError, match="damaged"):
        opened(path)


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such parquet file: .*a\.parquet"):
        opened(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="found a folder"):
        opened(tmp_path)


def test_no_rows_at_all(tmp_path: Path) -> None:
    empty = write_hub(tmp_path / "a.parquet", [], [], ["cat"])
    for shards in ([], [empty], [empty, empty]):
        with pytest.raises(UserError, match=f"table has no images: .*found {len(shards)} file"):
            opened(*shards)


def test_a_shard_without_rows_is_skipped(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.parquet", {"other": pa.array([], pa.null())})
    first = write_hub(tmp_path / "a.parquet", [b"a"], [0], ["cat"])
    second = write_hub(tmp_path / "b.parquet", [b"b"], [0], ["dog"])
    table = opened(empty, first, empty, second, empty)
    assert table.shard_starts.tolist() == [0, 0, 1, 1, 2, 2]
    assert table.read([1, 0]) == [b"b", b"a"]
    assert labels_of(table) == [0, 1]
    assert table.describe(1) == "b.parquet, row 0"
    assert table.fingerprint


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"picture": [b"b"], "label": [0]}, "found picture, label, expected images in 'image' and"),
        ({"image": [b"b"]}, r"found image, expected images in 'image' and labels in 'label'"),
        ({"image": [[1]], "label": [0]}, "'image' holds list"),
        ({"image": [b"b"], "label": [[0]]}, "'label' holds list"),
        ({"image": [b"b"], "label": ["cat"]}, "cannot be matched"),
    ],
)
def test_a_shard_unlike_the_first(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    first = write(tmp_path / "a.parquet", {"image": [b"a"], "label": [0]})
    second = write(tmp_path / "b.parquet", columns)
    with pytest.raises(UserError, match=rf"b\.parquet.*{message}"):
        opened(first, second)


def test_labels_where_the_first_shard_has_none(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", {"image": [b"a"]})
    second = write(tmp_path / "b.parquet", {"image": [b"b"], "label": [0], "more": [1]})
    with pytest.raises(UserError, match=r"b\.parquet .*found image, label, more.* and no labels"):
        opened(first, second)
    assert len(opened(first, second, label_columns=())) == 2


def damage(path: Path, group: int, column: int) -> None:
    """Overwrite the start of a column chunk."""
    chunk = pq.ParquetFile(path).metadata.row_group(group).column(column)
    with path.open("r+b") as file:
        file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
        file.write(b"\xff" * 16)


def test_damage_inside_a_row_group(two_shards: ShardTable) -> None:
    damage(two_shards.shards[0], group=1, column=0)
    table = opened(*two_shards.shards)  # found only on reading
    message = r"row group 1 of .*train-00000-of-00002\.parquet cannot be read.*fetch the file again"
    for _ in range(2):
        with pytest.raises(CorruptFileError, match=message):
            table.read([0, 4])
        assert table.read([0, 6, 9]) == [b"picture 0", b"picture 6", b"picture 9"]


def test_damaged_labels(two_shards: ShardTable) -> None:
    damage(two_shards.shards[1], group=0, column=2)
    message = r"column 'label' of .*train-00001-of-00002\.parquet cannot be read"
    with pytest.raises(CorruptFileError, match=message):
        opened(*two_shards.shards)


def test_flipped_bits_are_found_where_pages_have_checksums(tmp_path: Path) -> None:
    columns = {"image": [b"picture" * 9, b"drawing" * 9]}
    path = write(
        tmp_path / "a.parquet",
        columns,
        write_page_checksum=True,
        write_statistics=False,
        compression="none",
        use_dictionary=False,
    )
    path.write_bytes(path.read_bytes().replace(b"drawing", b"drowing", 1))
    with pytest.raises(CorruptFileError, match="row group 0"):
        opened(path).read([0])


def test_a_file_that_vanished_or_changed_before_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": [b"a"]})
    changed, gone = opened(path), opened(path)
    write(path, {"image": [b"a", b"b" * 100]})
    for use in (lambda: changed.read([0]), lambda: changed.fingerprint):
        with pytest.raises(CorruptFileError, match=r"a\.parquet has changed since it was opened"):
            use()
    path.unlink()
    for use in (lambda: gone.read([0]), lambda: gone.fingerprint):
        with pytest.raises(UserError, match=r"no such parquet file: .*a\.parquet"):
            use()


def assert_like_datasets(
    shards: Sequence[Path], rows: np.ndarray, cache: Path, *, image: str, label: str
) -> None:
    """Pixels, labels and class names at ``rows`` are those that ``datasets`` gives."""
    datasets = pytest.importorskip("datasets")
    table = opened(*shards)
    files = [os.fspath(path) for path in shards]
    peer = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
    assert len(peer) == len(table)
    assert peer.features[label].names == list(table.class_names)
    labels = labels_of(table)
    for row, content in zip(rows.tolist(), table.read(rows), strict=True):
        assert content is not None
        theirs = peer[row]
        ours = np.asarray(Image.open(io.BytesIO(content)))
        np.testing.assert_array_equal(ours, np.asarray(theirs[image]))
        assert labels[row] == theirs[label]


def test_datasets_gives_the_same_pictures_and_labels(tmp_path: Path) -> None:
    rows = np.arange(24)
    contents = [picture(row, kind="WEBP" if row % 2 else "PNG") for row in rows.tolist()]
    names, labels = ["cat", "dog", "elm"], [row % 3 for row in rows.tolist()]
    shards = [
        write_hub(tmp_path / "a.parquet", contents[:10], labels[:10], names),
        write_hub(tmp_path / "b.parquet", contents[10:], labels[10:], names),
    ]
    assert_like_datasets(shards, rows, tmp_path / "cache", image="image", label="label")


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("folder", "split", "image", "label"),
    [
        ("cifar100", "train", "img", "fine_label"),
        ("miniimagenet", "validation", "image", "label"),
    ],
)
def test_datasets_gives_the_same_on_real_data(
    tmp_path: Path, folder: str, split: str, image: str, label: str
) -> None:
    shards = find_shards(Path(os.environ["EIGENSHOT_DATA"]) / folder)[split]
    rows = np.random.default_rng(0).choice(len(opened(*shards)), 200, replace=False)
    assert_like_datasets(shards, rows, tmp_path, image=image, label=label)


@pytest.mark.realdata
def test_the_splits_of_miniimagenet_have_classes_of_their_own() -> None:
    shards = find_shards(Path(os.environ["EIGENSHOT_DATA"]) / "miniimagenet")
    assert list(shards) == ["train", "validation", "test"]
    table = opened(*(path for split in shards.values() for path in split))
    assert len(table) == 60_000
    assert len(table.class_names) == 100
    assert np.bincount(labels_of(table)).tolist() == [600] * 100
