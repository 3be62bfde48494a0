"""A source is a sized table of images with optional labels."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch.nn.functional import interpolate

from eigenshot.data.arrays import pixels_from_array
from eigenshot.data.reading.picture import check_image_size
from eigenshot.data.tables.encoded import Labelled
from eigenshot.errors import UserError, did_you_mean

Indices: TypeAlias = Sequence[int] | np.ndarray | torch.Tensor

# Images hashed or resized at a time: bounds the working memory, whatever the source's size.
_CHUNK = 256

_MOVED_AT_ONCE = 4096

# Without class names every number up to the largest label is a class; beyond this it is a mistake.
_MAX_UNNAMED_CLASSES = 1_000_000


@runtime_checkable
class Source(Labelled, Protocol):
    """Everything that yields images."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image: (channels, height, width)."""

    @property
    def fingerprint(self) -> str:
        """Hex digest of images, labels and class names; of no path and no time."""

    def __len__(self) -> int:
        """How many images, N."""

    def images(self, indices: Indices) -> torch.Tensor:
        """The images at ``indices``, uint8 (n, channels, height, width)."""


class ArraySource:
    """A source held in memory.

    Parameters
    ----------
    images : uint8 tensor (N, channels, height, width), kept as it is in ``pixels``
    labels : integers (N,) that index ``class_names``, -1 where unknown, or None
    class_names : one name a class
    name : a short description for people
    fingerprint : where it is known already, else computed when asked for

    `from_array` accepts more layouts and types and checks what it is given.
    """

    def __init__(
        self,
        images: torch.Tensor,
        labels: np.ndarray | None = None,
        class_names: Sequence[str] = (),
        name: str = "array",
        *,
        fingerprint: str | None = None,
    ) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise UserError(
                "expected uint8 images (N, channels, height, width), "
                f"found {images.dtype} {tuple(images.shape)}"
            )
        self.pixels = images
        self.labels = None if labels is None else np.asarray(labels, dtype=np.int64)
        self.class_names = tuple(class_names)
        self.name = name
        if fingerprint is not None:
            self.fingerprint = fingerprint
        if self.labels is not None and self.labels.shape != (len(images),):
            raise UserError(
                f"expected one label for each of {len(images)} images, "
                f"found labels of shape {self.labels.shape}"
            )

    @classmethod
    def from_array(
        cls,
        images: np.ndarray | torch.Tensor,
        labels: Sequence[int] | Sequence[str] | np.ndarray | torch.Tensor | None = None,
        class_names: Sequence[str] | None = None,
        name: str = "array",
    ) -> ArraySource:
        """A source from an array of images, shared with it where no conversion is needed.

        Parameters
        ----------
        images : uint8, or floating in [0, 1]; (N, height, width), (N, height, width, channels) or
            (N, channels, height, width) with 1 or 3 channels. Where both readings of four axes are
            possible, channels come last; they come second only if the last axis is not 1 or 3.
        labels : integers (N,), -1 where unknown, or strings (N,), which become the class names in
            sorted order unless ``class_names`` gives another
        class_names : one name a class; by default the numbers 0..largest label
        """
        pixels = pixels_from_array(images)
        numbers, names = _to_labels(labels, class_names, len(pixels))
        return ArraySource(pixels, numbers, names, name)

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        kind = f"{len(self.class_names)} classes" if self.labels is not None else "unlabelled"
        return f"<{self.name}: {len(self)} images {self.shape}, {kind}>"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of one image: (channels, height, width)."""
        _, channels, height, width = self.pixels.shape
        return channels, height, width

    def images(self, indices: Indices) -> torch.Tensor:
        """The images at ``indices``, uint8 (n, channels, height, width)."""
        return self.pixels[torch.as_tensor(to_indices(indices), device=self.pixels.device)]

    @cached_property
    def fingerprint(self) -> str:
        """Hex digest of images, labels and class names; of no path and no time."""
        return content_fingerprint(self.pixels, self.labels, self.class_names)

    def to(self, device: torch.device | str) -> Self:
        """The same source with its pixels in the memory of ``device``."""
        if self.pixels.device == torch.device(device):
            return self
        moved = copy.copy(self)
        moved.pixels = torch.empty_like(self.pixels, device=device)
        # In pieces: pixels that are mapped from disk never need to be in memory all at once.
        for start in range(0, len(self), _MOVED_AT_ONCE):
            piece = slice(start, start + _MOVED_AT_ONCE)
            moved.pixels[piece] = self.pixels[piece].to(device)
        return moved

    def subset(self, indices: Indices) -> ArraySource:
        """The images at ``indices``, in that order, with all class names."""
        chosen = to_indices(indices)
        labels = None if self.labels is None else self.labels[chosen]
        return ArraySource(self.images(chosen), labels, self.class_names, self.name)

    def of_classes(self, class_ids: Sequence[int] | np.ndarray) -> ArraySource:
        """The images of some classes, renumbered 0..n-1 in the order of ``class_ids``."""
        if self.labels is None:
            raise UserError(f"{self.name} has no labels to choose classes by")
        ids = [int(class_id) for class_id in class_ids]
        unknown = [class_id for class_id in ids if not 0 <= class_id < len(self.class_names)]
        if unknown:
            raise UserError(
                f"{self.name} has classes 0..{len(self.class_names) - 1}, found {unknown[0]}"
            )
        if len(set(ids)) < len(ids):
            raise UserError(f"expected each class once, found {ids}")
        # The last entry stands for unknown: -1 finds it.
        renumbered = np.full(len(self.class_names) + 1, -1, dtype=np.int64)
        renumbered[ids] = np.arange(len(ids))
        chosen = np.flatnonzero(renumbered[self.labels] >= 0)
        names = [self.class_names[class_id] for class_id in ids]
        return ArraySource(self.images(chosen), renumbered[self.labels[chosen]], names, self.name)

    def resized(self, image_size: int) -> ArraySource:
        """The centred square of every image, resampled to ``image_size`` with antialiasing.

        Returns this very source when its images are of that size already.
        """
        check_image_size(image_size)
        channels, height, width = self.shape
        if height == width == image_size:
            return self
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        square = self.pixels[:, :, top : top + side, left : left + side]
        resized = square.new_empty((len(self), channels, image_size, image_size))
        for start in range(0, len(self), _CHUNK):
            smooth = interpolate(
                square[start : start + _CHUNK].float(),
                size=(image_size, image_size),
                mode="bicubic",
                align_corners=False,
                antialias=True,
            )
            # Bicubic weights overshoot at edges.
            resized[start : start + _CHUNK] = smooth.round_().clamp_(0, 255).to(torch.uint8)
        return ArraySource(resized, self.labels, self.class_names, self.name)


def content_fingerprint(
    pixels: torch.Tensor, labels: np.ndarray | None, class_names: Sequence[str]
) -> str:
    """Hex digest of images uint8 (N, channels, height, width), labels (N,) and class names."""
    digest = hashlib.blake2b(digest_size=16)
    header = [list(pixels.shape), labels is not None, list(class_names)]
    # json keeps the names apart, and escapes those that are not valid Unicode.
    digest.update(json.dumps(header).encode("ascii"))
    for chunk in pixels.split(_CHUNK):
        digest.update(chunk.cpu().contiguous().numpy())
    if labels is not None:
        digest.update(labels.astype("<i8").tobytes())
    return digest.hexdigest()


def to_indices(indices: Indices) -> np.ndarray:
    """int64 (n,), or the bool mask as it is."""
    if isinstance(indices, torch.Tensor):
        indices = indices.cpu().numpy()
    array = np.asarray(indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iub"):
        raise UserError(f"expected integer indices (n,), found {array.dtype} {array.shape}")
    return array if array.dtype.kind == "b" else array.astype(np.int64)


def _to_labels(
    labels: Any, class_names: Sequence[str] | None, length: int
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Labels as int64 (N,) and the class names they index."""
    names = None if class_names is None else to_names(class_names)
    if labels is None:
        if names:
            raise UserError(f"found {len(names)} class names but no labels")
        return None, ()
    array = labels.cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    if array.shape != (length,):
        raise UserError(f"expected labels of shape ({length},), found {array.shape}")
    if array.dtype.kind in "USOT":
        return _number(to_names(array, unique=False), names)
    if array.dtype.kind not in "iu":
        raise UserError(f"expected labels that are integers or strings, found {array.dtype}")
    low, high = int(array.min()), int(array.max())
    count = _MAX_UNNAMED_CLASSES if names is None else len(names)
    if low < -1 or high >= count:
        last = "" if names is None else f" to {count - 1}"
        raise UserError(
            f"expected labels that count classes from 0{last}, -1 where one is unknown, "
            f"found {low} to {high}"
        )
    if high == -1:
        return None, ()
    if names is None:
        names = tuple(map(str, range(high + 1)))
    return array.astype(np.int64), names


def _number(
    labels: tuple[str, ...], names: tuple[str, ...] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """String labels to their positions among the class names, int64 (N,)."""
    names = tuple(sorted(set(labels))) if names is None else names
    position = {name: number for number, name in enumerate(names)}
    for label in labels:
        if label not in position:
            raise UserError(f"label '{label}' is not a class name{did_you_mean(label, names)}")
    return np.array([position[label] for label in labels], dtype=np.int64), names


def to_names(values: Sequence[str] | np.ndarray, *, unique: bool = True) -> tuple[str, ...]:
    """Strings (or UTF-8 bytes) as a tuple."""
    names = []
    for value in np.asarray(values).tolist() if isinstance(values, np.ndarray) else values:
        if not isinstance(value, (str, bytes)):
            raise UserError(f"expected names that are strings, found {value!r}")
        names.append(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    if unique and len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"expected distinct class names, found '{twice}' more than once")
    return tuple(names)
