"""The picture files under a folder, as a table of encoded pictures."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from eigenshot.data.benchmarks.findings import count_images, some
from eigenshot.data.tables.encoded import Labelling, PlainTable, Unreadable, digest_of
from eigenshot.errors import UserError, did_you_mean
from eigenshot.files import looking_into

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")

_SYSTEM_NAMES = {"__macosx", "thumbs.db", "desktop.ini"}


class FolderTable(PlainTable):
    """Every picture under a folder, ordered by relative path.

    Pictures in sub-folders are labelled by the sub-folder directly under ``path``, however deep
    they lie; pictures directly in ``path`` make the table unlabelled.

    Parameters
    ----------
    note : what else the reader of a log should know of it

    Attributes
    ----------
    paths : one a picture, relative to the folder, with forward slashes
    unlistable : (relative path, reason) of sub-folders that could not be looked into
    """

    lasting = False  # files come and go, and a decoded copy of each state would only pile up

    def __init__(self, path: str | os.PathLike[str], note: str | None = None) -> None:
        self.root = Path(path).expanduser()
        _check_folder(self.root)
        listing = _list_files(self.root)
        if not listing.pictures and not listing.unlistable:
            raise UserError(_nothing_found(self.root, listing))
        if not listing.pictures:
            place, reason = listing.unlistable[0]
            raise UserError(f"cannot look into {self.root / place}: {reason}")
        self.name = f"folder {self.root.resolve().name}"
        self.paths = listing.pictures
        self.unlistable = tuple(listing.unlistable)
        self.labels, self.class_names, layout = label_by_folder(self.paths)
        self.note = "; ".join(filter(None, (note, layout))) or None
        classes = listing.empty if self.labels is not None else []
        self.faults = (
            *(f"cannot look into {part}: {reason}" for part, reason in self.unlistable),
            *(f"class '{name}' has no images" for name in classes),
        )
        # A file is read by itself, so that a shuffled window may take from anywhere.
        self.groups = np.arange(len(self.paths) + 1)

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, rows: Sequence[int] | np.ndarray) -> list[bytes | Path | None]:
        """The files at ``rows``, in that order."""
        return [self.root / self.paths[row] for row in rows]

    @property
    def origin(self) -> str:
        """The folder, wherever it is called from."""
        return os.fspath(self.root.resolve())

    def pictures(self) -> FolderFiles:
        """The folder alone; which files are read is told each time."""
        return FolderFiles(self.root)

    def places(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """The relative paths of ``rows``."""
        return [self.paths[row] for row in rows]

    def labelling(self, rows: np.ndarray, unreadable: Unreadable) -> Labelling:
        """Labels by the files that are left: a class without any is left out and named."""
        paths = [self.paths[row] for row in rows]
        labels, class_names, note = label_by_folder(paths, unreadable)
        return Labelling(labels, class_names, tuple(paths), note or self.note)

    def describe(self, row: int) -> str:
        """The file's path within the folder."""
        return self.paths[row]

    @cached_property
    def identity(self) -> str:
        """Digest of every file's name, size and times; a repaired permission changes it too."""
        return digest_of(self.paths, self._stamps(times=True))

    @cached_property
    def fingerprint(self) -> str:
        """Digest of every file's name and size; a moved or copied folder keeps it."""
        return digest_of(self.paths, self._stamps(times=False))

    def _stamps(self, *, times: bool) -> list[list[int]]:
        stamps = []
        for path in self.paths:
            try:
                status = (self.root / path).stat()
            except OSError:  # it will be found unreadable
                stamps.append([-1])
            else:
                changed = [status.st_mtime_ns, status.st_ctime_ns] if times else []
                stamps.append([status.st_size, *changed])
        return stamps


@dataclass(frozen=True)
class FolderFiles:
    """Files of a folder, by relative path."""

    root: Path

    def read(self, places: Sequence[str]) -> list[bytes | Path | None]:
        """Where the files are; they are opened when they are decoded."""
        return [self.root / place for place in places]


def count_pictures(folder: Path) -> int:
    """How many picture files lie under a folder."""
    return len(_list_files(folder).pictures)


@dataclass
class _Listing:
    """What lies under a folder, in paths relative to it; ``empty`` are sub-folders at its top."""

    pictures: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    unlistable: list[tuple[str, str]] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)


def _list_files(root: Path) -> _Listing:
    """Every picture under ``root`` in sorted order; links are followed, but never in a circle."""
    listing = _Listing()
    real_root = os.path.realpath(root)
    top: list[str] = []
    places = [real_root]  # what is walked in any case; no link may lead there again
    pending = [(os.fspath(root), "")]
    while pending:
        folder, prefix = pending.pop()
        try:
            entries = list(_visible(folder))
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            if not prefix:
                raise UserError(f"cannot list {root}: {reason}") from error
            listing.unlistable.append((prefix, reason))
            continue
        # The last of the list is walked first; sorting makes which link is followed repeatable.
        for entry in sorted(entries, key=lambda entry: entry.name, reverse=True):
            relative = prefix + entry.name
            # os.path takes a link that leads to itself for missing, where DirEntry raises.
            if os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir():
                if entry.is_symlink():
                    target = os.path.realpath(entry.path)
                    known = any(_is_within(target, place) for place in places)
                    if known or _is_within(real_root, target):
                        continue
                    places.append(target)
                pending.append((entry.path, relative + "/"))
                if not prefix:
                    top.append(entry.name)
            elif not relative.lower().endswith(EXTENSIONS):
                listing.others.append(relative)
            elif os.path.isfile(entry.path) or not os.path.exists(entry.path):
                listing.pictures.append(relative)  # a dangling link too: an unreadable file
    listing.pictures.sort()
    files = (*listing.pictures, *listing.others, *dict(listing.unlistable))
    listing.empty = sorted(set(top) - {path.partition("/")[0] for path in files})
    return listing


def _visible(folder: str) -> Iterator[os.DirEntry[str]]:
    """The entries that a person put there, not the operating system."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name.lower() not in _SYSTEM_NAMES:
                yield entry


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def label_by_folder(
    paths: Sequence[str], unreadable: Sequence[tuple[str, str]] = ()
) -> tuple[np.ndarray | None, tuple[str, ...], str | None]:
    """Labels (N,), class names and a note on the layout, from relative paths."""
    parents = [path.partition("/")[0] if "/" in path else "" for path in paths]
    at_top = parents.count("")
    if at_top:
        beneath = len(paths) - at_top
        mixed = (
            f"{count_images(at_top)} directly in the folder and {count_images(beneath)} in "
            "sub-folders, "
            "so sub-folders are not taken for classes and the images are unlabelled"
        )
        return None, (), mixed if beneath else None
    class_names = sorted(set(parents))
    number = {name: index for index, name in enumerate(class_names)}
    labels = np.array([number[parent] for parent in parents], dtype=np.int64)
    lost = sorted({path.partition("/")[0] for path, _ in unreadable if "/" in path} - set(parents))
    note = f"left out, without a readable image: {', '.join(lost)}" if lost else None
    return labels, tuple(class_names), note


def _check_folder(root: Path) -> None:
    with looking_into(root):
        if root.is_dir():
            return
        known = root.exists()
    if known:
        raise UserError(
            f"expected a folder of images, a .parquet or an .npz file, found another file: {root}"
        )
    missing = root
    while not missing.parent.exists():
        missing = missing.parent
    try:
        siblings = [entry.name for entry in missing.parent.iterdir() if entry.is_dir()]
    except OSError:  # the hint is a courtesy
        siblings = []
    near = difflib.get_close_matches(missing.name, siblings, n=1)
    raise UserError(f"no such folder: {root}{did_you_mean(missing.name, near)}")


def _nothing_found(root: Path, listing: _Listing) -> str:
    others = len(listing.others)
    if others == 0 and listing.empty:
        return (
            f"{root} holds no image, nor do its sub-folders ({some(listing.empty)}); expected "
            f"images ({' '.join(EXTENSIONS)})"
        )
    if others == 0:
        return f"{root} is empty; expected images ({' '.join(EXTENSIONS)})"
    files = "1 file" if others == 1 else f"{others} files"
    return f"{root} holds {files} but no image; looked for {' '.join(EXTENSIONS)}"
