"""What a name of data stands for: a benchmark, a folder, shards, a file, a hub repository."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from eigenshot.data import glyphs
from eigenshot.data.benchmarks import BENCHMARKS, open_benchmark
from eigenshot.data.encoded import Encoded
from eigenshot.data.hub import fetch, hub_folder
from eigenshot.data.listing import FolderTable
from eigenshot.data.shards import find_shards, open_shards
from eigenshot.errors import UserError, did_you_mean
from eigenshot.reporter import Reporter

BENCHMARK_NAMES = ("glyphs", *BENCHMARKS)
_HUB_PREFIX = "hub:"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


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
    return is_sizeless(data) and shards_of(data) is None and hub_id(data) is None


def hub_id(data: Any) -> str | None:
    """``owner/name`` of a hub repository, or None.

    ``hub:owner/name`` always is one; a bare ``owner/name`` is where nothing of that name, nor a
    folder called ``owner``, lies here: that would be a mistyped path.
    """
    if not isinstance(data, str):
        return None
    if data.startswith(_HUB_PREFIX):
        name = data.removeprefix(_HUB_PREFIX)
        if not _HUB_ID.fullmatch(name):
            raise UserError(f"expected hub:owner/name, found '{data}'")
        return name
    is_id = _HUB_ID.fullmatch(data) is not None and data[0] not in ".~"
    return data if is_id and not Path(data).exists() and not Path(data).parent.exists() else None


def shards_of(data: Any) -> dict[str, list[Path]] | None:
    """Parquet shards by split, of a file or folder that has them; None for anything else."""
    if not isinstance(data, str | os.PathLike):
        return None
    path = Path(data).expanduser()
    if path.suffix.lower() == ".parquet" and path.is_file():
        return {"": [path]}
    return (find_shards(path) or None) if path.is_dir() else None


def splits_of(data: Any) -> tuple[str, ...]:
    """The splits that ``data`` has by name; none for a folder of images or an array."""
    if isinstance(data, str) and data == "glyphs":
        return tuple(glyphs.SPLITS)
    if is_benchmark(data):
        return BENCHMARKS[data].splits
    repository = hub_id(data)
    shards = shards_of(hub_folder(repository) if repository else data) or {}
    return tuple(name for name in shards if name)


def choose_split(data: Any, default: str) -> str | None:
    """``default`` where ``data`` has such a split, None where it has none at all."""
    splits = splits_of(data)
    if default in splits:
        return default
    if len(splits) > 1:
        raise UserError(f"'{data}' has no split '{default}'; it has {', '.join(splits)}")
    return None


def pretraining_split(data: Any) -> str | None:
    """The split to learn from without labels; of few-shot benchmarks the train classes."""
    if is_benchmark(data) and data in BENCHMARKS:
        return BENCHMARKS[data].pretraining
    return choose_split(data, "train")


def open_named(data: str | os.PathLike[str], split: str | None, reporter: Reporter) -> Encoded:
    """The encoded pictures that a name stands for; a hub repository is fetched when new."""
    if is_benchmark(data):
        return open_benchmark(str(data), split or "train")
    repository = hub_id(data)
    if repository is not None:
        folder = hub_folder(repository)
        if not find_shards(folder):
            fetch(repository, folder, reporter=reporter)
        return _open_split(folder, repository, split)
    if shards_of(data) is not None:
        return _open_split(Path(data).expanduser(), Path(data).name, split)
    _check_spelling(os.fspath(data))
    return FolderTable(data)


def _open_split(path: Path, name: str, split: str | None) -> Encoded:
    shards = shards_of(path) or {}
    if split is not None and split not in shards:
        known = ", ".join(filter(None, shards)) or "none"
        raise UserError(f"'{name}' has no split '{split}'; its splits: {known}")
    everything = [file for part in shards.values() for file in part]
    chosen = everything if split is None else shards[split]
    return open_shards(chosen, name=f"{name} ({split})" if split else name)


def _check_spelling(text: str) -> None:
    """A benchmark's name with a slip in it is no folder."""
    if not Path(text).expanduser().exists() and os.sep not in text:
        hint = did_you_mean(text, BENCHMARK_NAMES)
        if hint.startswith("; did"):
            raise UserError(f"'{text}' is neither a folder nor a benchmark{hint}")
