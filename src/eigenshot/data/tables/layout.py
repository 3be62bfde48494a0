"""How pictures lie in a folder or file: as parquet shards by split, or as picture files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eigenshot.data.benchmarks.findings import count_images, some
from eigenshot.data.tables.folder_table import count_pictures
from eigenshot.data.tables.shards import find_shards, holds_images
from eigenshot.errors import UserError
from eigenshot.files import looking_into


@dataclass(frozen=True)
class Layout:
    """What of a folder is read.

    Attributes
    ----------
    shards : by split, the empty name where no file tells one; none at all for picture files
    note : what lies there and is not read, or None
    """

    shards: dict[str, list[Path]]
    note: str | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that have a name."""
        return tuple(name for name in self.shards if name)


def look_into(path: Path) -> Layout:
    """The layout of a folder, or of a single parquet file.

    Shards come before picture files, unless none of them has a column of pictures. Where some
    shards tell a split by their names, those that tell none are left out.
    """
    with looking_into(path):
        if path.suffix.lower() == ".parquet" and path.is_file():
            return Layout({"": [path]})
        shards = find_shards(path) if path.is_dir() else {}
    if not shards:
        return Layout({})
    notes = []
    pictures = count_pictures(path)
    if pictures:
        files = [file for part in shards.values() for file in part]
        if not any(_may_hold_images(file) for file in files):
            return Layout({}, f"ignored, without a column of images: {_names(files)}")
        notes.append(
            f"{path.name} has {count_images(pictures)} in files of their own beside its parquet "
            "shards; they are read only where a row of the shards names them"
        )
    if len(shards) > 1 and "" in shards:
        notes.append(f"left out, as their names tell no split: {_names(shards.pop(''))}")
    return Layout(shards, "; ".join(notes) or None)


def _may_hold_images(file: Path) -> bool:
    """Whether a file has a column of pictures; one that cannot be opened is to be named later."""
    try:
        return holds_images(file)
    except UserError:
        return True


def _names(files: list[Path]) -> str:
    return some([file.name for file in files])
