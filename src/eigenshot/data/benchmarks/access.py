"""Opening a benchmark: which of the rows in its shards make a split."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np

from eigenshot.data.benchmarks.catalogue import BENCHMARKS, Benchmark, find_benchmark
from eigenshot.data.benchmarks.findings import count_images
from eigenshot.data.cache import cache_folder
from eigenshot.data.tables.encoded import Encoded, Selection
from eigenshot.data.tables.shards import find_shards, open_shards
from eigenshot.errors import UserError
from eigenshot.files import looking_into

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "data_folder",
    "find_benchmark",
    "locate",
    "open_benchmark",
    "plain_name",
    "read_class_list",
    "shards_of_benchmark",
]

# Copies of a few-shot benchmark divide its rows in their own ways, so all of these are pooled.
_POOLED = ("train", "validation", "test", "")

# Of the train rows of a benchmark without validation rows: one in ten of each class, the last.
_HELD_OUT = 10


def data_folder() -> Path:
    """``$EIGENSHOT_DATA``, or ``data`` in the cache folder: where benchmarks are looked for."""
    chosen = os.environ.get("EIGENSHOT_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder() / "data"


def locate(benchmark: str | Benchmark) -> Path | None:
    """The benchmark's folder, if there are shards in it."""
    folder = data_folder() / _known(benchmark).folder
    return folder if _shards_in(folder) else None


@cache
def read_class_list(name: str) -> dict[str, tuple[str, ...]]:
    """Published class names, by split or by superclass; the file also says who published them."""
    text = files("eigenshot.data.benchmarks").joinpath("splits", f"{name}.json").read_text("utf-8")
    return {part: tuple(names) for part, names in json.loads(text).items() if part != "source"}


def open_benchmark(
    benchmark: str | Benchmark, split: str, without: Collection[Path] = ()
) -> Selection:
    """The pictures of one split with their labels; those of STL-10's ``pretrain`` have none.

    Class splits are made by name from all rows of a copy, whichever way that divides them. Its
    note says where the copy has another number of images than was published. Shards ``without``
    which it is to be opened are left out.
    """
    known = _known(benchmark)
    selection = _select(known, split, without)
    expected = known.expected[split].images
    if len(selection) != expected:
        found = count_images(len(selection))
        selection.note = f"{selection.name} has {found}, {expected:,} are expected"
    return selection


def _select(known: Benchmark, split: str, without: Collection[Path]) -> Selection:
    if split not in known.splits:
        raise UserError(f"{known.name} has no split '{split}'; it has {', '.join(known.splits)}")
    name = f"{known.name} ({split})"
    labelled = known.expected[split].classes > 0
    shards = [file for file in _find(known, _parts(known, split)) if file not in without]
    columns = known.label_columns if labelled else ()
    table = open_shards(shards, name=known.name, label_columns=columns)
    if not labelled:
        return Selection(table, np.arange(len(table)), None, (), name)
    if table.labels is None:
        raise UserError(
            f"{name} needs labels, but none of its images in {shards[0].parent} has one"
        )
    if known.class_list is not None:
        return _select_named(table, table.labels, read_class_list(known.class_list)[split], name)
    rows = np.flatnonzero(table.labels >= 0)
    if split == "validation":
        rows = _last_of_each_class(rows, table.labels[rows])
    return Selection(table, rows, table.labels[rows], table.class_names, name)


def shards_of_benchmark(benchmark: str | Benchmark) -> list[Path]:
    """The shards of all splits that are there, each once."""
    known = _known(benchmark)
    parts = dict.fromkeys(part for split in known.splits for part in _parts(known, split))
    return _find(known, list(parts), all_of_them=False)


def plain_name(name: str) -> str:
    """A class name without what copies differ in: case, separators, a leading number."""
    return re.sub(r"[\s_\-]+", "", re.sub(r"^\d+\.", "", name.strip())).casefold()


def _known(benchmark: str | Benchmark) -> Benchmark:
    return find_benchmark(benchmark) if isinstance(benchmark, str) else benchmark


def _parts(known: Benchmark, split: str) -> Sequence[str]:
    """Which of a copy's own splits are read for one of ours."""
    return _POOLED if known.class_list is not None else known.shards[split]


def _shards_in(folder: Path) -> dict[str, list[Path]]:
    """The shards of a folder by split; none where there is no folder."""
    with looking_into(folder):
        return find_shards(folder) if folder.is_dir() else {}


def _find(known: Benchmark, parts: Sequence[str], *, all_of_them: bool = True) -> list[Path]:
    """The shards of some parts in that order; a pooled part may be missing, another may not."""
    folder = data_folder() / known.folder
    found = _shards_in(folder)
    shards = [shard for part in parts for shard in found.get(part, [])]
    absent = [part for part in parts if part and part not in found]
    if shards and (not absent or known.class_list is not None or not all_of_them):
        return shards
    fetch = f"run 'eigenshot data fetch {known.name}', or " if known.hub else ""
    if found and known.class_list is None:
        pattern = ", ".join(f"{part}-*.parquet" for part in absent)
        raise UserError(
            f"{known.name} is not complete: {folder} lacks {pattern}; {fetch}put what is missing "
            "there"
        )
    pooled = known.hub_splits if known.hub else known.splits
    pattern = ", ".join(f"{part}-*.parquet" for part in pooled)
    raise UserError(
        f"{known.name} is not in {folder}: {fetch}put its shards ({pattern}) there, or set "
        f"EIGENSHOT_DATA to the folder that holds '{known.folder}'"
    )


def _select_named(
    table: Encoded, numbers: np.ndarray, names: tuple[str, ...], selection: str
) -> Selection:
    """The pictures of the classes called ``names``, numbered in that order.

    ``numbers`` int64 (N,) are the table's own labels, -1 where unknown.
    """
    wanted = {plain_name(name): index for index, name in enumerate(names)}
    own = [wanted.get(plain_name(name), -1) for name in table.class_names]
    absent = [name for index, name in enumerate(names) if index not in own]
    if absent:
        raise UserError(
            f"{selection} lacks {len(absent)} of {len(names)} classes: expected class names like "
            f"{_some(absent)}, found {_some(table.class_names)}"
        )
    # The last entry stands for unknown: -1 finds it.
    labels = np.array([*own, -1], dtype=np.int64)[numbers]
    rows = np.flatnonzero(labels >= 0)
    return Selection(table, rows, labels[rows], names, selection)


def _last_of_each_class(rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The last tenth of each class in the order of ``rows``, ascending."""
    kept = []
    for label in np.unique(labels):
        members = rows[labels == label]
        kept.append(members[len(members) - len(members) // _HELD_OUT :])
    return np.sort(np.concatenate(kept))


def _some(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (", …" if len(names) > 3 else "")
