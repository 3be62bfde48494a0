"""One reader for three sizes: which is taken, that all agree, what is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from eigenshot.data.reading import reader
from eigenshot.data.reading.order import epoch_batches
from eigenshot.data.reading.reader import DecodedSource, Reading, open_table
from eigenshot.data.reading.streamed import StreamedSource
from eigenshot.data.source import Source
from eigenshot.data.tables.folder_table import FolderTable
from eigenshot.errors import UserError
from tests.data.list_table import ListTable, noise_pngs

LABELS = np.arange(60) % 3
NAMES = ("ant", "bee", "cow")


def table() -> ListTable:
    return ListTable(noise_pngs(60), LABELS, NAMES)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def batches(source: Source) -> list[torch.Tensor]:
    return [
        source.images(rows)
        for epoch in range(2)
        for rows in epoch_batches(source, seed=7, epoch=epoch, batch_size=8)
    ]


def test_all_readers_give_the_same_batches() -> None:
    sources = [
        open_table(table(), size=8, channels=3, reading=Reading(kind, 60))  # type: ignore[arg-type]
        for kind in ("resident", "mapped", "streamed")
    ]
    first, *others = [torch.stack(batches(source)) for source in sources]
    assert first.shape == (14, 8, 3, 8, 8)
    assert all(torch.equal(first, other) for other in others)
    assert sources[0].fingerprint == sources[1].fingerprint
    for source in sources:
        assert source.labels is not None
        np.testing.assert_array_equal(source.labels, LABELS)
        assert source.class_names == NAMES


def test_the_choice_follows_from_sizes_and_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    need = 60 * 3 * 8 * 8

    def chosen(memory: int, disk: int) -> tuple[Source, str]:
        usage = reader.shutil.disk_usage("/")._replace(free=disk)
        monkeypatch.setattr(reader, "available_memory", lambda: memory)
        monkeypatch.setattr(reader.shutil, "disk_usage", lambda _: usage)
        said: list[str] = []
        source = open_table(table(), size=8, channels=3, reading=Reading(note=said.append))
        return source, said[-1]

    source, said = chosen(memory=4 * need, disk=1000 * need)
    assert "resident" in said
    assert isinstance(source, DecodedSource)
    reader.shutil.rmtree(reader.cache_folder() / "pixels")
    source, said = chosen(memory=need, disk=1000 * need)
    assert "mapped" in said
    assert "on disk" in said
    source, said = chosen(memory=need, disk=0)
    assert "mapped" in said, "what is in the cache needs no room"
    reader.shutil.rmtree(reader.cache_folder() / "pixels")
    source, said = chosen(memory=need, disk=need)
    assert "list: streamed (1 MiB decoded" in said
    assert isinstance(source, StreamedSource)


def test_what_cannot_be_resident_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "available_memory", lambda: 60 * 3 * 8 * 8 - 1)
    with pytest.raises(UserError, match=r"60 images .* data\.reader=mapped or streamed"):
        open_table(table(), size=8, channels=3, reading=Reading("resident"))


def test_resident_images_do_without_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("EIGENSHOT_CACHE", str(blocked / "cache"))
    said: list[str] = []
    source = open_table(table(), size=8, channels=3, reading=Reading("resident", note=said.append))
    assert len(source) == 60
    assert any("decoding without a cache" in text for text in said)
    with pytest.raises(UserError, match="EIGENSHOT_CACHE"):
        open_table(table(), size=8, channels=3, reading=Reading("mapped"))


def test_a_damaged_cache_is_decoded_again(empty_cache: Path) -> None:
    whole = open_table(table(), size=8, channels=3, reading=Reading("resident"))
    pixels = whole.images(np.arange(60)).clone()
    (file,) = (empty_cache / "pixels").glob("*.u8")
    content = bytearray(file.read_bytes())
    content[1000] ^= 255
    file.write_bytes(content)
    said: list[str] = []
    again = open_table(table(), size=8, channels=3, reading=Reading("resident", note=said.append))
    assert any("damaged" in text for text in said)
    assert torch.equal(again.images(np.arange(60)), pixels)


@pytest.mark.parametrize("kind", ["resident", "mapped", "streamed"])
def test_a_folder_of_files_can_be_read_in_every_way(tmp_path: Path, kind: str) -> None:
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number, content in enumerate(noise_pngs(6, seed=ord(label[0]))):
            assert content is not None
            (tmp_path / "photos" / label / f"{number}.png").write_bytes(content)
    (tmp_path / "photos" / "cat" / "3.png").write_bytes(b"no picture")
    source = open_table(
        FolderTable(tmp_path / "photos"),
        size=8,
        channels=3,
        reading=Reading(kind, max_unreadable=0.2),  # type: ignore[arg-type]
    )
    assert source.class_names == ("cat", "dog")
    images = source.images(np.arange(len(source)))
    # A stream cannot leave a row out; another picture stands in for it.
    assert len(images) == (12 if kind == "streamed" else 11)
    assert [place for place, _ in source.unreadable] == ["cat/3.png"]  # type: ignore[attr-defined]


def test_a_changed_file_makes_another_cache(tmp_path: Path) -> None:
    for number, content in enumerate(noise_pngs(4)):
        assert content is not None
        (tmp_path / f"{number}.png").write_bytes(content)
    mapped = Reading("mapped")
    before = open_table(FolderTable(tmp_path), size=8, channels=3, reading=mapped)
    replacement = noise_pngs(1, seed=9)[0]
    assert replacement is not None
    (tmp_path / "2.png").write_bytes(replacement)
    after = open_table(FolderTable(tmp_path), size=8, channels=3, reading=mapped)
    same = [
        torch.equal(one, other)
        for one, other in zip(before.images(np.arange(4)), after.images(np.arange(4)), strict=True)
    ]
    assert same == [True, True, False, True]


def test_where_no_copy_can_be_kept_large_data_are_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("EIGENSHOT_CACHE", str(blocked / "cache"))
    monkeypatch.setattr(reader, "available_memory", lambda: 60 * 3 * 8 * 8)
    said: list[str] = []
    source = open_table(table(), size=8, channels=3, reading=Reading(note=said.append))
    assert isinstance(source, StreamedSource)
    assert any("cannot write decoded images of list" in text for text in said)
    assert said[-1] == "list: streamed (no decoded copy can be kept)"


def test_without_a_home_folder_large_data_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("EIGENSHOT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr(reader, "available_memory", lambda: 60 * 3 * 8 * 8)
    said: list[str] = []
    source = open_table(table(), size=8, channels=3, reading=Reading(note=said.append))
    assert isinstance(source, StreamedSource)
    assert "no home folder" in said[-1]


class TestDevice:
    """A device with much memory beside a machine with little."""

    NEED = 60 * 3 * 8 * 8

    @pytest.fixture(autouse=True)
    def memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader, "available_memory", lambda: self.NEED)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100 * self.NEED, 0))

    def test_a_folder_is_decoded_in_memory_first_so_it_must_fit_there(self, tmp_path: Path) -> None:
        for number, content in enumerate(noise_pngs(60)):
            assert content is not None
            (tmp_path / f"{number}.png").write_bytes(content)
        reading = Reading(device="cuda")
        source = open_table(FolderTable(tmp_path), size=8, channels=3, reading=reading)
        assert isinstance(source, DecodedSource)
        assert source.reader == "mapped"

    def test_without_a_cache_the_same_holds_for_shards(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "file" / "cache"))
        source = open_table(table(), size=8, channels=3, reading=Reading(device="cuda"))
        assert isinstance(source, StreamedSource)
        monkeypatch.setattr(reader, "available_memory", lambda: self.NEED - 1)
        reading = Reading("resident", device="cuda")
        with pytest.raises(UserError, match="are free in memory; use a smaller image size"):
            open_table(table(), size=8, channels=3, reading=reading)


def test_an_ordinary_choice_is_not_worth_a_word_where_it_is_quiet() -> None:
    said: list[str] = []
    open_table(table(), size=8, channels=3, reading=Reading(note=said.append, quiet=True))
    assert said == []
    reading = Reading("mapped", note=said.append, quiet=True)
    open_table(table(), size=8, channels=3, reading=reading)
    assert said == ["list: mapped (as asked; 1 MiB decoded)"]


def test_a_stream_knows_what_is_odd_about_its_table(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for place in ("a.png", "cat/b.png"):
        (tmp_path / place).write_bytes(noise_pngs(1)[0] or b"")
    folder = FolderTable(tmp_path)
    folder.unlistable = (("dog/", "permission denied"),)
    source = open_table(folder, size=8, channels=3, reading=Reading("streamed"))
    assert isinstance(source, StreamedSource)
    assert source.note is not None
    assert source.unreadable == [("dog/", "permission denied")]


def test_an_automatic_window_is_of_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    # What is available is this process's own share, and it holds its rows of two windows only.
    monkeypatch.setattr(reader, "available_memory", lambda: 2**30)
    monkeypatch.setattr(reader, "world_size", lambda: 1)
    alone = reader._automatic_window(1024)
    assert 2 * alone * 1024 == 2**30 / 8
    monkeypatch.setattr(reader, "world_size", lambda: 4)
    assert reader._automatic_window(1024) == 4 * alone
