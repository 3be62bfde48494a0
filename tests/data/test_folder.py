"""Folders of pictures as people keep them."""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eigenshot.data.folder import load_folder
from eigenshot.data.reading import reader
from eigenshot.data.reading import workers as decoding
from eigenshot.data.reading.picture import read_image
from eigenshot.data.reading.reader import DecodedSource
from eigenshot.data.source import Source
from eigenshot.data.tables import folder_table as listing
from eigenshot.errors import UserError
from eigenshot.machine import available_memory


def put(path: Path, value: int = 0, *, side: int = 12, mode: str = "RGB") -> Path:
    """A picture of one grey value, in the format of its extension."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", (side, side), value).convert(mode).save(path)
    return path


def load(root: Path, **options: object) -> DecodedSource:
    return load_folder(root, **{"image_size": 8, **options})  # type: ignore[arg-type]


def values(source: DecodedSource) -> list[int]:
    return source.pixels[:, 0, 4, 4].tolist()


def test_sub_folders_are_classes_and_depth_does_not_matter(tmp_path: Path) -> None:
    put(tmp_path / "dog" / "b.png", 30)
    put(tmp_path / "cat" / "2019" / "winter" / "a.png", 10)
    put(tmp_path / "cat" / "a.png", 20)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "read.txt").write_text("no picture")
    source = load(tmp_path)
    assert isinstance(source, Source)
    assert source.paths == ("cat/2019/winter/a.png", "cat/a.png", "dog/b.png")
    assert source.class_names == ("cat", "dog")
    assert source.labels is not None
    assert source.labels.tolist() == [0, 0, 1]
    assert values(source) == [10, 20, 30]
    assert (source.shape, source.note, source.unreadable) == ((3, 8, 8), None, ())
    assert source.name == f"folder {tmp_path.name}"


def test_a_flat_folder_is_unlabelled(tmp_path: Path) -> None:
    put(tmp_path / "b.png", 1)
    put(tmp_path / "a.png", 2)
    source = load(tmp_path, channels=1)
    assert (source.labels, source.class_names, source.note) == (None, (), None)
    assert source.shape == (1, 8, 8)
    assert values(source) == [2, 1]


def test_a_mixed_folder_is_unlabelled_and_says_so(tmp_path: Path) -> None:
    put(tmp_path / "cover.png")
    put(tmp_path / "cat" / "a.png")
    put(tmp_path / "dog" / "a.png")
    source = load(tmp_path)
    assert len(source) == 3
    assert source.labels is None
    assert source.note is not None
    assert "1 image directly in the folder and 2 images in sub-folders" in source.note


def test_a_broken_file_at_the_top_does_not_unlabel_the_rest(tmp_path: Path) -> None:
    put(tmp_path / "cat" / "a.png")
    (tmp_path / "broken.jpg").touch()
    assert load(tmp_path, max_unreadable=0.5).class_names == ("cat",)


def test_a_class_that_lost_every_picture_is_no_class_and_is_named(tmp_path: Path) -> None:
    for name in "abc":
        put(tmp_path / "cat" / f"{name}.png")
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "a.png").touch()
    source = load(tmp_path, max_unreadable=0.5)
    assert source.class_names == ("cat",)
    assert source.note is not None
    assert "dog" in source.note


def test_every_extension_in_any_case_and_no_other(tmp_path: Path) -> None:
    names = ["a.jpg", "b.jpeg", "c.png", "d.webp", "e.bmp", "f.gif", "g.tif", "h.tiff"]
    names += [f"upper {name.upper()}" for name in names]
    for name in names:
        put(tmp_path / name, 200)
    put(tmp_path / "x.png").rename(tmp_path / "x.png.bak")
    (tmp_path / "jpg").write_text("")
    source = load(tmp_path)
    assert source.paths == tuple(sorted(names))
    np.testing.assert_allclose(values(source), 200, atol=2)


def test_hidden_and_system_files_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path / "cat" / "a.png")
    for name in (".hidden.png", "cat/._a.png", ".cache/a.png", "__MACOSX/cat/a.png"):
        put(tmp_path / name)
    (tmp_path / "Thumbs.db").write_text("")
    source = load(tmp_path)
    assert source.paths == ("cat/a.png",)
    assert source.class_names == ("cat",)


def test_unicode_names_and_spaces(tmp_path: Path) -> None:
    names = ["Ærø øst/bøg 1.png", "дуб/лист.png", "桜/花 見.png"]
    for value, name in enumerate(names):
        put(tmp_path / name, 50 * value)
    source = load(tmp_path)
    assert source.paths == tuple(sorted(names))
    assert source.class_names == ("Ærø øst", "дуб", "桜")
    assert sorted(values(source)) == [0, 50, 100]


def test_names_that_are_not_utf8_are_read_and_fingerprinted(tmp_path: Path) -> None:
    try:
        put(tmp_path / os.fsdecode(b"caf\xe9") / "a.png")
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    source = load(tmp_path)
    assert os.fsencode(source.class_names[0]) == b"caf\xe9"
    assert len(source.fingerprint) == 32


def test_order_does_not_depend_on_creation(tmp_path: Path) -> None:
    names = [f"{label}/{number}.png" for label in ("a", "a b", "B") for number in range(20)]
    shades = {name: 4 * number for number, name in enumerate(names)}
    found = set()
    for trial in range(3):
        root = tmp_path / str(trial)
        for place in np.random.default_rng(trial).permutation(len(names)):
            put(root / names[place], shades[names[place]])
        source = load(root)
        assert source.paths == tuple(sorted(names))
        assert values(source) == [shades[name] for name in source.paths]
        found.add(source.fingerprint)
    assert len(found) == 1


def test_the_fingerprint_is_of_the_content_not_the_place(tmp_path: Path) -> None:
    for label in "ab":
        put(tmp_path / "one" / label / "x.png", 9, side=8)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    first = load(tmp_path / "one").fingerprint
    assert load(tmp_path / "two").fingerprint == first
    with Image.open(tmp_path / "two" / "a" / "x.png") as picture:
        picture.putpixel((3, 3), (9, 10, 9))
        picture.save(tmp_path / "two" / "a" / "x.png")
    assert load(tmp_path / "two").fingerprint != first


def test_sixty_mixed_pictures_with_a_few_broken(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    modes = {"png": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"], "jpg": ["L", "RGB", "CMYK"]}
    for number in range(60):
        extension = ("png", "jpg")[number % 2]
        mode = modes[extension][number // 2 % len(modes[extension])]
        height, width = generator.integers(5, 200, 2)
        noise = generator.integers(0, 256, (height, width), dtype=np.uint8)
        picture = Image.fromarray(noise)
        if mode == "I;16":
            picture = Image.fromarray(noise.astype(np.uint16) * 257)
        path = tmp_path / f"class {number % 4}" / f"{number:02d}.{extension}"
        path.parent.mkdir(exist_ok=True)
        (picture if mode == "I;16" else picture.convert(mode)).save(path)
    empty, cut, text, dangling = (
        tmp_path / f"class {label}" / name
        for label, name in ((0, "00.png"), (1, "33.jpg"), (2, "text.gif"), (3, "lost.webp"))
    )
    empty.write_bytes(b"")
    cut.write_bytes(cut.read_bytes()[:-300])
    text.write_text("hello")
    dangling.symlink_to(tmp_path / "nowhere.webp")

    source = load(tmp_path, image_size=16)
    assert [path for path, _ in source.unreadable] == [
        "class 0/00.png",
        "class 1/33.jpg",
        "class 2/text.gif",
        "class 3/lost.webp",
    ]
    reasons = [reason for _, reason in source.unreadable]
    assert "empty" in reasons[0]
    assert "truncated" in reasons[1]
    assert "not a picture" in reasons[2]
    assert "no such file" in reasons[3]
    assert len(source) == len(source.paths) == 58
    assert source.labels is not None
    for row, path in enumerate(source.paths):
        assert source.class_names[source.labels[row]] == path.split("/")[0]
        np.testing.assert_array_equal(source.pixels[row], read_image(tmp_path / path, size=16))


def test_too_many_unreadable_are_refused_with_the_way_out(tmp_path: Path) -> None:
    for number in range(6):
        put(tmp_path / f"{number}.png")
    for name in ("w.jpg", "x.jpg", "y.jpg", "z.jpg"):
        (tmp_path / name).touch()
    with pytest.raises(UserError) as caught:
        load(tmp_path)
    message = str(caught.value)
    assert "4 of 10 images (40.0%)" in message
    assert "w.jpg (the file is empty); x.jpg (the file is empty); y.jpg" in message
    assert "z.jpg" not in message
    assert "--set data.max_unreadable=0.5" in message
    assert len(load(tmp_path, max_unreadable=0.4)) == 6
    with pytest.raises(UserError, match=r"more than the 39\.0% allowed"):
        load(tmp_path, max_unreadable=0.39)


def test_all_unreadable_is_refused_whatever_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").touch()
    (tmp_path / "b.png").write_text("text")
    with pytest.raises(UserError, match=r"none of the 2 images .*a\.jpg \(the file is empty\)"):
        load(tmp_path, max_unreadable=1.0)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_denied_files_and_folders_count_as_unreadable(tmp_path: Path) -> None:
    put(tmp_path / "cat" / "a.png")
    put(tmp_path / "cat" / "b.png").chmod(0)
    put(tmp_path / "dog" / "c.png").parent.chmod(0)
    try:
        source = load(tmp_path, max_unreadable=0.9)
    finally:
        (tmp_path / "dog").chmod(0o700)
    assert source.unreadable == (("cat/b.png", "permission denied"), ("dog/", "permission denied"))


def test_a_folder_that_cannot_be_listed_is_reported(tmp_path: Path, monkeypatch) -> None:
    put(tmp_path / "cat" / "a.png")
    put(tmp_path / "dog" / "a.png")
    scandir, denied = os.scandir, {str(tmp_path / "dog")}

    def guarded(path: str):
        if path in denied:
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(listing.os, "scandir", guarded)
    source = load(tmp_path, max_unreadable=0.5)
    assert source.unreadable == (("dog/", "permission denied"),)
    denied.add(str(tmp_path))
    with pytest.raises(UserError, match=r"cannot list .*permission denied"):
        load(tmp_path)


@pytest.mark.parametrize("chosen", ["resident", "mapped"])
def test_folders_that_cannot_be_listed_count_in_the_share(
    tmp_path: Path, monkeypatch, chosen: reader.Reader
) -> None:
    for number in range(8):
        put(tmp_path / "cat" / f"{number}.png")
    (tmp_path / "cat" / "broken.png").touch()
    put(tmp_path / "dog" / "a.png")
    scandir = os.scandir

    def guarded(path: str):
        if path == str(tmp_path / "dog"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    def opened(max_unreadable: float) -> Source:
        reading = reader.Reading(chosen, max_unreadable=max_unreadable)
        table = listing.FolderTable(tmp_path)
        return reader.open_table(table, size=8, channels=3, reading=reading)

    monkeypatch.setattr(listing.os, "scandir", guarded)
    message = r"2 of 10 images \(20\.0%\) .*: cat/broken\.png \(.*\); dog/ \(permission denied\)\."
    with pytest.raises(UserError, match=message):
        opened(0.19)
    assert len(opened(0.2)) == 8


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    put(root / "cat" / "a.png")
    put(outside / "owl" / "b.png")
    (outside / "owl" / "again").symlink_to(outside / "owl")
    (outside / "owl" / "home").symlink_to(root)
    (root / "cat" / "up").symlink_to(root)
    (root / "cat" / "beyond").symlink_to(tmp_path)
    (root / "cat" / "self.png").symlink_to(root / "cat" / "self.png")
    (root / "owl").symlink_to(outside / "owl")
    (root / "cat" / "linked.png").symlink_to(outside / "owl" / "b.png")
    source = load(root, max_unreadable=0.5)
    assert source.paths == ("cat/a.png", "cat/linked.png", "owl/b.png")
    assert [path for path, _ in source.unreadable] == ["cat/self.png"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_with_a_picture_name_does_not_hang(tmp_path: Path) -> None:
    put(tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png")
    assert load(tmp_path).paths == ("a.png",)


def test_progress_counts_up_to_the_total(tmp_path: Path) -> None:
    for number in range(50):
        put(tmp_path / f"{number}.png")
    calls: list[tuple[int, int, int]] = []
    load(tmp_path, progress=lambda done, total: calls.append((done, total, threading.get_ident())))
    done = [call[0] for call in calls]
    assert done == sorted(set(done))
    assert len(done) > 3
    assert done[-1] == 50
    assert {call[1:] for call in calls} == {(50, threading.get_ident())}


def test_an_interrupt_leaves_the_rest_undone(tmp_path: Path, monkeypatch) -> None:
    for number in range(2000):
        put(tmp_path / f"{number}.png", side=2)
    read: list[object] = []

    def counted(path, **options):
        read.append(path)
        return read_image(path, **options)

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decoding, "read_image", counted)
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, progress=interrupt)
    assert len(read) < 2000


def test_warnings_about_large_photographs_are_not_passed_on(tmp_path: Path, monkeypatch) -> None:
    put(tmp_path / "a.png", side=12)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserError, match="exceeds limit"):
            read_image(tmp_path / "a.png", size=8)
        assert len(load(tmp_path)) == 1


def test_missing_folder_offers_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "photos" / "train").mkdir(parents=True)
    with pytest.raises(UserError, match=r"no such folder.*did you mean 'photos'"):
        load(tmp_path / "photo")
    with pytest.raises(UserError, match="did you mean 'photos'"):
        load(tmp_path / "phtos" / "train")
    with pytest.raises(UserError, match="no such folder") as caught:
        load(tmp_path / "zzz")
    assert "photos" not in str(caught.value)


def test_not_a_folder_of_images(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="found another file"):
        load(put(tmp_path / "a.png"))
    bare = tmp_path / "bare"
    bare.mkdir()
    with pytest.raises(UserError, match="is empty"):
        load(bare)
    (bare / "deeper").mkdir()
    with pytest.raises(UserError, match=r"holds no image, nor do its sub-folders \(deeper\)"):
        load(bare)
    for number in range(12):
        (bare / "deeper" / f"{number}.txt").touch()
    with pytest.raises(UserError, match=r"holds 12 files but no image; looked for \.jpg \.jpeg"):
        load(bare)


def test_too_little_memory_is_refused_before_decoding(tmp_path: Path, monkeypatch) -> None:
    for number in range(4):
        put(tmp_path / f"{number}.png")
    need = 4 * 3 * 512 * 512
    monkeypatch.setattr(reader, "available_memory", lambda: need - 1)
    monkeypatch.setattr(decoding, "read_image", lambda *_, **__: pytest.fail("decoded"))
    with pytest.raises(UserError, match=r"4 images .* 512 x 512 .*MiB.*smaller image size"):
        load(tmp_path, image_size=512)
    monkeypatch.undo()
    monkeypatch.setattr(reader, "available_memory", lambda: need)
    assert len(load(tmp_path, image_size=512)) == 4


def test_available_memory_is_within_the_machine(tmp_path: Path) -> None:
    found = available_memory()
    if found is None:
        pytest.skip("the system does not tell")
    assert 2**20 < found <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    "options", [{"image_size": 0}, {"channels": 2}, {"max_unreadable": 1.5}, {"max_unreadable": -1}]
)
def test_impossible_options_are_refused(tmp_path: Path, options: dict[str, float]) -> None:
    put(tmp_path / "a.png")
    with pytest.raises(UserError, match="expected"):
        load(tmp_path, **options)
