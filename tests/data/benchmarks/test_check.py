"""What a check finds, and what it lets pass."""

from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eigenshot.data.benchmarks.catalogue import BENCHMARKS, Benchmark, Extent, even
from eigenshot.data.benchmarks.check import CheckReport, check_benchmark, check_table
from eigenshot.data.benchmarks.check_input import open_table_for_check
from eigenshot.data.tables.shards import open_shards
from eigenshot.errors import UserError
from tests.data.list_table import png
from tests.data.parquet_files import cells, class_label, picture, write, write_hub

SIDE = 4
TINY = dataclasses.replace(
    BENCHMARKS["cifar10"],
    image_size=SIDE,
    expected={"train": even(2, 10), "validation": even(2, 1), "test": even(2, 3)},
)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EIGENSHOT_DATA", str(tmp_path))
    return tmp_path


def pictures(first: int, count: int) -> list[bytes | None]:
    return [picture(number, side=SIDE) for number in range(first, first + count)]


def write_tiny(
    data: Path,
    train: list[bytes | None] | None = None,
    test: list[bytes | None] | None = None,
    test_labels: list[int | None] | None = None,
) -> None:
    """Two classes of ten and of three pictures, where nothing else is said."""
    folder, names = data / "cifar10", ["cat", "dog"]
    train = train or pictures(0, 20)
    write_hub(folder / "train-00000-of-00001.parquet", train, [0, 1] * 10, names)
    test_path = folder / "test-00000-of-00001.parquet"
    write_hub(test_path, test or pictures(100, 6), test_labels or [0, 1] * 3, names)


def only_problem(report: CheckReport) -> str:
    assert len(report.problems) == 1, report.problems
    return report.problems[0]


def test_a_faultless_copy_passes_and_is_summed_up(data: Path) -> None:
    write_tiny(data)
    calls: list[tuple[int, int]] = []
    report = check_benchmark(TINY, lambda done, total: calls.append((done, total)))
    assert report.problems == []
    assert report.notes == []
    assert calls[-1] == (26, 26)
    train, validation, test = report.splits
    assert (train.images, train.classes, train.images_a_class) == (20, 2, (10, 10))
    assert (validation.images, test.images) == (2, 6)
    assert train.sizes == {"4x4": 20}
    pixels = np.stack(
        [np.asarray(Image.open(io.BytesIO(entry))) for entry in pictures(100, 6) if entry]
    )
    np.testing.assert_allclose(test.mean, pixels.mean(axis=(0, 1, 2)) / 255, atol=1e-6)
    np.testing.assert_allclose(test.deviation, pixels.std(axis=(0, 1, 2)) / 255, atol=1e-6)
    assert report.shared == {"train/test": 0}  # validation is a part of train
    assert report.to_text().endswith("cifar10: passes")
    assert "cifar10 train: 20 images, 2 classes of 10" in report.to_text()
    assert json.loads(json.dumps(report.to_dict()))["passes"] is True


def test_a_picture_in_two_splits_is_a_problem_whatever_its_encoding(data: Path) -> None:
    twin = picture(3, side=SIDE, kind="WEBP")
    write_tiny(data, test=[*pictures(100, 5), twin])
    report = check_benchmark(TINY)
    assert only_problem(report) == "train and test share 1 picture, expected 0"
    assert "cifar10: 1 to be mended" in report.to_text()


def test_duplicates_that_the_published_data_have_are_noted_there_or_not(data: Path) -> None:
    write_tiny(data, test=[*pictures(100, 5), picture(3, side=SIDE)])
    known = dataclasses.replace(TINY, known_duplicates={("train", "test"): 1})
    report = check_benchmark(known)
    assert report.problems == []
    assert report.notes == ["train and test share 1 picture, as in the published data"]
    unknown = dataclasses.replace(TINY, known_duplicates=None)
    report = check_benchmark(unknown)
    assert report.problems == []
    assert "not known" in report.notes[0]
    write_tiny(data)
    report = check_benchmark(known)
    assert report.problems == []
    assert report.notes == ["train and test share 0 pictures, the published data share 1"]


def test_duplicates_within_a_split_are_a_note(data: Path) -> None:
    write_tiny(data, train=[*pictures(0, 18), *pictures(0, 2)])
    report = check_benchmark(TINY)
    assert report.problems == []
    assert "train repeats 2 pictures of its own" in report.notes


def test_unreadable_pictures_are_named_with_their_reason(data: Path) -> None:
    cut_short = picture(1, side=SIDE)[:40]
    write_tiny(data, train=[b"no picture", cut_short, None, *pictures(3, 17)])
    report = check_benchmark(TINY)
    problem = only_problem(report)
    assert problem.startswith("3 images cannot be read: train-00000-of-00001.parquet, row 0: not a")
    assert "row 1: " in problem
    assert "row 2: there is no picture" in problem
    assert report.splits[0].unreadable == 3
    assert report.splits[0].images == 17
    assert report.splits[0].images_a_class == (8, 9)
    assert report.splits[0].sizes == {"4x4": 17}
    assert len(report.unreadable) == 3


def test_wrong_counts_and_classes_without_images_are_problems(data: Path) -> None:
    write_tiny(data, test_labels=[0, 0, 0, 0, 0, None])
    report = check_benchmark(TINY)
    assert report.problems == [
        "test has 5 images, expected 6",
        "test has 2 classes without the expected 3 images: cat (5), dog (0)",
    ]
    assert report.notes == ["1 image in no split"]


def test_a_wrong_number_of_classes_is_a_problem(data: Path) -> None:
    write_tiny(data)
    three = dataclasses.replace(TINY, expected={"test": Extent(6, 3, 3, 3)})
    assert only_problem(check_benchmark(three)) == "test has 2 classes, expected 3"


def test_sizes_must_fit_where_the_benchmark_has_one_size(data: Path) -> None:
    write_tiny(data, test=[*pictures(100, 5), png(np.zeros((3, 9, 3), np.uint8))])
    assert only_problem(check_benchmark(TINY)) == "test has 1 image of another size than 4x4"
    report = check_benchmark(dataclasses.replace(TINY, exact_size=False))
    assert report.problems == []
    assert report.notes == ["test has 1 image to be resized to 4x4, 1 of them enlarged"]


def test_a_split_whose_shards_are_missing_is_a_problem_and_the_rest_is_checked(data: Path) -> None:
    write_tiny(data)
    (data / "cifar10" / "test-00000-of-00001.parquet").unlink()
    report = check_benchmark(TINY)
    assert "cifar10 is not complete" in only_problem(report)
    assert [split.name for split in report.splits] == ["train", "validation"]
    (data / "cifar10" / "train-00000-of-00001.parquet").unlink()
    with pytest.raises(UserError, match=f"cifar10 is not in {data / 'cifar10'}: run 'eigenshot"):
        check_benchmark(TINY)


def test_unlabelled_rows_of_stl10_are_compared_with_test(data: Path) -> None:
    names = ["airplane", "bird"]
    columns = {"image": cells(pictures(0, 5))}
    folder = data / "stl10"
    write(folder / "unlabeled-00000-of-00001.parquet", columns, {"image": {"_type": "Image"}})
    write_hub(folder / "train-00000-of-00001.parquet", pictures(100, 2), [0, 1], names)
    write_hub(folder / "test-00000-of-00001.parquet", pictures(4, 2), [0, 1], names)
    expected = {"pretrain": Extent(7), "train": even(2, 1), "test": even(2, 1)}
    tiny = dataclasses.replace(BENCHMARKS["stl10"], image_size=SIDE, expected=expected)
    report = check_benchmark(tiny)
    assert report.problems == []
    assert report.shared == {"pretrain/test": 1}
    assert report.splits[0].classes == 0
    assert "stl10 pretrain: 7 images, unlabelled" in report.to_text()


def tiny_fc100(data: Path, coarse_of: dict[str, str]) -> Benchmark:
    """Two pictures of each class, with superclasses as in ``coarse_of``."""
    from eigenshot.data.benchmarks.access import read_class_list

    fine = sorted(
        name for names in read_class_list("cifar100-superclasses").values() for name in names
    )
    coarse = sorted(set(coarse_of.values()))
    columns = {
        "img": cells(pictures(0, 200)),
        "fine_label": list(range(100)) * 2,
        "coarse_label": [coarse.index(coarse_of[name]) for name in fine] * 2,
    }
    features = {
        "img": {"_type": "Image"},
        "fine_label": class_label(fine),
        "coarse_label": class_label(coarse),
    }
    write(data / "cifar100" / "train-00000-of-00001.parquet", columns, features)
    counts = {"train": even(60, 2), "validation": even(20, 2), "test": even(20, 2)}
    return dataclasses.replace(
        BENCHMARKS["fc100"], image_size=SIDE, expected=counts, known_duplicates={}
    )


def superclasses() -> dict[str, str]:
    from eigenshot.data.benchmarks.access import read_class_list

    groups = read_class_list("cifar100-superclasses").items()
    return {name: group for group, names in groups for name in names}


def test_superclasses_of_fc100_are_compared_with_the_known_ones(data: Path) -> None:
    right = superclasses()
    assert check_benchmark(tiny_fc100(data, right)).problems == []
    swapped = {**right, "apple": right["baby"]}
    problem = only_problem(check_benchmark(tiny_fc100(data, swapped)))
    assert problem == "train has 2 images with another 'coarse_label' than their class has"


def test_class_splits_that_share_a_superclass_are_a_problem(data: Path) -> None:
    tiny = tiny_fc100(data, superclasses())
    torn = dataclasses.replace(tiny, class_list="cifar-fs", expected={"train": even(64, 2)})
    assert check_benchmark(torn).problems == []
    both = dataclasses.replace(torn, expected={"train": even(64, 2), "test": even(20, 2)})
    assert only_problem(check_benchmark(both)) == "train and test share 13 superclasses"


def test_a_copy_without_superclasses_is_noted(data: Path) -> None:
    tiny = tiny_fc100(data, superclasses())
    report = check_benchmark(dataclasses.replace(tiny, superclass_column="group"))
    assert report.problems == []
    assert report.notes == ["no column 'group' to compare the classes with"]


def test_ones_own_shards_are_checked_split_by_split(tmp_path: Path) -> None:
    names = ["cat", "dog"]
    write_hub(tmp_path / "train-00000-of-00001.parquet", pictures(0, 4), [0, 1, 0, -1], names)
    write_hub(tmp_path / "test-00000-of-00001.parquet", pictures(3, 2), [0, 1], names)
    report = check_table(*open_table_for_check(tmp_path))
    assert only_problem(report) == "train and test share 1 picture"
    assert [(split.name, split.images) for split in report.splits] == [("train", 4), ("test", 2)]
    report = check_table(*open_table_for_check(tmp_path / "test-00000-of-00001.parquet"))
    assert report.problems == []
    assert [split.name for split in report.splits] == ["all"]


def test_a_folder_of_pictures_is_checked_too(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"cat{number % 2}").mkdir(exist_ok=True)
        (tmp_path / f"cat{number % 2}" / f"{number}.png").write_bytes(picture(number, side=5))
    (tmp_path / "cat0" / "broken.jpg").write_bytes(b"")
    table, splits = open_table_for_check(tmp_path)
    report = check_table(table, splits)
    assert only_problem(report) == "1 image cannot be read: cat0/broken.jpg: the file is empty"
    assert report.splits[0].sizes == {"5x5": 3}
    assert report.splits[0].images_a_class == (1, 2)
    assert f"folder {tmp_path.name} all: 3 images, 2 classes of 1 to 2\n" in report.to_text()
    (tmp_path / "top.png").write_bytes(picture(9, side=5))
    report = check_table(*open_table_for_check(tmp_path))
    assert report.splits[0].classes == 0
    assert "sub-folders are not taken for classes" in report.notes[0]


REAL = {
    "cifar10": {"train/test": 0},
    "cifar100": {"train/test": 10},
    "fc100": {"train/validation": 2, "train/test": 1, "validation/test": 0},
    "cifar-fs": {"train/validation": 8, "train/test": 6, "validation/test": 1},
    "miniimagenet": {"train/validation": 6, "train/test": 0, "validation/test": 0},
    "cub-2010": {},
}


@pytest.mark.realdata
@pytest.mark.parametrize("name", REAL)
def test_the_real_data_pass(name: str) -> None:
    if not (Path(os.environ["EIGENSHOT_DATA"]) / BENCHMARKS[name].folder).is_dir():
        pytest.skip(f"no {name} under EIGENSHOT_DATA")
    report = check_benchmark(name)
    assert report.problems == []
    assert report.shared == REAL[name]
    counts = [split.images for split in report.splits]
    if name == "fc100":
        assert counts == [36_000, 12_000, 12_000]
    if name == "cifar100":
        assert [round(value, 4) for value in report.splits[0].mean] == [0.5071, 0.4865, 0.4409]
        assert [round(value, 4) for value in report.splits[0].deviation] == [0.2673, 0.2564, 0.2762]


def test_a_class_without_images_is_a_problem(tmp_path: Path) -> None:
    write_hub(tmp_path / "a.parquet", pictures(0, 2), [0, 2], ["cat", "dog", "fish"])
    report = check_table(*open_table_for_check(tmp_path))
    assert only_problem(report) == "class 'dog' has no readable images"
    assert report.splits[0].classes == 2
    folder = tmp_path / "photos"
    for name in ("cat", "dog", "notes"):
        (folder / name).mkdir(parents=True)
    (folder / "cat" / "a.png").write_bytes(picture(0))
    (folder / "notes" / "read.txt").write_text("no class")
    assert only_problem(check_table(*open_table_for_check(folder))) == "class 'dog' has no images"


def test_a_class_of_broken_images_only_is_a_problem(tmp_path: Path) -> None:
    for name, content in (("cat", picture(0)), ("dog", b"no picture")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(content)
    report = check_table(*open_table_for_check(tmp_path))
    assert report.problems[0].startswith("1 image cannot be read: dog/a.png: ")
    assert report.problems[1:] == ["class 'dog' has no readable images"]
    assert (report.splits[0].images, report.splits[0].classes) == (1, 1)


def test_classes_of_other_splits_are_no_fault_of_a_split(tmp_path: Path) -> None:
    """As in few-shot data of one's own, whose splits have classes of their own."""
    names = ["cat", "dog"]
    write_hub(tmp_path / "train.parquet", pictures(0, 2), [0, 0], names)
    write_hub(tmp_path / "test.parquet", pictures(5, 2), [1, 1], names)
    report = check_table(*open_table_for_check(tmp_path))
    assert report.problems == []
    assert [split.images_a_class for split in report.splits] == [(2, 2), (2, 2)]


def test_unknown_labels_are_counted_in_a_note(tmp_path: Path) -> None:
    write_hub(tmp_path / "train.parquet", pictures(0, 4), [0, -1, None, 1], ["cat", "dog"])
    report = check_table(*open_table_for_check(tmp_path))
    assert report.problems == []
    assert report.notes == ["train has 2 images without a known label"]
    broken: list[bytes | None] = [*pictures(0, 3), b"no picture"]
    write_hub(tmp_path / "train.parquet", broken, [0, 1, -1, -1], ["cat", "dog"])
    report = check_table(*open_table_for_check(tmp_path))
    assert only_problem(report).startswith("1 image cannot be read: ")
    assert report.notes == ["train has 1 image without a known label"]


def test_labels_of_an_unusable_type_are_said_by_the_reader_and_a_problem(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", {"image": cells(pictures(0, 2)), "label": [0.0, 1.0]})
    said = "the column 'label' holds double, which cannot be labels"
    table = open_shards([path], name="a")
    assert table.labels is None
    assert table.note is not None
    assert table.note.startswith(said)
    report = check_table(*open_table_for_check(tmp_path))
    assert only_problem(report).startswith(said)
    assert report.notes == []


def test_a_class_in_two_class_splits_is_a_problem(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from eigenshot.data.benchmarks import access as benchmarks

    write_tiny(data)
    lists = {"train": ("cat", "dog"), "test": ("Dog",)}
    monkeypatch.setattr(benchmarks, "read_class_list", lambda _: lists)
    expected = {"train": even(2, 13), "test": even(1, 13)}
    few = dataclasses.replace(TINY, class_list="own", expected=expected, known_duplicates=None)
    assert only_problem(check_benchmark(few)) == "train and test share 1 class: dog"


def test_a_broken_shard_is_named_and_the_others_are_checked(data: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    write_hub(own / "train.parquet", pictures(0, 4), [0, 1, 0, 1], ["cat", "dog"])
    cut = write_hub(own / "test.parquet", pictures(9, 2), [0, 1], ["cat", "dog"])
    cut.write_bytes(cut.read_bytes()[:-20])
    report = check_table(*open_table_for_check(own))
    assert only_problem(report) == f"{cut} is damaged or was cut short; fetch it again"
    assert [(split.name, split.images) for split in report.splits] == [("train", 4)]
    columns = {"image": cells(pictures(9, 2)), "label": [0, 7]}
    features = {"image": {"_type": "Image"}, "label": class_label(["cat", "dog"])}
    write(cut, columns, features)
    problem = only_problem(check_table(*open_table_for_check(own)))
    assert problem.startswith(f"{cut}, row 1: found the label 7")

    write_tiny(data)
    broken = data / "cifar10" / "test-00000-of-00001.parquet"
    write(broken, columns, features)
    report = check_benchmark(TINY)
    assert report.problems[0].startswith(f"{broken}, row 1: found the label 7")
    assert [split.name for split in report.splits] == ["train", "validation"]
    (data / "cifar10" / "train-00000-of-00001.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"train-00000-of-00001\.parquet is damaged"):
        check_benchmark(TINY)


@pytest.mark.parametrize("shape", [(3, 6, 6), (3, 6, 6, 3)])
def test_an_archive_is_checked_like_pictures(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    images[2] = images[0]
    np.savez(tmp_path / "x.npz", images=images, labels=[0, -1, 1])
    table, splits = open_table_for_check(tmp_path / "x.npz")
    report = check_table(table, splits)
    assert report.problems == []
    assert report.notes == [
        "all repeats 1 picture of its own",
        "all has 1 image without a known label",
    ]
    (split,) = report.splits
    assert (split.images, split.classes, split.sizes) == (3, 2, {"6x6": 3})
    expected = images.reshape(3, 6, 6, -1).mean(axis=(0, 1, 2)) / 255
    np.testing.assert_allclose(split.mean, np.broadcast_to(expected, 3), atol=1e-6)
    assert table.describe(2) == "x.npz, row 2"
