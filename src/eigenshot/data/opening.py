"""From whatever names images to a source of the wanted shape."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from eigenshot.data.benchmarks.access import BENCHMARKS
from eigenshot.data.glyphs import load_glyphs
from eigenshot.data.naming import (
    BENCHMARK_NAMES,
    is_benchmark,
    is_npz,
    is_sizeless,
    open_named,
    splits_of,
)
from eigenshot.data.npz import load_npz
from eigenshot.data.reading.picture import read_image, to_array
from eigenshot.data.reading.reader import Reading, open_table
from eigenshot.data.source import ArraySource, Source
from eigenshot.data.views.colour import to_grey
from eigenshot.errors import UnreadableWarning, UserError
from eigenshot.reporter import Reporter

_SHOWN = 10  # unreadable files that are named


def open_source(
    data: Any,
    *,
    image_size: int | None,
    channels: int,
    split: str | None = None,
    per_class: int = 20,
    seed: int = 0,
    reading: Reading | None = None,
    reporter: Reporter | None = None,
) -> Source:
    """A source of ``channels × image_size × image_size`` images.

    Parameters
    ----------
    data : a benchmark's name, a folder of images, a folder or file of parquet shards, a hub
        repository ``owner/name`` or ``owner/name@configuration``, an ``.npz`` file, an array, a
        pair (array, labels), or a source.
    image_size : side in pixels; None keeps the images of arrays and benchmarks as they are.
    split : one of those that `eigenshot.data.naming.splits_of` lists.
    per_class, seed : how many glyphs are drawn a character, and from which seed.
    reading : how encoded pictures are read: whether kept, mapped or streamed.
    reporter : what is told while a hub repository is fetched.
    """
    source: Source
    if reading is not None and not (is_sizeless(data) or (is_benchmark(data) and data != "glyphs")):
        _tell_unused(reading)
    if split is not None and not splits_of(data, reporter):
        raise UserError(
            f"'{_describe(data)}' has no splits; leave --split out, all of its images are used"
        )
    if isinstance(data, str) and data == "glyphs":
        source = load_glyphs(split or "train", per_class=per_class, seed=seed)
    elif is_npz(data):
        source = load_npz(data)
    elif isinstance(data, str | os.PathLike):
        size = image_size
        if size is None and is_benchmark(data):
            size = BENCHMARKS[str(data)].image_size
        if size is None:
            raise UserError(f"these images need a size: set data.image_size for '{data}'")
        table = open_named(data, split, reporter)
        return open_table(table, size=size, channels=channels, reading=reading or Reading())
    elif isinstance(data, Source):
        source = data
    elif isinstance(data, tuple) and len(data) == 2:
        source = ArraySource.from_array(data[0], data[1])
    elif isinstance(data, np.ndarray | torch.Tensor):
        source = ArraySource.from_array(data)
    else:
        raise UserError(
            f"cannot read images from {type(data).__name__}: give a folder, an .npz file, "
            f"an array, a pair (images, labels), or one of {', '.join(BENCHMARK_NAMES)}"
        )
    return _fit(source, image_size, channels)


def _tell_unused(reading: Reading) -> None:
    """Say that a reader was asked for where the images are in memory as they are."""
    asked = {"data.reader": reading.reader, "data.window": reading.window}
    unused = [f"{name}={value}" for name, value in asked.items() if value not in ("auto", 0)]
    if unused and asked["data.reader"] != "resident":
        reading.say(f"these images are in memory already, so {' and '.join(unused)} does nothing")


def as_images(
    images: Any,
    *,
    image_size: int,
    channels: int,
    max_unreadable: float = 0.1,
    stacklevel: int = 4,
) -> Source:
    """What `open_images` gives, for an encoder; pictures that cannot be read are warned of.

    More than the share ``max_unreadable`` of them are refused. The warning names the line
    ``stacklevel`` calls up, which is to be the one that asked.
    """
    reading = Reading(max_unreadable=max_unreadable)
    source = open_images(images, image_size=image_size, channels=channels, reading=reading)
    skipped = getattr(source, "unreadable", ())
    if skipped and source is not images:  # else rows and files would no longer match unnoticed
        # By default past `Encoder.transform` and torch's wrapper of it.
        words = f"of '{images}' skipped {unreadable_in_words(skipped)}"
        warnings.warn(words, UnreadableWarning, stacklevel=stacklevel)
    return source


def open_images(
    images: Any,
    *,
    image_size: int,
    channels: int,
    split: str | None = None,
    reading: Reading | None = None,
) -> Source:
    """Anything that holds images as a source of the given shape.

    Besides what `open_source` takes: one image file, or a list of files or Pillow images.
    """
    if isinstance(images, Image.Image) or is_image_file(images):
        images = [images]
    if isinstance(images, list):
        if not images:
            raise UserError("expected at least one image, found an empty list")
        if all(isinstance(entry, Image.Image | str | os.PathLike) for entry in images):
            stacked = np.stack([_decode(entry, image_size, channels) for entry in images])
            return ArraySource(torch.from_numpy(stacked), name="images")
        images = np.stack([np.asarray(entry) for entry in images])
    return open_source(
        images, image_size=image_size, channels=channels, split=split, reading=reading
    )


def _is_table_file(path: str | os.PathLike[str]) -> bool:
    return Path(path).suffix.lower() in (".npz", ".parquet")


def is_image_file(images: Any) -> bool:
    """Whether ``images`` names a single file that is neither shards nor arrays."""
    return (
        isinstance(images, str | os.PathLike)
        and os.path.isfile(images)
        and not _is_table_file(images)
    )


def _decode(entry: Any, size: int, channels: int) -> np.ndarray:
    if isinstance(entry, Image.Image):
        return to_array(entry, size=size, channels=channels)
    return read_image(entry, size=size, channels=channels)


def _fit(source: Source, image_size: int | None, channels: int) -> Source:
    """The source itself where it fits; an array is converted, another source is refused."""
    found, height, width = source.shape
    size = image_size or min(height, width)
    if (found, height, width) == (channels, size, size):
        return source
    if not isinstance(source, ArraySource):
        raise UserError(
            f"'{source.name}' gives images of shape {source.shape}, "
            f"but {(channels, size, size)} is needed"
        )
    fitted = source.resized(size)
    if found == channels:
        return fitted
    if channels == 3:
        pixels = fitted.pixels.expand(-1, 3, -1, -1)
    else:
        grey = to_grey(fitted.pixels.float() / 255)[:, :1]
        pixels = (grey * 255).round().to(torch.uint8)
    return ArraySource(pixels, fitted.labels, fitted.class_names, fitted.name)


def _describe(data: Any) -> str:
    return os.fspath(data) if isinstance(data, str | os.PathLike) else type(data).__name__


def tell_passed_over(source: Source, reporter: Reporter) -> None:
    """Say what is odd about the data, and which of the images cannot be read and why."""
    note = getattr(source, "note", None)
    if note:
        reporter.note(note)
    tell_unreadable(source, reporter)


def tell_unreadable(source: Source, reporter: Reporter, told: int = 0) -> int:
    """Say which images cannot be read, but for the first ``told``, and how many that makes.

    A stream finds them as it goes, so it is worth asking again when it has been used.
    """
    unreadable = getattr(source, "unreadable", ())
    new = unreadable[told:]
    if new:
        # The order of a stream is settled beforehand, so that it leaves none out.
        streamed = getattr(source, "reader", None) == "streamed"
        verb = "others stand in for" if streamed else "skipped"
        reporter.warn(f"{verb} {unreadable_in_words(new)}")
    return len(unreadable)


def unreadable_in_words(unreadable: Sequence[tuple[str, str]]) -> str:
    """How many pictures cannot be read, and the first of them, each with its reason."""
    count = len(unreadable)
    shown = "".join(f"\n  {path}: {reason}" for path, reason in unreadable[:_SHOWN])
    more = f"\n  and {count - _SHOWN} more" if count > _SHOWN else ""
    return f"{count:,} unreadable picture{'' if count == 1 else 's'}:{shown}{more}"


def spread_rows(source: Source, limit: int) -> np.ndarray:
    """About ``limit`` rows from all over ``source``, or all where there are fewer, int64 (n,)."""
    spread = getattr(source, "spread", None)  # a stream knows which rows are cheap to read
    if spread is not None:
        found: np.ndarray = spread(limit)
        return found
    return np.linspace(0, len(source) - 1, min(len(source), limit)).astype(np.int64)


def channel_statistics(source: Source, limit: int = 10_000) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel in [0, 1], over evenly spaced images."""
    rows = spread_rows(source, limit)
    count = 0
    total = torch.zeros(source.shape[0], dtype=torch.float64)
    squares = torch.zeros_like(total)
    for start in range(0, len(rows), 256):
        batch = source.images(rows[start : start + 256]).double() / 255
        total += batch.sum(dim=(0, 2, 3)).cpu()
        squares += batch.square().sum(dim=(0, 2, 3)).cpu()
        count += batch.numel() // batch.shape[1]
    mean = total / count
    variance = squares / count - mean.square()
    # A constant channel carries nothing; leaving it unscaled keeps it finite.
    deviation = variance.clamp_min(0).sqrt()
    deviation = torch.where(deviation > 1e-4, deviation, torch.ones_like(deviation))
    return [round(v, 6) for v in mean.tolist()], [round(v, 6) for v in deviation.tolist()]
