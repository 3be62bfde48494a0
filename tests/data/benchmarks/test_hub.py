"""Fetching: whole or not at all, with the pictures inside, and a sentence when it cannot be."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from eigenshot.data.benchmarks import hub
from eigenshot.data.benchmarks.access import open_benchmark, read_class_list
from eigenshot.data.benchmarks.catalogue import BENCHMARKS, even
from eigenshot.data.benchmarks.hub import fetch, fetch_benchmark, hub_folder
from eigenshot.data.tables.shards import find_shards, open_shards
from eigenshot.errors import UserError
from eigenshot.reporter import Reporter
from tests.data.parquet_files import picture, write_hub

NAMES = ["cat", "dog"]


class Listener(Reporter):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.counts: list[tuple[int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def counting(self, what: str) -> Any:
        return lambda done, total: self.counts.append((done, total))


@pytest.fixture
def repository(tmp_path: Path) -> str:
    """What the datasets library takes for a repository: a folder laid out as on the hub."""
    folder = tmp_path / "repository" / "data"
    for number, (split, count) in enumerate({"train": 6, "test": 4, "unlabeled": 2}.items()):
        contents: list[bytes | None] = [picture(100 * number + row) for row in range(count)]
        path = folder / f"{split}-00000-of-00001.parquet"
        write_hub(path, contents, [row % 2 for row in range(count)], NAMES)
    return str(folder.parent)


def test_all_splits_come_with_pictures_labels_and_class_names(
    repository: str, tmp_path: Path
) -> None:
    listener = Listener()
    folder = fetch(repository, tmp_path / "out" / "pets", reporter=listener)
    assert folder == tmp_path / "out" / "pets"
    assert sorted(path.name for path in folder.iterdir()) == [
        "test-00000-of-00001.parquet",
        "train-00000-of-00001.parquet",
        "unlabeled-00000-of-00001.parquet",
    ]
    assert list(folder.parent.iterdir()) == [folder]
    assert listener.counts[-1] == (12, 12)
    table = open_shards(find_shards(folder)["test"], name="pets")
    assert table.class_names == ("cat", "dog")
    assert table.labels is not None
    assert table.labels.tolist() == [0, 1, 0, 1]
    assert table.read([0, 3]) == [picture(100), picture(103)]


def test_chosen_splits_only(repository: str, tmp_path: Path) -> None:
    folder = fetch(repository, tmp_path / "pets", reporter=Reporter(), splits=("test",))
    assert list(find_shards(folder)) == ["test"]
    with pytest.raises(UserError, match="it has no split 'val', found train, test, unlabeled"):
        fetch(repository, tmp_path / "other", reporter=Reporter(), splits=("val",))
    assert not (tmp_path / "other").exists()


def test_large_splits_are_written_as_several_shards_in_order(
    repository: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "_SHARD_BYTES", 500)
    monkeypatch.setattr(hub, "_GROUP_ROWS", 1)
    monkeypatch.setattr(hub, "_BATCH_ROWS", 1)
    folder = fetch(repository, tmp_path / "pets", reporter=Reporter(), splits=("train",))
    shards = find_shards(folder)["train"]
    assert len(shards) > 1
    table = open_shards(shards, name="pets")
    assert table.read(range(6)) == [picture(row) for row in range(6)]
    assert len(table.groups) == 7


def test_pictures_that_lie_in_files_are_embedded(tmp_path: Path) -> None:
    images = tmp_path / "images"
    for name in NAMES:
        (images / "train" / name).mkdir(parents=True)
        (images / "train" / name / "a.png").write_bytes(picture(len(name)))
        (images / "train" / name / f"{name}.png").write_bytes(picture(ord(name[0])))
    folder = fetch(str(images), tmp_path / "pets", reporter=Reporter())
    for path in images.rglob("*.png"):
        path.unlink()
    table = open_shards(find_shards(folder)["train"], name="pets")
    assert table.class_names == ("cat", "dog")
    assert None not in table.read(range(4))


def test_what_is_there_is_kept_unless_forced(repository: str, tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    old = write_hub(folder / "train-00000-of-00001.parquet", [picture(7)], [0], ["fish"])
    before = old.read_bytes()
    listener = Listener()
    assert fetch(repository, folder, reporter=listener) == folder
    assert old.read_bytes() == before
    assert listener.notes == [f"{folder} has parquet shards already; nothing was fetched"]
    (folder / "notes.txt").write_text("mine")
    (folder / "papers").mkdir()
    (folder / "papers" / "one.pdf").write_text("mine too")
    fetch(repository, folder, reporter=listener, force=True)
    assert open_shards(find_shards(folder)["train"], name="pets").class_names == ("cat", "dog")
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "papers" / "one.pdf").read_text() == "mine too"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pets", "repository"]


def test_an_incomplete_folder_asks_for_force(repository: str, tmp_path: Path) -> None:
    write_hub(tmp_path / "pets" / "train-00000-of-00002.parquet", [picture(7)], [0], ["fish"])
    with pytest.raises(UserError, match="--force replaces what is there"):
        fetch(repository, tmp_path / "pets", reporter=Reporter())


def test_a_full_disk_leaves_what_was_there_and_nothing_else(
    repository: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pets"
    old = write_hub(folder / "train-00000-of-00001.parquet", [picture(7)], [0], ["fish"])
    before = old.read_bytes()

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(UserError, match=r"cannot write to .*: no space left on device") as refusal:
        fetch(repository, folder, reporter=Reporter(), force=True)
    assert str(folder) in str(refusal.value)
    assert old.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pets", "repository"]


KILLED = """
import os, sys
from pathlib import Path
import pyarrow.parquet as pq
from eigenshot.data.benchmarks.hub import fetch
from eigenshot.reporter import Reporter

pq.ParquetWriter.write_table = lambda *arguments, **options: os._exit(9)
fetch(sys.argv[1], Path(sys.argv[2]), reporter=Reporter())
"""


def test_a_killed_fetch_leaves_no_folder_and_the_next_one_clears_up(
    repository: str, tmp_path: Path
) -> None:
    folder = tmp_path / "out" / "pets"
    arguments = [sys.executable, "-c", KILLED, repository, str(folder)]
    assert subprocess.run(arguments, check=False, capture_output=True).returncode == 9
    assert not folder.exists()
    assert len(list(folder.parent.glob(".pets.fetch-*"))) == 1
    fetch(repository, folder, reporter=Reporter())
    assert list(folder.parent.iterdir()) == [folder]


def test_what_a_killed_replacement_had_put_aside_comes_back(
    repository: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the two renames, or before the other files were given back."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    partial = tmp_path / f".pets.fetch-{hub.socket.gethostname()}-{child.pid}"
    aside = partial / "replaced"
    write_hub(aside / "train-00000-of-00001.parquet", [picture(7)], [0], ["fish"])
    (aside / "notes.txt").write_text("mine")
    folder = fetch(repository, tmp_path / "pets", reporter=Reporter(), force=True)
    assert (folder / "notes.txt").read_text() == "mine"
    assert open_shards(find_shards(folder)["train"], name="pets").class_names == ("cat", "dog")
    assert not partial.exists()


def run_offline(code: str, tmp_path: Path, **environment: str) -> str:
    """The last line that a process without the hub writes."""
    own = {"HF_HOME": str(tmp_path / "hf"), "EIGENSHOT_DATA": str(tmp_path / "data")}
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **own, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return finished.stderr.strip().splitlines()[-1]


FETCH = """
from eigenshot.data.benchmarks.hub import fetch_benchmark
from eigenshot.reporter import Reporter
fetch_benchmark("cifar10", reporter=Reporter())
"""


@pytest.mark.parametrize(
    "environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}]
)
def test_without_the_hub_one_sentence_says_where_to_put_which_files(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    said = run_offline(FETCH, tmp_path, **environment)
    assert "UserError: cannot fetch uoft-cs/cifar10: the hub cannot be reached" in said
    assert f"(train-*.parquet, test-*.parquet) into {tmp_path / 'data' / 'cifar10'}" in said
    assert not (tmp_path / "data" / "cifar10").exists()


def test_a_missing_library_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = r"pip install datasets; instead .* \(train-\*\.parquet, test-.*\) into .*out yourself"
    with pytest.raises(UserError, match=message):
        fetch("owner/name", tmp_path / "out", reporter=Reporter())
    assert not (tmp_path / "out").exists()


def test_benchmarks_go_where_they_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EIGENSHOT_DATA", str(tmp_path))
    assert hub_folder("owner/name") == tmp_path / "hub" / "owner--name"
    for split in ("train", "test"):
        path = tmp_path / "cifar10" / f"{split}-00000-of-00001.parquet"
        write_hub(path, [picture(0)], [0], NAMES)
    assert fetch_benchmark("cifar10", reporter=Reporter()) == tmp_path / "cifar10"
    assert len(open_benchmark("cifar10", "train")) == 1
    with pytest.raises(UserError, match=r"cub-2010 is not on the hub: put test-\*\.parquet into"):
        fetch_benchmark("cub-2010", reporter=Reporter())
    with pytest.raises(UserError, match="did you mean 'cifar10'"):
        fetch_benchmark("cifar-10", reporter=Reporter())


def test_repositories_that_cannot_be_had_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="expected a hub repository owner/name, found 'imagefolder'"
    ):
        fetch("imagefolder", tmp_path / "out", reporter=Reporter())
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"cannot fetch .*empty: "):
        fetch(str(tmp_path / "empty"), tmp_path / "out", reporter=Reporter())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="expected a folder to fill, found a file"):
        fetch("owner/name", tmp_path / "file", reporter=Reporter())
    assert not (tmp_path / "out").exists()


def test_splits_that_are_missing_are_added_to_those_that_are_there(
    repository: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EIGENSHOT_DATA", str(tmp_path / "data"))
    known = dataclasses.replace(BENCHMARKS["stl10"], hub=repository)
    monkeypatch.setitem(BENCHMARKS, "stl10", known)
    folder = tmp_path / "data" / "stl10"
    own = write_hub(folder / "train-00000-of-00001.parquet", [picture(7)], [0], NAMES)
    before = own.read_bytes()
    assert fetch_benchmark("stl10", reporter=Reporter()) == folder
    shards = find_shards(folder)
    assert {split: len(files) for split, files in shards.items()} == dict.fromkeys(
        ("train", "test", "unlabelled"), 1
    )
    assert own.read_bytes() == before
    assert len(open_benchmark("stl10", "test")) == 4
    assert len(open_benchmark("stl10", "pretrain")) == 3
    listener = Listener()
    fetch_benchmark("stl10", reporter=listener)
    assert "nothing was fetched" in listener.notes[0]
    assert list(folder.parent.iterdir()) == [folder]


def test_a_complete_copy_of_other_splits_is_not_added_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows may lie in shards that are called train: no more are wanted."""
    monkeypatch.setenv("EIGENSHOT_DATA", str(tmp_path))
    names = read_class_list("miniimagenet")
    everything = [name for split in names.values() for name in split]
    expected = {split: even(len(classes), 1) for split, classes in names.items()}
    known = dataclasses.replace(BENCHMARKS["miniimagenet"], expected=expected, hub="no/where")
    monkeypatch.setitem(BENCHMARKS, "miniimagenet", known)
    contents: list[bytes | None] = [picture(0, side=2)] * 100
    path = tmp_path / "miniimagenet" / "train-00000-of-00001.parquet"
    write_hub(path, contents, list(range(100)), everything)
    listener = Listener()
    fetch_benchmark("miniimagenet", reporter=listener)
    assert "has all of miniimagenet already" in listener.notes[0]


def test_files_of_other_splits_are_not_touched(repository: str, tmp_path: Path) -> None:
    (Path(repository) / "data" / "unlabeled-00000-of-00001.parquet").write_bytes(b"no parquet")
    folder = fetch(repository, tmp_path / "pets", reporter=Reporter(), splits=("train", "test"))
    assert list(find_shards(folder)) == ["train", "test"]


@pytest.fixture
def configured(repository: str) -> str:
    """A repository with two configurations."""
    (Path(repository) / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: few\n  data_files:\n  - split: test\n    path: data/test-*\n"
        "- config_name: many\n  data_files:\n  - split: train\n    path: data/train-*\n"
        "---\n"
    )
    return repository


def test_one_of_several_configurations_is_named(configured: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refusal:
        fetch(configured, tmp_path / "pets", reporter=Reporter())
    assert f"it has the configurations few, many; choose one, as in 'hub:{configured}@few'" in str(
        refusal.value
    )
    with pytest.raises(UserError, match="few, many, not 'all'; choose one"):
        fetch(f"{configured}@all", tmp_path / "pets", reporter=Reporter())
    folder = fetch(f"{configured}@many", tmp_path / "pets", reporter=Reporter())
    assert list(find_shards(folder)) == ["train"]
    assert hub_folder("owner/name@many").name == "owner--name@many"


def test_a_fetch_that_fails_leaves_no_folders(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError):
        fetch(str(tmp_path / "empty"), tmp_path / "data" / "hub" / "x", reporter=Reporter())
    assert not (tmp_path / "data").exists()


def test_of_several_processes_one_fetches(repository: str, tmp_path: Path) -> None:
    folder = tmp_path / "out" / "pets"
    listeners = [Listener() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:  # each has a handle of its own, as a process has
        fetches = [pool.submit(fetch, repository, folder, reporter=each) for each in listeners]
        assert {one.result() for one in fetches} == {folder}
    assert sum(bool(each.counts) for each in listeners) == 1
    assert list(folder.parent.iterdir()) == [folder]
