"""The labelled images that a person brings: a folder with a sub-folder a class, or arrays."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eigenshot.data.folder import load_folder
from eigenshot.data.labelled import with_known_labels
from eigenshot.data.naming import choose_split, is_picture_folder
from eigenshot.data.opening import is_image_file, open_images, unreadable_in_words
from eigenshot.data.reading.reader import DecodedSource, Reading
from eigenshot.data.source import Source
from eigenshot.encoder import Preprocessing
from eigenshot.errors import UnreadableWarning, UserError


@dataclass(frozen=True)
class Support:
    """Images with their labels ``(n,)`` of any type, a name each, and what could not be read."""

    source: Source
    labels: np.ndarray
    names: tuple[str, ...]
    unreadable: tuple[tuple[str, str], ...] = ()


def open_support(
    images: Any,
    labels: Any,
    shape: Preprocessing,
    progress: Callable[[int, int], None] | None = None,
    *,
    split: str = "train",
) -> Support:
    """The support in the shape an encoder takes.

    Parameters
    ----------
    images : a folder with a sub-folder a class, or whatever `Encoder.transform` takes.
    labels : one an image; None takes them from the folder or source, where images whose label is
        unknown are left out with a warning.
    split : what is taken of data that have splits.
    """
    if labels is None and is_image_file(images):
        raise UserError(
            "labelled images (--support) are a folder with a sub-folder for each class, found one "
            f"file: '{images}'"
        )
    source = _open(images, shape, progress, split)
    names = tuple(f"image {row}" for row in range(len(source)))
    if isinstance(source, DecodedSource) and source.paths is not None:
        if labels is None:
            _check_every_class(images, source)
        names = source.paths
    unreadable = tuple(getattr(source, "unreadable", ()))
    if unreadable:
        words = f"of '{images}' left out {unreadable_in_words(unreadable)}"
        warnings.warn(words, UnreadableWarning, stacklevel=3)
    if labels is not None:
        return Support(source, check_labels(labels, len(source)), names, unreadable)
    if source.labels is None:
        raise UserError("expected labels, one an image, found none")
    known = np.flatnonzero(source.labels >= 0)
    if len(known) < len(source):
        warnings.warn(
            f"left out {len(source) - len(known)} of {len(source)} images of {source.name} "
            "whose label is unknown",
            stacklevel=3,
        )
        source, names = with_known_labels(source), tuple(names[row] for row in known)
    return Support(source, np.array(source.class_names)[source.labels], names, unreadable)


def check_labels(labels: Any, images: int) -> np.ndarray:
    """Labels as an array ``(images,)``."""
    array = labels.cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    if array.shape != (images,):
        raise UserError(
            f"expected one label for each of {images} images, found labels of shape {array.shape}"
        )
    return array


def _open(
    images: Any, shape: Preprocessing, progress: Callable[[int, int], None] | None, split: str
) -> Source:
    # Few images, each of them wanted: what cannot be read is reported, none too many.
    limit = 1.0
    if isinstance(images, str | os.PathLike) and is_picture_folder(images):
        path = Path(images).expanduser()
        if not path.is_file():
            return load_folder(
                path,
                image_size=shape.image_size,
                channels=shape.channels,
                max_unreadable=limit,
                progress=progress,
            )
    return open_images(
        images,
        image_size=shape.image_size,
        channels=shape.channels,
        split=support_split(images, split),
        reading=Reading(max_unreadable=limit, progress=progress),
    )


def support_split(images: Any, split: str) -> str | None:
    """What is taken of named data where ``split`` is wanted; None where they have no splits."""
    named = isinstance(images, str | os.PathLike) and not os.path.isfile(os.path.expanduser(images))
    return choose_split(images, split) if named else None


def _check_every_class(images: Any, source: DecodedSource) -> None:
    """A class without an image is a mistake to be named, not a class to be forgotten."""
    if source.labels is None:
        raise UserError(
            f"'{images}' has images that lie in no sub-folder; "
            "expected a sub-folder for each class and nothing beside"
        )
    if not isinstance(images, str | os.PathLike):
        return  # a source that was opened elsewhere
    folder = Path(images).expanduser()
    classes = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith((".", "__"))  # system folders
    )
    empty = [name for name in classes if name not in source.class_names]
    if not empty:
        return
    broken = [
        f"{path} ({reason})" for path, reason in source.unreadable if path.split("/")[0] == empty[0]
    ]
    reason = f"; cannot read {', '.join(broken[:3])}" if broken else ""
    raise UserError(
        f"class '{empty[0]}' has no image in '{folder}'{reason}: "
        "put at least one there, or remove the folder"
    )
