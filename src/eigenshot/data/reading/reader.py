"""One reader for three sizes: images on the device, mapped from disk, or streamed.

A table that fits is decoded once and kept as uint8 where the network is (``resident``); on a CPU
that of shards is the decoded copy in the cache folder, which the system keeps in its page cache. A
larger one lies there as well and is mapped into memory (``mapped``). What does not fit there either
is read and decoded again every epoch, shuffled in a window (``streamed``). The first two give the
same batches for the same seed; so does the third where its window covers everything.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch

from eigenshot.collective import world_size
from eigenshot.data.cache import CacheUnavailable, cache_folder, mebibytes
from eigenshot.data.reading.chunks import decode_table
from eigenshot.data.reading.picture import check_options
from eigenshot.data.reading.pixelcache import DecodedCache, cached_pixels, find_cached
from eigenshot.data.reading.streamed import StreamedSource
from eigenshot.data.reading.unreadable import check_max_unreadable
from eigenshot.data.reading.workers import Progress
from eigenshot.data.source import ArraySource, Source
from eigenshot.data.tables.encoded import Encoded, Unreadable
from eigenshot.errors import UserError
from eigenshot.machine import available_memory

Reader: TypeAlias = Literal["auto", "resident", "mapped", "streamed"]

# The network, its gradients and the rest of the machine need room as well.
_SHARE_OF_MEMORY = 0.5
_SHARE_OF_WINDOW = 0.125


@dataclass(frozen=True)
class Reading:
    """How a table is to be read.

    ``device`` is where resident images are kept; ``window`` is the number of images that a stream
    is shuffled in, 0 for what an eighth of the memory holds. ``note`` is told which reader was
    chosen and why; with ``quiet`` not where that is the ordinary one, resident.
    """

    reader: Reader = "auto"
    window: int = 0
    device: str = "cpu"
    max_unreadable: float = 0.1
    progress: Progress | None = None
    note: Callable[[str], None] | None = None
    quiet: bool = False

    def say(self, text: str) -> None:
        """Tell the user, if anyone listens."""
        if self.note is not None:
            self.note(text)


class DecodedSource(ArraySource):
    """The readable pictures of a table, decoded: in memory, on a device, or mapped from disk.

    Where they are resident on a CPU and come from the cache folder, they are mapped all the same:
    the system's page cache is the memory that they are kept in.

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
    check_max_unreadable(reading.max_unreadable)
    reader, reason = _choose(table, size, channels, reading)
    if reader == "streamed":
        return _streamed(table, size, channels, reading, reason)
    if reader == "mapped" or not reading.quiet:
        reading.say(f"{table.name}: {reader} ({reason})")
    if reading.window:
        reading.say(f"{table.name} is not streamed, so data.window={reading.window} does nothing")
    try:
        cache = None
        if reader == "mapped" or table.lasting:
            cache = _open_cache(table, size, channels, reading, verified=reader == "resident")
    except CacheUnavailable as error:
        if reader == "mapped" and reading.reader != "auto":
            raise
        if reader == "mapped" or not _fits_into_memory(table, size, channels, reading):
            reading.say(str(error))
            return _streamed(table, size, channels, reading, "no decoded copy can be kept")
        reading.say(f"decoding without a cache: {error}")
    if cache is None:
        return _decoded(table, size, channels, reading)
    found = _from_cache(table, cache)
    found.reader = reader
    return found if reader == "mapped" else found.to(reading.device)


def _choose(table: Encoded, size: int, channels: int, reading: Reading) -> tuple[Reader, str]:
    """One of the three readers, and why."""
    need = len(table) * channels * size**2
    needed = mebibytes(need)
    room, where = _room(table, reading.device)
    if reading.reader != "auto":
        if reading.reader == "resident" and need > room / _SHARE_OF_MEMORY:
            raise _too_large(table, size, need, room / _SHARE_OF_MEMORY, where)
        return reading.reader, f"as asked; {needed} decoded"
    if need <= room:
        return "resident", f"{needed} decoded, on {reading.device}"
    try:
        place = cache_folder()
    except CacheUnavailable as error:
        return "streamed", f"{needed} decoded; {error}"
    if find_cached(table, size=size, channels=channels) is not None:
        return "mapped", f"{needed} decoded, already in {place}"
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if need < free * 0.9:
        return "mapped", f"{needed} decoded, more than {mebibytes(room)}, so on disk in {place}"
    return "streamed", f"{needed} decoded; {mebibytes(free)} are free in {place}"


def _room(table: Encoded, device: str) -> tuple[float, str]:
    """Bytes that images may take, infinite where it cannot be told, and where that is."""
    free = available_memory()
    memory = (np.inf if free is None else free * _SHARE_OF_MEMORY, "in memory")
    if torch.device(device).type != "cuda":
        return memory
    on_device = (torch.cuda.mem_get_info(device)[0] * _SHARE_OF_MEMORY, f"on {device}")
    # Through the cache images reach a device piece by piece; without it all are decoded first.
    return on_device if table.lasting else min(on_device, memory)


def _fits_into_memory(table: Encoded, size: int, channels: int, reading: Reading) -> bool:
    """Whether all images can be decoded at once; an error where they cannot but must."""
    need, free = len(table) * channels * size**2, available_memory()
    if free is None or need <= free * _SHARE_OF_MEMORY:
        return True
    if reading.reader == "auto":
        return False
    if need > free:
        raise _too_large(table, size, need, free, "in memory")
    return True


def _too_large(table: Encoded, size: int, need: int, free: float, where: str) -> UserError:
    return UserError(
        f"{len(table):,} images of {table.name} at {size} x {size} pixels need {mebibytes(need)}, "
        f"{mebibytes(free)} are free {where}; use a smaller image size, or data.reader=mapped or "
        "streamed"
    )


def _streamed(
    table: Encoded, size: int, channels: int, reading: Reading, reason: str
) -> StreamedSource:
    window = min(reading.window or _automatic_window(channels * size**2), len(table))
    reading.say(f"{table.name}: streamed ({reason})")
    return StreamedSource(
        table,
        size=size,
        channels=channels,
        window=window,
        max_unreadable=reading.max_unreadable,
    )


def _automatic_window(image_bytes: int) -> int:
    # Two windows are held at a time: the one in use and the next. Each of the processes that train
    # together holds its rows of them, in memory of its own.
    memory = (available_memory() or 2**33) * world_size()
    return max(1024, int(memory * _SHARE_OF_WINDOW / 2 / image_bytes))


def _open_cache(
    table: Encoded, size: int, channels: int, reading: Reading, *, verified: bool
) -> DecodedCache:
    return cached_pixels(
        table,
        size=size,
        channels=channels,
        max_unreadable=reading.max_unreadable,
        progress=reading.progress,
        note=reading.note,
        verified=verified,
    )


def _decoded(table: Encoded, size: int, channels: int, reading: Reading) -> DecodedSource:
    """Decoded here and now, and brought to the device; nothing is left on disk."""
    pixels, kept, unreadable = decode_table(
        table,
        size=size,
        channels=channels,
        max_unreadable=reading.max_unreadable,
        progress=reading.progress,
    )
    return _as_source(table, torch.from_numpy(pixels), kept, unreadable).to(reading.device)


def _from_cache(table: Encoded, cache: DecodedCache) -> DecodedSource:
    return _as_source(table, cache.pixels(), cache.kept, cache.unreadable, cache.fingerprint)


def _as_source(
    table: Encoded,
    pixels: torch.Tensor,
    kept: np.ndarray,
    unreadable: Unreadable,
    fingerprint: str | None = None,
) -> DecodedSource:
    """Decoded ``pixels`` of the rows ``kept`` with what else is known of them."""
    unreadable = tuple(sorted([*table.unlistable, *unreadable])) if table.unlistable else unreadable
    known = table.labelling(kept, unreadable)
    if known.class_names != table.class_names:  # a class is lost, and the labels are other ones
        fingerprint = None
    return DecodedSource(
        pixels,
        known.labels,
        known.class_names,
        table.name,
        paths=known.paths,
        unreadable=unreadable,
        note=known.note,
        fingerprint=fingerprint,
    )
