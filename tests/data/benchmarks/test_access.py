"""The named benchmarks: published class lists, and splits made from a copy's shards."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from eigenshot.data.benchmarks.access import (
    BENCHMARKS,
    data_folder,
    find_benchmark,
    locate,
    open_benchmark,
    plain_name,
    read_class_list,
    shards_of_benchmark,
)
from eigenshot.data.opening import open_source, tell_passed_over
from eigenshot.data.tables.encoded import Selection
from eigenshot.errors import UserError
from tests.data.benchmarks.test_hub import Listener
from tests.data.parquet_files import cells, class_label, picture, write, write_hub

SPLITS = ("train", "validation", "test")


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EIGENSHOT_DATA", str(tmp_path))
    return tmp_path


def labels_of(selection: Selection) -> list[int]:
    assert selection.labels is not None
    return selection.labels.tolist()


def write_classes(
    path: Path, names: list[str] | tuple[str, ...], each: int, start: int = 0
) -> Path:
    """``each`` distinct pictures of every class, class after class."""
    labels = np.repeat(np.arange(len(names)), each).tolist()
    contents: list[bytes | None] = [
        picture(start + row, side=4) for row in range(len(names) * each)
    ]
    return write_hub(path, contents, labels, names)


def test_data_is_looked_for_where_the_variable_says_or_in_the_cache(
    data: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert data_folder() == data
    assert locate("cifar10") is None
    (data / "cifar10").mkdir()
    assert locate("cifar10") is None
    write_classes(data / "cifar10" / "train-00000-of-00001.parquet", ["cat"], 1)
    assert locate("cifar10") == data / "cifar10"
    monkeypatch.delenv("EIGENSHOT_DATA")
    assert data_folder() == own_cache / "data"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("001.Black_footed_Albatross", "black footed albatross"),
        ("aquarium_fish", "Aquarium-Fish"),
        ("n01532829", " N01532829"),
    ],
)
def test_names_are_matched_whatever_their_case_and_separators(one: str, other: str) -> None:
    assert plain_name(one) == plain_name(other)
    assert plain_name(one) != plain_name(other + "s")


def test_a_copy_with_splits_of_its_own_is_divided_anew_by_class_name(data: Path) -> None:
    lists = read_class_list("miniimagenet")
    names = sorted(name for split in SPLITS for name in lists[split])
    folder = data / "miniimagenet"
    for number, part in enumerate(SPLITS):
        path = folder / "data" / f"{part}-00000-of-00001.parquet"
        write_classes(path, names, 2 if part == "train" else 1, start=1000 * number)
    seen: set[bytes] = set()
    for split in SPLITS:
        selection = open_benchmark("miniimagenet", split)
        assert selection.class_names == lists[split]
        assert np.bincount(labels_of(selection)).tolist() == [4] * len(lists[split])
        pictures = selection.read(np.arange(len(selection)))
        assert not seen & {bytes(entry) for entry in pictures if isinstance(entry, bytes)}
        seen |= {bytes(entry) for entry in pictures if isinstance(entry, bytes)}
    assert len(seen) == 400
    # The first row of the copy's test shard is the first name of the sorted ones: a train class.
    own = {name: place for place, name in enumerate(lists["train"])}
    train = open_benchmark("miniimagenet", "train")
    place = [entry == picture(2000, side=4) for entry in train.read(range(len(train)))].index(True)
    assert labels_of(train)[place] == own[names[0]]


def test_shards_that_number_their_own_classes_are_united(data: Path) -> None:
    """As in a copy whose shards are already divided by class."""
    lists = read_class_list("miniimagenet")
    for number, split in enumerate(SPLITS):
        path = data / "miniimagenet" / f"{split}-00000-of-00001.parquet"
        write_classes(path, lists[split], 1, start=1000 * number)
    for number, split in enumerate(SPLITS):
        selection = open_benchmark("miniimagenet", split)
        assert labels_of(selection) == list(range(len(lists[split])))
        assert selection.read([0]) == [picture(1000 * number, side=4)]


def test_few_shot_benchmarks_pool_train_and_test_rows_of_cifar_by_fine_label(data: Path) -> None:
    groups = read_class_list("cifar100-superclasses")
    fine = sorted(name for names in groups.values() for name in names)
    coarse = sorted(groups)
    group_of = {name: coarse.index(group) for group in coarse for name in groups[group]}
    for number, part in enumerate(("train", "test")):
        columns = {
            "img": cells([picture(1000 * number + row, side=4) for row in range(100)]),
            "fine_label": list(range(100)),
            "coarse_label": [group_of[name] for name in fine],
        }
        features = {
            "img": {"_type": "Image"},
            "fine_label": class_label(fine),
            "coarse_label": class_label(coarse),
        }
        write(data / "cifar100" / f"{part}-00000-of-00001.parquet", columns, features)
    for name in ("fc100", "cifar-fs"):
        for split in SPLITS:
            selection = open_benchmark(name, split)
            assert selection.name == f"{name} ({split})"
            assert selection.class_names == read_class_list(name)[split]
            assert set(np.bincount(labels_of(selection))) == {2}
    test = open_benchmark("cifar100", "test")
    assert test.class_names == tuple(fine)
    assert len(test) == 100


def test_validation_is_the_last_tenth_of_each_class_of_train(data: Path) -> None:
    names = ["cat", "dog"]
    labels = [0, 1] * 20
    contents: list[bytes | None] = [picture(row, side=4) for row in range(41)]
    folder = data / "cifar10"
    write_hub(folder / "train-00000-of-00001.parquet", contents, [*labels, None], names)
    write_classes(folder / "test-00000-of-00001.parquet", names, 3, start=500)
    validation = open_benchmark("cifar10", "validation")
    assert validation.rows.tolist() == [36, 37, 38, 39]
    assert labels_of(validation) == [0, 1, 0, 1]
    assert len(open_benchmark("cifar10", "train")) == 40  # the row without a label is left out
    assert len(open_benchmark("cifar10", "test")) == 6
    assert [path.name[:5] for path in shards_of_benchmark("cifar10")] == ["train", "test-"]


@pytest.mark.parametrize("unlabelled", ["minus one", "no column"])
def test_stl10_pretrains_on_unlabelled_and_train_rows_without_labels(
    data: Path, unlabelled: str
) -> None:
    names = ["airplane", "bird"]
    contents: list[bytes | None] = [picture(row, side=4) for row in range(5)]
    path = data / "stl10" / "unlabeled-00000-of-00001.parquet"
    if unlabelled == "minus one":
        write_hub(path, contents, [-1] * 5, names)
    else:
        write(path, {"image": cells(contents)}, {"image": {"_type": "Image"}})
    write_classes(data / "stl10" / "train-00000-of-00001.parquet", names, 2, start=100)
    write_classes(data / "stl10" / "test-00000-of-00001.parquet", names, 3, start=200)
    pretrain = open_benchmark("stl10", "pretrain")
    assert (len(pretrain), pretrain.labels, pretrain.class_names) == (9, None, ())
    assert pretrain.read([0, 8]) == [picture(0, side=4), picture(103, side=4)]
    train = open_benchmark("stl10", "train")
    assert labels_of(train) == [0, 0, 1, 1]
    assert train.class_names == ("airplane", "bird")
    assert len(open_benchmark("stl10", "test")) == 6
    assert BENCHMARKS["stl10"].pretraining == "pretrain"


def test_stl10_without_its_unlabelled_shards_says_which_are_missing(data: Path) -> None:
    write_classes(data / "stl10" / "train-00000-of-00001.parquet", ["airplane"], 1)
    assert len(open_benchmark("stl10", "train")) == 1
    with pytest.raises(UserError, match=r"is not complete: .* lacks unlabelled-\*\.parquet; run"):
        open_benchmark("stl10", "pretrain")


def test_cub_takes_names_in_words(data: Path) -> None:
    lists = read_class_list("cub")
    words = [name[4:].replace("_", " ").lower() for split in SPLITS for name in lists[split]]
    write_classes(data / "cub200_2011" / "train-00000-of-00001.parquet", words, 1)
    for split in SPLITS:
        selection = open_benchmark("cub", split)
        assert selection.class_names == lists[split]
        assert labels_of(selection) == list(range(len(lists[split])))


def test_two_spellings_of_one_class_are_one_class(data: Path) -> None:
    names = read_class_list("cub")["test"]
    write_classes(data / "cub200_2010" / "a-test.parquet", names, 1)
    write_classes(data / "cub200_2010" / "b-test.parquet", [name.lower() for name in names], 1, 500)
    selection = open_benchmark("cub-2010", "test")
    assert np.bincount(labels_of(selection)).tolist() == [2] * 50


def test_other_class_names_are_shown_beside_the_expected_ones(data: Path) -> None:
    write_classes(data / "miniimagenet" / "train.parquet", ["house finch", "robin"], 1)
    with pytest.raises(UserError) as refusal:
        open_benchmark("miniimagenet", "train")
    message = str(refusal.value)
    assert "miniimagenet (train) lacks 64 of 64 classes" in message
    assert "expected class names like 'n01532829'" in message
    assert "found 'house finch', 'robin'" in message


def test_missing_files_are_one_sentence_with_the_folder_the_files_and_the_command(
    data: Path,
) -> None:
    with pytest.raises(UserError) as refusal:
        open_benchmark("fc100", "train")
    message = str(refusal.value)
    assert str(data / "cifar100") in message
    assert "(train-*.parquet, test-*.parquet)" in message
    assert "EIGENSHOT_DATA" in message
    assert "'eigenshot data fetch fc100'" in message
    assert "\n" not in message
    with pytest.raises(UserError) as refusal:
        open_benchmark("cub-2010", "test")
    assert "fetch" not in str(refusal.value)


def test_wrong_columns_are_refused_by_name(data: Path) -> None:
    columns = {"image": cells([picture(0, side=4)]), "species": [0]}
    write(data / "cub200_2011" / "train.parquet", columns)
    with pytest.raises(UserError, match=r"no label column label or labels, found: .*species"):
        open_benchmark("cub", "train")


def test_images_without_any_label_are_refused(data: Path) -> None:
    path = data / "cub200_2011" / "train.parquet"
    write_hub(path, [picture(0, side=4)], [-1], ["001.Black_footed_Albatross"])
    with pytest.raises(UserError, match=r"cub \(train\) needs labels"):
        open_benchmark("cub", "train")


def test_unknown_names_and_splits_get_a_hint() -> None:
    with pytest.raises(UserError, match="did you mean 'miniimagenet'"):
        find_benchmark("mini-imagenet")
    with pytest.raises(UserError, match="fc100 has no split 'val'; it has train, validation, test"):
        open_benchmark("fc100", "val")


def test_a_split_travels_to_another_process(data: Path) -> None:
    write_classes(data / "cifar10" / "train-00000-of-00001.parquet", ["cat", "dog"], 2)
    selection = open_benchmark("cifar10", "train")
    copy = pickle.loads(pickle.dumps(selection))
    assert copy.read([3]) == selection.read([3])
    assert copy.fingerprint == selection.fingerprint


def test_workers_need_no_torch() -> None:
    code = "import sys, eigenshot.data.benchmarks.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_copy_with_other_counts_than_the_published_says_so(data: Path) -> None:
    """As a full clone of miniImageNet has, with 50 more images a class."""
    lists = read_class_list("miniimagenet")
    for number, split in enumerate(SPLITS):
        path = data / "miniimagenet" / f"{split}-00000-of-00001.parquet"
        write_classes(path, lists[split], 1, start=1000 * number)
    note = "miniimagenet (train) has 64 images, 38,400 are expected"
    assert open_benchmark("miniimagenet", "train").note == note
    source = open_source("miniimagenet", image_size=4, channels=3, split="train")
    listener = Listener()
    tell_passed_over(source, listener)
    assert listener.notes == [note]


def test_shards_may_count_from_one(data: Path) -> None:
    for number in (1, 2):
        path = data / "cifar10" / f"train-{number:05d}-of-00002.parquet"
        write_classes(path, ["cat", "dog"], 1, start=10 * number)
    assert len(open_benchmark("cifar10", "train")) == 4
