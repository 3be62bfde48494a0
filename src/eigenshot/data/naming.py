"""What a name of data stands for: a benchmark, a folder, shards, a file, a hub repository."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from eigenshot.data import glyphs
from eigenshot.data.benchmarks.access import BENCHMARKS, data_folder, locate, open_benchmark
from eigenshot.data.benchmarks.hub import fetch, hub_folder
from eigenshot.data.tables.columns import USUAL_LABELS
from eigenshot.data.tables.encoded import Encoded, Labelled
from eigenshot.data.tables.folder_table import FolderTable
from eigenshot.data.tables.layout import Layout, look_into
from eigenshot.data.tables.shards import columns_of, open_shards
from eigenshot.errors import UserError, did_you_mean
from eigenshot.files import looking_into
from eigenshot.reporter import Reporter

BENCHMARK_NAMES = ("glyphs", *BENCHMARKS)
_HUB_PREFIX = "hub:"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")


def is_benchmark(data: Any) -> bool:
    """Whether ``data`` names a data set that is known here, with its splits."""
    return isinstance(data, str) and data in BENCHMARK_NAMES


def is_npz(data: Any) -> bool:
    """Whether ``data`` names a NumPy archive."""
    return isinstance(data, str | os.PathLike) and Path(data).suffix.lower() == ".npz"


def is_sizeless(data: Any) -> bool:
    """Whether the images of ``data`` may be of any size, so that one must be chosen."""
    return isinstance(data, str | os.PathLike) and not is_benchmark(data) and not is_npz(data)


def is_picture_folder(data: Any) -> bool:
    """Whether ``data`` is read as a folder of image files."""
    return is_sizeless(data) and hub_id(data) is None and not _layout(data).shards


def hub_id(data: Any) -> str | None:
    """``owner/name`` of a hub repository, with ``@configuration`` where one is named, or None.

    ``hub:owner/name`` always is one; a bare ``owner/name`` is where nothing of that name, nor a
    folder called ``owner``, lies here: that would be a mistyped path.
    """
    if not isinstance(data, str):
        return None
    if data.startswith(_HUB_PREFIX):
        name = data.removeprefix(_HUB_PREFIX)
        if not _HUB_ID.fullmatch(name):
            raise UserError(f"expected hub:owner/name or hub:owner/name@config, found '{data}'")
        return name
    is_id = _HUB_ID.fullmatch(data) is not None and data[0] not in ".~"
    # Unlike those of Path, these two say nothing against a folder that may not be entered.
    here = os.path.exists(data) or os.path.exists(os.path.dirname(data))
    return data if is_id and not here else None


def require_place(data: str) -> None:
    """A UserError where ``data`` is no benchmark and no repository, and nothing here has the name.

    Whether a repository is there, only its hub can tell.
    """
    with looking_into(data):
        known = is_benchmark(data) or hub_id(data) is not None or Path(data).expanduser().exists()
    if not known:
        hint = did_you_mean(data, BENCHMARK_NAMES)
        raise UserError(f"'{data}' is neither a folder or file nor a benchmark{hint}")


def resolve(data: Any, reporter: Reporter | None = None) -> Any:
    """``data`` itself, or the folder of a hub repository, which is fetched when it is new.

    All that asks what the data have, their splits above all, asks what is here by then.
    """
    if isinstance(data, str) and not data.strip():
        raise UserError("expected the name of a folder, a benchmark or a file, found an empty text")
    repository = hub_id(data)
    if repository is None:
        return data
    folder = hub_folder(repository)
    if not is_here(data):
        fetch(repository, folder, reporter=reporter or Reporter())
    return folder


def is_here(data: str) -> bool:
    """Whether ``data`` can be opened without being fetched first."""
    if data in BENCHMARKS:
        return locate(data) is not None
    repository = hub_id(data)
    return repository is None or bool(_layout(hub_folder(repository)).shards)


def folder_of(data: Any) -> Path | None:
    """Where the files of ``data`` lie or would lie; None for what has no folder of its own."""
    if not isinstance(data, str | os.PathLike) or data == "glyphs":
        return None
    if is_benchmark(data):
        return data_folder() / BENCHMARKS[str(data)].folder
    repository = hub_id(data)
    return hub_folder(repository) if repository else Path(data).expanduser()


def splits_of(data: Any, reporter: Reporter | None = None) -> tuple[str, ...]:
    """The splits that ``data`` has by name; none for a folder of images or an array."""
    if isinstance(data, str) and data == "glyphs":
        return tuple(glyphs.SPLITS)
    if is_benchmark(data):
        return BENCHMARKS[data].splits
    return _layout(resolve(data, reporter)).splits


def choose_split(data: Any, default: str, reporter: Reporter | None = None) -> str | None:
    """``default`` where ``data`` has such a split, None where it has none at all.

    Files of one's own with a single split are taken for everything, whatever it is called.
    """
    splits = splits_of(data, reporter)
    if default in splits:
        return default
    if len(splits) == 1 and not is_benchmark(data):
        return splits[0]
    if splits:
        raise UserError(f"'{data}' has no split '{default}'; it has {', '.join(splits)}")
    return None


def pretraining_split(data: Any, reporter: Reporter | None = None) -> str | None:
    """The split to learn from without labels; of few-shot benchmarks the train classes."""
    if is_benchmark(data) and data in BENCHMARKS:
        chosen = BENCHMARKS[data].pretraining
        if chosen is None:
            raise UserError(
                f"{data} has test classes only: pretrain on another benchmark and evaluate here"
            )
        return chosen
    return choose_split(data, "train", reporter)


def open_named(
    data: str | os.PathLike[str],
    split: str | None,
    reporter: Reporter | None = None,
    without: Collection[Path] = (),
) -> Encoded:
    """The encoded pictures that a name stands for; of all splits where none is chosen.

    Shards ``without`` which it is to be opened are left out.
    """
    if is_benchmark(data):
        return open_benchmark(str(data), split or "train")
    path = Path(resolve(data, reporter)).expanduser()
    layout = _layout(path)
    if not layout.shards:
        _check_spelling(os.fspath(data))
        return FolderTable(path, layout.note)
    name = hub_id(data) or path.name
    if split is not None and split not in layout.shards:
        known = ", ".join(layout.splits) or "none"
        raise UserError(f"'{name}' has no split '{split}'; its splits: {known}")
    chosen = layout.shards if split is None else {split: layout.shards[split]}
    files = [file for part in chosen.values() for file in part if file not in without]
    return open_shards(files, name=f"{name} ({split})" if split else name, note=layout.note)


def shards_of(data: Any) -> dict[str, list[Path]]:
    """The parquet shards that are read of a file or folder, by split; none of anything else."""
    return _layout(data).shards


def label_advice(data: Any) -> str:
    """What unlabelled ``data`` would need; for shards with the columns that they have."""
    shards = {} if is_benchmark(data) else shards_of(resolve(data))
    for files in shards.values():
        found = ", ".join(columns_of(files[0]))
        return f"a column '{USUAL_LABELS[0]}' in its shards, found the columns {found}"
    return "a sub-folder a class, shards with a column of labels, or an .npz file with 'labels'"


def require_labels(table: Labelled, data: Any) -> np.ndarray:
    """The labels of ``table``, int64 (N,), which ``data`` names; a UserError if it has none."""
    if table.labels is None:
        raise UserError(f"'{table.name}' has no labels; evaluation needs {label_advice(data)}")
    return table.labels


def _layout(data: Any) -> Layout:
    if not isinstance(data, str | os.PathLike):
        return Layout({})
    return look_into(Path(data).expanduser())


def _check_spelling(text: str) -> None:
    """A benchmark's name with a slip in it is no folder."""
    if not Path(text).expanduser().exists() and os.sep not in text:
        hint = did_you_mean(text, BENCHMARK_NAMES)
        if hint.startswith("; did"):
            raise UserError(f"'{text}' is neither a folder nor a benchmark{hint}")
