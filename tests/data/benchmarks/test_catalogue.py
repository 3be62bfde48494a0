"""What was published of the benchmarks: class lists, counts, superclasses."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path

import pytest

from eigenshot.data.benchmarks.access import plain_name, read_class_list
from eigenshot.data.benchmarks.catalogue import BENCHMARKS
from eigenshot.data.tables.shards import find_shards, open_shards

SPLITS = ("train", "validation", "test")
FEW_SHOT = ("miniimagenet", "fc100", "cifar-fs", "cub")


@pytest.mark.parametrize("name", FEW_SHOT)
def test_class_lists_divide_the_classes_and_say_who_published_them(name: str) -> None:
    lists = read_class_list(name)
    assert tuple(lists) == SPLITS
    for split in SPLITS:
        assert len(lists[split]) == BENCHMARKS[name].expected[split].classes
    everything = [plain_name(entry) for split in SPLITS for entry in lists[split]]
    assert len(set(everything)) == len(everything) == (200 if name == "cub" else 100)
    text = files("eigenshot.data.benchmarks").joinpath("splits", f"{name}.json").read_text("utf-8")
    source = json.loads(text)["source"]
    author = {"fc100": "Oreshkin", "cifar-fs": "Bertinetto", "cub": "Chen", "miniimagenet": "Ravi"}
    assert author[name] in source
    assert "repository" in source


def test_superclasses_hold_five_classes_each_and_those_of_fc100_stay_together() -> None:
    groups = read_class_list("cifar100-superclasses")
    assert len(groups) == 20
    assert {len(names) for names in groups.values()} == {5}
    every_class = {name for names in groups.values() for name in names}
    for benchmark in ("fc100", "cifar-fs"):
        assert {
            name for split in SPLITS for name in read_class_list(benchmark)[split]
        } == every_class
    for names in groups.values():
        homes = [split for split in SPLITS if set(names) & set(read_class_list("fc100")[split])]
        assert len(homes) == 1
    # People are among FC100's test superclasses, and animals that swim.
    assert {"baby", "woman", "dolphin", "whale"} < set(read_class_list("fc100")["test"])


def test_cub_goes_by_class_number_as_chen_et_al_divide_it() -> None:
    lists = read_class_list("cub")
    number = {split: [int(name[:3]) - 1 for name in lists[split]] for split in SPLITS}
    assert all(index % 2 == 0 for index in number["train"])
    assert all(index % 4 == 1 for index in number["validation"])
    assert all(index % 4 == 3 for index in number["test"])
    assert lists["train"][0] == "001.Black_footed_Albatross"
    assert lists["test"][-1] == "200.Common_Yellowthroat"


def test_every_benchmark_knows_what_it_should_hold() -> None:
    assert list(BENCHMARKS) == [
        *("miniimagenet", "fc100", "cifar-fs", "cifar10", "cifar100", "stl10", "cub", "cub-2010")
    ]
    for benchmark in BENCHMARKS.values():
        assert benchmark.pretraining in (*benchmark.splits, None)
        for expected in benchmark.expected.values():
            if expected.classes:
                low, high = expected.classes * expected.fewest, expected.classes * expected.most
                assert low <= expected.images <= high
        assert (benchmark.class_list is None) == bool(benchmark.shards)
    assert sum(extent.images for extent in BENCHMARKS["cub"].expected.values()) == 11_788
    assert BENCHMARKS["fc100"].expected["train"].images == 36_000


@pytest.mark.realdata
def test_the_superclasses_are_those_of_the_real_cifar100() -> None:
    folder = Path(os.environ["EIGENSHOT_DATA"]) / "cifar100"
    if not folder.is_dir():
        pytest.skip("no cifar100 under EIGENSHOT_DATA")
    shards = find_shards(folder)["test"]
    fine = open_shards(shards, name="fine", label_columns=("fine_label",))
    coarse = open_shards(shards, name="coarse", label_columns=("coarse_label",))
    assert fine.labels is not None
    assert coarse.labels is not None
    found: dict[str, set[str]] = {}
    for one, group in zip(fine.labels, coarse.labels, strict=True):
        found.setdefault(coarse.class_names[group], set()).add(fine.class_names[one])
    known = read_class_list("cifar100-superclasses")
    assert found == {group: set(names) for group, names in known.items()}
