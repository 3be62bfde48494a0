"""Finding the parquet files of a data set by their names, as the Hugging Face hub gives them."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from eigenshot.errors import CannotRead, UserError

SPLITS = ("train", "validation", "test", "unlabelled", "")

_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("unlabelled", "unlabeled"), "unlabelled"),
}
_SHOWN = 5  # names in a message
_DEPTH = 3  # folders: a configuration, a split, and one to spare
# Older copies on the hub end in a digest of the content.
_NUMBERED = re.compile(r"(?P<stem>.*?)[-_.]?(?P<index>\d+)-of-(?P<count>\d+)(?:-[0-9a-f]{8,})?")


def split_called(word: str) -> str:
    """The split that a word stands for, as `find_shards` calls it; the word itself if unusual."""
    return _SPLIT_WORDS.get(word.lower(), word)


def find_shards(folder: str | Path) -> dict[str, list[Path]]:
    """The parquet files of a folder by split, each list in order; empty where there are none.

    They may lie in the folder, in ``data/``, in one folder named by a configuration, or in folders
    named by split. Splits are called train, validation, test and unlabelled, whatever the usual
    word in the name; files whose name tells none are under ``""``.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise UserError(f"no such folder of parquet shards: {root}")
    found: dict[str, list[tuple[str, Path]]] = defaultdict(list)
    files, unlistable = _parquet_files(root)
    if unlistable and (files or unlistable[0].filename == os.fspath(root)):
        place, reason = unlistable[0].filename, unlistable[0].strerror or "failed"
        raise CannotRead(f"cannot list {place}: {reason.lower()}")
    for path in sorted(files, key=lambda path: _natural(path.relative_to(root))):
        split, place = _split_and_place(path.relative_to(root))
        found[split].append((place, path))
    for split, entries in found.items():
        places = sorted({place for place, _ in entries})
        if split and len(places) > 1:
            raise UserError(
                f"{root} holds several data sets with a split '{split}', in {', '.join(places)}; "
                "give the folder of one"
            )
        _check_complete([path for _, path in entries])
    return {split: [path for _, path in found[split]] for split in SPLITS if split in found}


def _parquet_files(root: Path) -> tuple[list[Path], list[OSError]]:
    """The parquet files under ``root``, and what kept parts of it from being listed."""
    found: list[Path] = []
    unlistable: list[OSError] = []
    seen = {os.path.realpath(root)}
    for folder, folders, files in os.walk(root, onerror=unlistable.append, followlinks=True):
        deep = len(Path(folder).relative_to(root).parts) >= _DEPTH
        targets = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders)}
        # Links may lead round in a circle.
        kept = [name for name in targets if name[0] != "." and targets[name] not in seen]
        folders[:] = [] if deep else kept
        seen.update(targets[name] for name in folders)
        for name in files:
            if name.lower().endswith(".parquet") and not name.startswith("."):
                found.append(Path(folder, name))
    return found, unlistable


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Sorts ``part-2`` before ``part-10``."""
    parts = re.split(r"(\d+)", path.as_posix())
    return [(1, int(part), part) if part.isdecimal() else (0, 0, part) for part in parts]


def _split_and_place(relative: Path) -> tuple[str, str]:
    """The split that a path tells, and the folder of the data set it belongs to."""
    numbered = _NUMBERED.fullmatch(relative.stem)
    stem = numbered["stem"] if numbered else relative.stem
    words = [word for word in re.split(r"[^a-z]+", stem.lower()) if word]
    told = [_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS]
    if told:
        split = "unlabelled" if "unlabelled" in told else told[0]
        return split, relative.parent.as_posix()
    folders = relative.parent.parts
    for depth in reversed(range(len(folders))):
        # The hub's converted copy of a large split is called partial.
        word = folders[depth].lower().removeprefix("partial-")
        if word in _SPLIT_WORDS:
            return _SPLIT_WORDS[word], Path(*folders[:depth]).as_posix()
    return "", relative.parent.as_posix()


def _check_complete(paths: Sequence[Path]) -> None:
    """Refuse shards numbered ``-of-00005`` where one is missing or there are two of a number.

    They count from zero, as on the hub, or from one.
    """
    series: dict[tuple[Path, str], list[tuple[int, int, Path]]] = defaultdict(list)
    for path in paths:
        numbered = _NUMBERED.fullmatch(path.stem)
        if numbered:
            entry = (int(numbered["index"]), int(numbered["count"]), path)
            series[path.parent, numbered["stem"]].append(entry)
    for (parent, _), entries in series.items():
        _, count, example = entries[0]
        if len({count for _, count, _ in entries}) > 1:
            raise UserError(
                f"{parent} holds shards of different copies, {example.name} and "
                f"{next(path.name for _, other, path in entries if other != count)}; keep one copy"
            )
        present = {index for index, _, _ in entries}
        # Some count from one: then the last number is there, and none has the number zero.
        numbers = range(1, count + 1) if count in present and 0 not in present else range(count)
        # Counted, not listed: a name may claim any number of shards.
        absent = count - sum(index in numbers for index in present)
        if absent:
            first = islice((index for index in numbers if index not in present), _SHOWN)
            shown = ", ".join(_renumbered(example.name, index) for index in first)
            more = f" and {absent - _SHOWN} more" if absent > _SHOWN else ""
            raise UserError(f"{parent} lacks {shown}{more}, of {count} shards; fetch them again")
        if len(entries) != count:
            raise UserError(
                f"{parent} holds {len(entries)} files like {example.name}, expected {count}, "
                "each number once; keep one copy"
            )


def _renumbered(name: str, index: int) -> str:
    numbered = _NUMBERED.match(name)
    if numbered is None:
        return name
    start, stop = numbered.span("index")
    return f"{name[:start]}{index:0{stop - start}d}{name[stop : numbered.end('count')]}.parquet"
