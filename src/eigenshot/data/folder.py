"""A folder of pictures as a source: sub-folders are classes, or none and it is unlabelled."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from eigenshot.data.decode import UnreadableImage, check_options, read_image
from eigenshot.data.source import ArraySource
from eigenshot.errors import UserError, did_you_mean

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")

_SYSTEM_NAMES = {"__macosx", "thumbs.db", "desktop.ini"}


class FolderSource(ArraySource):
    """The pictures of a folder, in memory.

    Attributes
    ----------
    paths : one a picture, relative to the folder, with forward slashes
    unreadable : (relative path, reason) of what was skipped
    note : what the reader of a log should know about the layout, or None
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: np.ndarray | None,
        class_names: Sequence[str],
        name: str,
        *,
        paths: Sequence[str],
        unreadable: Sequence[tuple[str, str]] = (),
        note: str | None = None,
    ) -> None:
        super().__init__(images, labels, class_names, name)
        self.paths = tuple(paths)
        self.unreadable = tuple(unreadable)
        self.note = note


def load_folder(
    path: str | os.PathLike[str],
    *,
    image_size: int,
    channels: int = 3,
    max_unreadable: float = 0.1,
    progress: Callable[[int, int], None] | None = None,
) -> FolderSource:
    """Decode every picture under a folder into one uint8 array (N, channels, size, size).

    Pictures in sub-folders are labelled by the sub-folder directly under ``path``, however deep
    they lie; pictures directly in ``path`` make the source unlabelled. They are ordered by
    relative path. Files that cannot be read are skipped and listed in ``unreadable``.

    Parameters
    ----------
    image_size : side of the centred square taken from each picture, in pixels
    channels : 3 for RGB, 1 for grey
    max_unreadable : the share of unreadable files above which loading is refused, 0 to 1
    progress : called as ``progress(done, total)`` from the calling thread
    """
    check_options(image_size, channels)
    if not 0 <= max_unreadable <= 1:
        raise UserError(f"expected max_unreadable between 0 and 1, found {max_unreadable!r}")
    root = Path(path).expanduser()
    _check_folder(root)
    listing = _list_files(root)
    if not listing.pictures and not listing.unlistable:
        raise UserError(_nothing_found(root, listing.others))
    shape = (len(listing.pictures), channels, image_size, image_size)
    _check_memory(root, shape)

    pixels = np.empty(shape, dtype=np.uint8)
    failures = _decode_all(root, listing.pictures, pixels, progress)
    unreadable = sorted(
        listing.unlistable + [(listing.pictures[row], reason) for row, reason in failures.items()]
    )
    total = len(listing.pictures) + len(listing.unlistable)
    _check_share(root, unreadable, total, max_unreadable)

    kept = [row for row in range(len(pixels)) if row not in failures]
    for target, row in enumerate(kept):  # in place: a second array might not fit
        if target != row:
            pixels[target] = pixels[row]
    paths = [listing.pictures[row] for row in kept]
    labels, class_names, note = _label(paths, unreadable)
    return FolderSource(
        torch.from_numpy(pixels[: len(kept)]),
        labels,
        class_names,
        f"folder {root.resolve().name}",
        paths=paths,
        unreadable=unreadable,
        note=note,
    )


def available_memory() -> int | None:
    """Bytes that can still be allocated without swapping, as far as the system tells."""
    bounds = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(int(line.split()[1]) * 1024)
        # A container may be given less than the machine has.
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / f"memory.{kind}").read_text() for kind in ("max", "current"))
        if limit.strip() != "max":
            statistics = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
            reclaimable = int(statistics.get("inactive_file", 0))
            bounds.append(int(limit) - int(used) + reclaimable)
    except (OSError, ValueError):
        pass
    return max(min(bounds), 0) if bounds else None


@dataclass
class _Listing:
    """What lies under a folder, in paths relative to it."""

    pictures: list[str] = field(default_factory=list)
    others: int = 0
    unlistable: list[tuple[str, str]] = field(default_factory=list)


def _list_files(root: Path) -> _Listing:
    """Every picture under ``root`` in sorted order; links are followed, but never in a circle."""
    listing = _Listing()
    real_root = os.path.realpath(root)
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
            elif not relative.lower().endswith(EXTENSIONS):
                listing.others += 1
            elif os.path.isfile(entry.path) or not os.path.exists(entry.path):
                listing.pictures.append(relative)  # a dangling link too: an unreadable file
    listing.pictures.sort()
    return listing


def _visible(folder: str) -> Iterator[os.DirEntry[str]]:
    """The entries that a person put there, not the operating system."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name.lower() not in _SYSTEM_NAMES:
                yield entry


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def _decode_all(
    root: Path,
    pictures: Sequence[str],
    pixels: np.ndarray,
    progress: Callable[[int, int], None] | None,
) -> dict[int, str]:
    """Fill ``pixels`` (N, channels, size, size) by row; the reason for each row that failed."""
    channels, size = pixels.shape[1], pixels.shape[2]

    def decode(rows: range) -> dict[int, str]:
        failed = {}
        for row in rows:
            try:
                pixels[row] = read_image(root / pictures[row], size=size, channels=channels)
            except UnreadableImage as error:
                failed[row] = error.reason
        return failed

    threads, total = _thread_count(), len(pictures)
    # A task for each file would cost more memory than small pictures do.
    step = max(1, min(32, total // (4 * threads)))
    tasks = [range(start, min(start + step, total)) for start in range(0, total, step)]
    failures: dict[int, str] = {}
    Image.init()  # registers the formats once, before threads ask for them
    with warnings.catch_warnings(), ThreadPoolExecutor(threads) as pool:
        # Pillow warns of odd metadata and large photographs, which are read all the same.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        # An interrupt leaves the loop, which closes the map, which cancels what is still queued.
        for rows, failed in zip(tasks, pool.map(decode, tasks), strict=True):
            failures.update(failed)
            if progress is not None:
                progress(rows.stop, total)
    return failures


def _thread_count() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _label(
    paths: Sequence[str], unreadable: Sequence[tuple[str, str]]
) -> tuple[np.ndarray | None, tuple[str, ...], str | None]:
    """Labels (N,), class names and a note on the layout, from relative paths."""
    parents = [path.partition("/")[0] if "/" in path else "" for path in paths]
    at_top = parents.count("")
    if at_top:
        beneath = len(paths) - at_top
        mixed = (
            f"{at_top} images lie directly in the folder and {beneath} in sub-folders, "
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
    if root.is_dir():
        return
    if root.exists():
        raise UserError(f"expected a folder of images or an .npz file, found another file: {root}")
    missing = root
    while not missing.parent.exists():
        missing = missing.parent
    try:
        siblings = [entry.name for entry in missing.parent.iterdir() if entry.is_dir()]
    except OSError:  # the hint is a courtesy
        siblings = []
    near = difflib.get_close_matches(missing.name, siblings, n=1)
    raise UserError(f"no such folder: {root}{did_you_mean(missing.name, near)}")


def _nothing_found(root: Path, others: int) -> str:
    if others == 0:
        return f"{root} is empty; expected images ({' '.join(EXTENSIONS)})"
    files = "1 file" if others == 1 else f"{others} files"
    return f"{root} holds {files} but no image; looked for {' '.join(EXTENSIONS)}"


def _check_memory(root: Path, shape: tuple[int, ...]) -> None:
    need, have = int(np.prod(shape, dtype=np.int64)), available_memory()
    if have is not None and need > have:
        raise UserError(
            f"{shape[0]} images of {root} at {shape[-1]} x {shape[-1]} pixels need "
            f"{need / 2**20:,.0f} MiB of memory, {have / 2**20:,.0f} MiB are available; "
            "use a smaller image size"
        )


def _check_share(
    root: Path, unreadable: list[tuple[str, str]], total: int, max_unreadable: float
) -> None:
    share = len(unreadable) / total
    if len(unreadable) < total and share <= max_unreadable:
        return
    first = "; ".join(f"{path} ({reason})" for path, reason in unreadable[:3])
    if len(unreadable) > 3:
        first += "; …"
    if len(unreadable) == total:
        raise UserError(f"none of the {total} images in {root} can be read: {first}")
    enough = 0.5 if share <= 0.5 else 1.0
    raise UserError(
        f"{len(unreadable)} of {total} images ({share:.1%}) in {root} cannot be read, more than "
        f"the {max_unreadable:.1%} allowed: {first}. Mend or remove them, or allow more: "
        f"--set data.max_unreadable={enough}"
    )
