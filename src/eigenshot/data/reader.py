"""One reader for three sizes: images on the device, mapped from disk, or streamed.

A table that fits is decoded once and kept as uint8 where the network is (``resident``). A larger
one lies decoded in the cache folder and is mapped into memory (``mapped``). What does not fit there
either is read and decoded again every epoch, shuffled in a window (``streamed``). The first two
give the same batches for the same seed; so does the third where its window covers everything.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch

from eigenshot.data.cache import cache_folder
from eigenshot.data.cachebuild import decode_table
from eigenshot.data.decode import check_options
from eigenshot.data.encoded import Encoded
from eigenshot.data.listing import FolderTable, label_by_folder
from eigenshot.data.partial import CacheUnavailable
from eigenshot.data.pixelcache import DecodedCache, cached_pixels, find_cached, verify
from eigenshot.data.source import ArraySource, Source
from eigenshot.data.streamed import StreamedSource
from eigenshot.errors import UserError
from eigenshot.hardware import available_memory

Reader: TypeAlias = Literal["auto", "resident", "mapped", "streamed"]
Progress: TypeAlias = Callable[[int, int], None]

# The network, its gradients and the rest of the machine need room as well.
_SHARE_OF_MEMORY = 0.5
_SHARE_OF_WINDOW = 0.125


@dataclass(frozen=True)
class Reading:
    """How a table is to be read.

    ``device`` is where resident images are kept; ``window`` is the number of images that a stream
    is shuffled in, 0 for what an eighth of the memory holds.
    """

    reader: Reader = "auto"
    window: int = 0
    device: str = "cpu"
    max_unreadable: float = 0.1
    progress: Progress | None = None
    note: Callable[[str], None] | None = None

    def say(self, text: str) -> None:
        """Tell the user, if anyone listens."""
        if self.note is not None:
            self.note(text)


class DecodedSource(ArraySource):
    """The readable pictures of a table, decoded: in memory, on a device, or mapped from disk.

    Attributes
    ----------
    paths : of a folder's pictures, relative to it, with forward slashes; None for shards
    unreadable : (place, reason) of what was skipped
    note : what the reader of a log should know about the layout, or None
    reader : ``"resident"`` or ``"mapped"``
    """

    reader: Reader = "resident"

    def __init__(
        self,
        images: torch.Tensor,
        labels: np.ndarray | None,
        class_names: Sequence[str],
        name: str,
        *,
        paths: Sequence[str] | None = None,
        unreadable: Sequence[tuple[str, str]] = (),
        note: str | None = None,
        fingerprint: str | None = None,
    ) -> None:
        super().__init__(images, labels, class_names, name, fingerprint=fingerprint)
        self.paths = None if paths is None else tuple(paths)
        self.unreadable = tuple(unreadable)
        self.note = note


def open_table(table: Encoded, *, size: int, channels: int, reading: Reading) -> Source:
    """The pictures of ``table`` as a source of ``channels × size × size`` images."""
    check_options(size, channels)
    if not 0 <= reading.max_unreadable <= 1:
        raise UserError(
            f"expected max_unreadable between 0 and 1, found {reading.max_unreadable!r}"
        )
    reader, reason = _choose(table, size, channels, reading)
    if reader == "streamed":
        window = reading.window or _automatic_window(channels * size**2)
        window = min(window, len(table))
        reading.say(f"{table.name}: streamed, shuffled within {window:,} images ({reason})")
        return StreamedSource(
            table,
            size=size,
            channels=channels,
            window=window,
            max_unreadable=reading.max_unreadable,
        )
    reading.say(f"{table.name}: {reader} ({reason})")
    if reader == "mapped":
        mapped = _from_cache(table, _open_cache(table, size, channels, reading))
        mapped.reader = "mapped"
        return mapped
    return _resident(table, size, channels, reading)


def _choose(table: Encoded, size: int, channels: int, reading: Reading) -> tuple[Reader, str]:
    """One of the three readers, and why."""
    need = len(table) * channels * size**2
    needed = _mebibytes(need)
    room = _room(reading.device)
    if reading.reader != "auto":
        if reading.reader == "resident" and room is not None and need > room / _SHARE_OF_MEMORY:
            raise UserError(
                f"{len(table):,} images of {table.name} at {size} x {size} pixels need {needed}, "
                f"{_mebibytes(room / _SHARE_OF_MEMORY)} are free on {reading.device}; use a "
                "smaller image size, or data.reader=mapped or streamed"
            )
        return reading.reader, f"as asked; {needed} decoded"
    if room is None or need <= room:
        return "resident", f"{needed} decoded, on {reading.device}"
    place = cache_folder()
    if find_cached(table, size=size, channels=channels) is not None:
        return "mapped", f"{needed} decoded, already in {place}"
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if need < free * 0.9:
        return "mapped", f"{needed} decoded, more than {_mebibytes(room)}, so on disk in {place}"
    return "streamed", f"{needed} decoded; {_mebibytes(free)} are free in {place}"


def _room(device: str) -> float | None:
    """Bytes that images may take on a device; None where it cannot be told."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0] * _SHARE_OF_MEMORY
    free = available_memory()
    return None if free is None else free * _SHARE_OF_MEMORY


def _automatic_window(image_bytes: int) -> int:
    # Two windows are held at a time: the one in use and the next.
    memory = available_memory() or 2**33
    return max(1024, int(memory * _SHARE_OF_WINDOW / 2 / image_bytes))


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB"


def _open_cache(table: Encoded, size: int, channels: int, reading: Reading) -> DecodedCache:
    return cached_pixels(
        table,
        size=size,
        channels=channels,
        max_unreadable=reading.max_unreadable,
        progress=reading.progress,
        note=reading.note,
    )


def _resident(table: Encoded, size: int, channels: int, reading: Reading) -> DecodedSource:
    """In memory, on the device; shards through the cache, so that they are decoded once for all.

    The files of a folder come and go, and a decoded copy of every one would only pile up.
    """
    if not isinstance(table, FolderTable):
        try:
            cache = _open_cache(table, size, channels, reading)
            if not verify(cache):
                reading.say(f"the decoded copy of {table.name} is damaged; decoding again")
                cache.file.unlink()
                cache = _open_cache(table, size, channels, reading)
            return _from_cache(table, cache).to(reading.device)
        except CacheUnavailable as error:
            reading.say(f"decoding without a cache: {error}")
    pixels, kept, unreadable = decode_table(
        table,
        size=size,
        channels=channels,
        max_unreadable=reading.max_unreadable,
        progress=reading.progress,
    )
    source = _as_source(table, torch.from_numpy(pixels), kept, unreadable)
    return source.to(reading.device)


def _from_cache(table: Encoded, cache: DecodedCache) -> DecodedSource:
    return _as_source(table, cache.pixels(), cache.kept, cache.unreadable, cache.fingerprint)


def _as_source(
    table: Encoded,
    pixels: torch.Tensor,
    kept: np.ndarray,
    unreadable: Sequence[tuple[str, str]],
    fingerprint: str | None = None,
) -> DecodedSource:
    """Decoded ``pixels`` of the rows ``kept`` with what else is known of them."""
    if isinstance(table, FolderTable):
        paths = [table.paths[row] for row in kept]
        unreadable = sorted([*table.unlistable, *unreadable])
        labels, class_names, note = label_by_folder(paths, unreadable)
        note = note or table.note
        if class_names != table.class_names:  # a class is lost, and the labels are other ones
            fingerprint = None
    else:
        paths, note = None, getattr(table, "note", None)
        labels = None if table.labels is None else table.labels[kept]
        class_names = table.class_names
    return DecodedSource(
        pixels,
        labels,
        class_names,
        table.name,
        paths=paths,
        unreadable=unreadable,
        note=note,
        fingerprint=fingerprint,
    )
