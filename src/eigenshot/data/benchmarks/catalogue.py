"""What is known of the named benchmarks before their files are seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eigenshot.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Extent:
    """What a split should hold: images, classes (0 without labels), the fewest and most a class."""

    images: int
    classes: int = 0
    fewest: int = 0
    most: int = 0


def even(classes: int, each: int) -> Extent:
    """The extent of a split with as many images in every class."""
    return Extent(classes * each, classes, each, each)


@dataclass(frozen=True)
class Benchmark:
    """What is known of a benchmark before its files are seen.

    Parameters
    ----------
    name, description : for people
    folder : where its shards lie, within `data_folder`
    hub : the hub repository that has them, or None
    image_size : side in pixels at which it is used
    expected : what each split should hold
    pretraining : the split that pretraining sees; None where all classes are for tests
    label_columns : columns that may hold the labels, the first that is there
    class_list : file of class names that makes the splits; the rows of all shards are pooled then
    shards : without a class list, which shards a split is made of
    hub_splits : the hub's splits that are brought
    exact_size : whether files must be of ``image_size``, or are resized from whatever they are
    superclass_column : where each row's superclass is, for a check against the known ones
    separate_superclasses : whether no superclass may have classes in two splits
    known_duplicates : distinct pictures that two splits share in the published data; None where
        nobody has counted them
    """

    name: str
    description: str
    folder: str
    hub: str | None
    image_size: int
    expected: Mapping[str, Extent]
    pretraining: str | None = "train"
    label_columns: tuple[str, ...] = ("label", "labels")
    class_list: str | None = None
    shards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hub_splits: tuple[str, ...] = ("train", "test")
    exact_size: bool = True
    superclass_column: str | None = None
    separate_superclasses: bool = False
    known_duplicates: Mapping[tuple[str, str], int] | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that `open_benchmark` knows."""
        return tuple(self.expected)


def _cifar100(
    name: str, description: str, expected: Mapping[str, Extent], **more: Any
) -> Benchmark:
    """A benchmark on the rows of CIFAR-100."""
    return Benchmark(
        name,
        description,
        folder="cifar100",
        hub="uoft-cs/cifar100",
        image_size=32,
        expected=expected,
        label_columns=("fine_label", "fine_labels", "label", "labels"),
        superclass_column="coarse_label",
        **more,
    )


_ROW_SPLITS = {"train": ("train",), "validation": ("train",), "test": ("test",)}

_ALL = (
    Benchmark(
        "miniimagenet",
        "miniImageNet, 64/16/20 classes of Ravi & Larochelle, 84x84",
        folder="miniimagenet",
        hub="timm/mini-imagenet",
        image_size=84,
        expected={"train": even(64, 600), "validation": even(16, 600), "test": even(20, 600)},
        class_list="miniimagenet",
        # The hub's test rows are 50 more a class, from ImageNet's validation images.
        hub_splits=("train", "validation"),
        exact_size=False,
        # Measured on the usual 84x84 pictures: the same one under two classes.
        known_duplicates={("train", "validation"): 6},
    ),
    _cifar100(
        "fc100",
        "FC100, 60/20/20 classes of CIFAR-100 kept apart by superclass, 32x32",
        {"train": even(60, 600), "validation": even(20, 600), "test": even(20, 600)},
        class_list="fc100",
        separate_superclasses=True,
        # Measured: the same picture under two labels of CIFAR-100.
        known_duplicates={("train", "validation"): 2, ("train", "test"): 1},
    ),
    _cifar100(
        "cifar-fs",
        "CIFAR-FS, 64/16/20 classes of CIFAR-100, 32x32",
        {"train": even(64, 600), "validation": even(16, 600), "test": even(20, 600)},
        class_list="cifar-fs",
        # Measured, as above.
        known_duplicates={
            ("train", "validation"): 8,
            ("train", "test"): 6,
            ("validation", "test"): 1,
        },
    ),
    Benchmark(
        "cifar10",
        "CIFAR-10, 32x32; validation is a tenth of train, which pretraining sees unlabelled",
        folder="cifar10",
        hub="uoft-cs/cifar10",
        image_size=32,
        expected={"train": even(10, 5000), "validation": even(10, 500), "test": even(10, 1000)},
        shards=_ROW_SPLITS,
        known_duplicates={},  # measured: none that is exactly the same
    ),
    _cifar100(
        "cifar100",
        "CIFAR-100, 32x32; validation is a tenth of train, which pretraining sees unlabelled",
        {"train": even(100, 500), "validation": even(100, 50), "test": even(100, 100)},
        shards=_ROW_SPLITS,
        # Measured: test pictures that stand in train as well, six of them under another label.
        known_duplicates={("train", "test"): 10},
    ),
    Benchmark(
        "stl10",
        "STL-10, 96x96; pretraining sees 100,000 unlabelled images and train",
        folder="stl10",
        hub="jxie/stl10",
        image_size=96,
        expected={"pretrain": Extent(105_000), "train": even(10, 500), "test": even(10, 800)},
        pretraining="pretrain",
        shards={"pretrain": ("unlabelled", "train"), "train": ("train",), "test": ("test",)},
        # The hub's others are the ten published folds, whose images are in train already.
        hub_splits=("train", "test", "unlabeled"),
    ),
    Benchmark(
        "cub",
        "CUB-200-2011, 100/50/50 classes of Chen et al., 84x84",
        folder="cub200_2011",
        hub="bentrevett/caltech-ucsd-birds-200-2011",
        image_size=84,
        expected={
            "train": Extent(5885, 100, 41, 60),
            "validation": Extent(2950, 50, 41, 60),
            "test": Extent(2953, 50, 41, 60),
        },
        class_list="cub",
        exact_size=False,
    ),
    Benchmark(
        "cub-2010",
        "CUB-200 of 2010, the 50 test classes, for transfer from other data, 84x84",
        folder="cub200_2010",
        hub=None,
        image_size=84,
        expected={"test": Extent(1480, 50, 20, 39)},
        pretraining=None,
        class_list="cub",
        exact_size=False,
        known_duplicates={},
    ),
)

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}


def find_benchmark(name: str) -> Benchmark:
    """The benchmark of that name."""
    if name not in BENCHMARKS:
        raise UserError(f"unknown benchmark '{name}'{did_you_mean(name, BENCHMARKS)}")
    return BENCHMARKS[name]
