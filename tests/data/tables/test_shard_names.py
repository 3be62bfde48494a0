"""Finding the shards of a data set by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from eigenshot.data.tables.shards import find_shards
from eigenshot.errors import UserError


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def found(root: Path) -> dict[str, list[str]]:
    shards = find_shards(root)
    return {
        split: [path.relative_to(root).as_posix() for path in paths]
        for split, paths in shards.items()
    }


def test_shards_are_found_by_split_and_in_order(tmp_path: Path) -> None:
    names = [f"data/train-{number:05d}-of-00011.parquet" for number in range(11)]
    touch(tmp_path, *reversed(names), "data/test-00000-of-00001.parquet", "README.md")
    assert found(tmp_path) == {"train": names, "test": ["data/test-00000-of-00001.parquet"]}
    assert list(find_shards(str(tmp_path))) == ["train", "test"]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00001.parquet", "train"),
        ("plain_text/val-00000-of-00001.parquet", "validation"),
        ("valid.parquet", "validation"),
        ("dev-0.parquet", "validation"),
        ("Validation.PARQUET", "validation"),
        ("unlabeled-00000-of-00001.parquet", "unlabelled"),
        ("stl10_train_unlabelled.parquet", "unlabelled"),
        ("photos_test_3.parquet", "test"),
        ("test-00000-of-00001-b42a77f445573e08.parquet", "test"),
        ("default/train/0000.parquet", "train"),
        ("default/partial-train/0000.parquet", "train"),
        ("val/part/0000.parquet", "validation"),
        ("contest.parquet", ""),
        ("data-00000-of-00001.parquet", ""),
        ("0000.parquet", ""),
    ],
)
def test_a_name_tells_the_split(tmp_path: Path, name: str, split: str) -> None:
    assert found(touch(tmp_path, name)) == {split: [name]}


def test_numbers_in_names_sort_as_numbers(tmp_path: Path) -> None:
    touch(tmp_path, "part-10.parquet", "part-9.parquet", "a/part-1.parquet")
    assert found(tmp_path) == {"": ["a/part-1.parquet", "part-9.parquet", "part-10.parquet"]}


def test_hidden_files_and_other_files_are_no_shards(tmp_path: Path) -> None:
    touch(tmp_path, ".cache/train.parquet", "._train.parquet", "train.csv", "a/b/c/d/train.parquet")
    assert find_shards(tmp_path) == {}


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    touch(tmp_path / "elsewhere", "train.parquet")
    root = touch(tmp_path / "root", "test.parquet")
    (root / "data").symlink_to(tmp_path / "elsewhere")
    (root / "loop").symlink_to(root)
    assert found(root) == {"train": ["data/train.parquet"], "test": ["test.parquet"]}


def test_missing_shards_are_named(tmp_path: Path) -> None:
    touch(tmp_path, "data/train-00001-of-00003.parquet")
    with pytest.raises(UserError, match=r"lacks train-00000-of-00003.parquet, train-00002-of-0000"):
        find_shards(tmp_path)


def test_shards_are_counted_from_zero_or_from_one(tmp_path: Path) -> None:
    touch(tmp_path, "train-00001-of-00002.parquet", "train-00002-of-00002.parquet")
    assert len(find_shards(tmp_path)["train"]) == 2
    touch(tmp_path, "test-00001-of-00003.parquet", "test-00003-of-00003.parquet")
    with pytest.raises(UserError, match=r"lacks test-00002-of-00003\.parquet, of 3 shards"):
        find_shards(tmp_path)


def test_a_name_that_claims_countless_shards_is_answered_at_once(tmp_path: Path) -> None:
    touch(tmp_path, "train-0-of-999999999999.parquet")
    with pytest.raises(UserError, match=r"train-5-of-9+\.parquet and 999999999993 more"):
        find_shards(tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train-0-of-1.parquet", "train-0-of-2.parquet", "train-1-of-2.parquet"], "different"),
        (["train-0-of-1-0123456789.parquet", "train-0-of-1-9876543210.parquet"], "keep one copy"),
        (["fine/train.parquet", "coarse/train.parquet"], "several data sets .* in coarse, fine"),
    ],
)
def test_two_copies_of_a_split_are_refused(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_shards(touch(tmp_path, *names))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        find_shards(tmp_path / "nothing")
