"""Decoded pictures in the user's cache folder: made once, then mapped into memory."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import PIL
import torch

from eigenshot.data.cache import CacheUnavailable, cache_folder
from eigenshot.data.reading.chunks import (
    WriteFailed,
    check_request,
    describe_failures,
    other_rows,
    writing,
)
from eigenshot.data.reading.locks import locked
from eigenshot.data.reading.partial import Partial, unavailable
from eigenshot.data.reading.picture import check_options
from eigenshot.data.reading.stale import remove_stale
from eigenshot.data.reading.unreadable import check_unreadable
from eigenshot.data.reading.workers import Progress
from eigenshot.data.source import content_fingerprint
from eigenshot.data.tables.encoded import Encoded, Unreadable, digest_of
from eigenshot.errors import CorruptFileError, UserError
from eigenshot.files import remove_leftovers, write_json

_VERSION = 1  # of the files, and of how pictures are decoded


@dataclass(frozen=True, eq=False)
class DecodedCache:
    """A finished cache.

    Attributes
    ----------
    file : the pixels and nothing else
    shape : (N, channels, size, size)
    fingerprint : that of an `ArraySource` of the same pixels, labels and class names
    kept : int64 (N,), the rows of the table that are in the cache, ascending
    unreadable : (place, reason) of the other rows
    chunks : (images, crc32) of consecutive parts of the file
    """

    file: Path
    shape: tuple[int, int, int, int]
    fingerprint: str
    kept: np.ndarray
    unreadable: Unreadable
    chunks: tuple[tuple[int, int], ...] = field(repr=False)

    def pixels(self) -> torch.Tensor:
        """uint8 (N, channels, size, size), read from the file as needed.

        It may be written to: that changes this process's copy, never the file.
        """
        try:
            return _mapped(self.file, self.shape)
        except (OSError, ValueError) as error:
            raise CorruptFileError(
                f"cannot read {self.file}: {error}; run again to decode the images anew"
            ) from error


def cached_pixels(
    table: Encoded,
    *,
    size: int,
    channels: int,
    max_unreadable: float = 0.1,
    progress: Progress | None = None,
    note: Callable[[str], None] | None = None,
    workers: int | None = None,
    verified: bool = False,
) -> DecodedCache:
    """The decoded pictures of ``table`` from the cache; decoded into it where they are not there.

    An interrupted call is taken up by the next one. Of several processes, one does the work. Copies
    of earlier states of the same data are removed before a new one is made.

    Parameters
    ----------
    size : side of the centred square taken from each picture, in pixels
    channels : 3 for RGB, 1 for grey
    max_unreadable : the share of unreadable pictures above which they are refused, 0 to 1
    progress : called as ``progress(done, total)`` from the calling thread
    note : told when another process is waited for, a copy is damaged, or an unfinished one stays
    workers : processes; by default one a core, or none where there is little to do
    verified : whether a copy that is there is read as a whole, and made anew if it is damaged

    Raises
    ------
    CacheUnavailable
        Where the cache folder cannot be written or has no room. Nothing is left in it then.
    """
    check_request(table, size, channels, max_unreadable)
    size, channels = int(size), int(channels)  # of NumPy they would not go into JSON
    cache = find_cached(table, size=size, channels=channels)
    if cache is None or (verified and not verify(cache)):
        if cache is not None and note is not None:
            note(f"the decoded copy of {table.name} is damaged; decoding again")
        stem = _stem(table, size, channels)
        try:
            with locked(stem, f"decoding {table.name}", note):
                cache = _open(table, stem, size, channels)  # by now another process may be done
                if cache is None or (verified and not verify(cache)):
                    cache = _build(
                        table, stem, size, channels, max_unreadable, progress, note, workers
                    )
        except WriteFailed as error:
            need = len(table) * channels * size**2
            raise unavailable(stem.parent, table.name, error, need) from error
    check_unreadable(table, cache.unreadable, max_unreadable)
    return cache


def find_cached(table: Encoded, *, size: int, channels: int) -> DecodedCache | None:
    """The finished cache of ``table``, whatever share of it was unreadable; None without one."""
    check_options(size, channels)
    try:
        return _open(table, _stem(table, size, channels), size, channels)
    except CacheUnavailable:
        return None


def verify(cache: DecodedCache) -> bool:
    """Whether the file still holds what was written; reads all of it."""
    image_bytes = int(np.prod(cache.shape[1:]))
    try:
        with cache.file.open("rb") as handle:
            return all(
                zlib.crc32(handle.read(count * image_bytes)) == crc for count, crc in cache.chunks
            )
    except OSError:
        return False


def _stem(table: Encoded, size: int, channels: int) -> Path:
    """What the names of a cache's files have in common."""
    # Pillow's resampling may change with its major version.
    parts = (table.identity, int(size), int(channels), _VERSION, PIL.__version__.split(".")[0])
    return cache_folder() / "pixels" / digest_of(*parts)


def _build(
    table: Encoded,
    stem: Path,
    size: int,
    channels: int,
    max_unreadable: float,
    progress: Progress | None,
    note: Callable[[str], None] | None,
    workers: int | None,
) -> DecodedCache:
    """Decode everything into a partial file, then make it the cache, the header last."""
    data, header = stem.with_suffix(".u8"), stem.with_suffix(".json")
    with writing():
        data.unlink(missing_ok=True)
        header.unlink(missing_ok=True)
        remove_leftovers(header.parent, header.name)
    remove_stale(stem, table.origin, size, channels)
    partial = Partial(stem, table, size=size, channels=channels)
    try:
        failures = partial.fill(workers=workers, progress=progress)
        unreadable = describe_failures(table, failures)
        if len(failures) == len(table):
            partial.remove()  # no second call can make anything of it
        check_unreadable(table, unreadable, max_unreadable)
        chunks = partial.squeeze()
        kept = other_rows(len(table), failures)
        shape = (len(kept), channels, size, size)
        fingerprint = _fingerprint(table, partial.squeezed, shape, kept)
        with writing():
            os.replace(partial.squeezed, data)
            content = {
                "version": _VERSION,
                "origin": table.origin,
                "shape": shape,
                "rows": len(table),
                "unreadable": list(failures.items()),
                "chunks": chunks,
                "fingerprints": {_labelling(table): fingerprint},
            }
            write_json(header, content)
    except WriteFailed:
        partial.remove()
        with contextlib.suppress(OSError):
            data.unlink(missing_ok=True)
        raise
    except (KeyboardInterrupt, UserError):  # the latter: too many pictures cannot be read
        if note is not None and partial.exists():
            note(f"what is decoded of {table.name} is kept; the next run goes on from there")
        raise
    partial.remove()
    return DecodedCache(data, shape, fingerprint, kept, unreadable, tuple(chunks))


def _open(table: Encoded, stem: Path, size: int, channels: int) -> DecodedCache | None:
    """The finished cache at ``stem``; None where it is missing or not whole."""
    data, header = stem.with_suffix(".u8"), stem.with_suffix(".json")
    try:
        content = json.loads(header.read_text(encoding="utf-8"))
        failures = {int(row): str(reason) for row, reason in content["unreadable"]}
        chunks = tuple((int(count), int(crc)) for count, crc in content["chunks"])
        kept = other_rows(len(table), failures)
        shape = (len(kept), channels, size, size)
        whole = (
            (content["version"], content["rows"]) == (_VERSION, len(table))
            and tuple(content["shape"]) == shape
            and sum(count for count, _ in chunks) == len(kept) > 0
            and data.stat().st_size == int(np.prod(shape, dtype=np.int64))
        )
        if not whole:
            return None
        known = dict(content["fingerprints"])
        labelling = _labelling(table)
        if labelling not in known:  # the same pictures under other labels
            known[labelling] = _fingerprint(table, data, shape, kept)
            with contextlib.suppress(OSError):
                write_json(header, {**content, "fingerprints": known})
        fingerprint = str(known[labelling])
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError):
        return None
    return DecodedCache(data, shape, fingerprint, kept, describe_failures(table, failures), chunks)


def _labelling(table: Encoded) -> str:
    """Digest of the labels and what they mean, which the cache's name leaves out."""
    return digest_of(table.labels, list(table.class_names))


def _fingerprint(
    table: Encoded, file: Path, shape: tuple[int, int, int, int], kept: np.ndarray
) -> str:
    labels = None if table.labels is None else table.labels[kept]
    return content_fingerprint(_mapped(file, shape), labels, table.class_names)


def _mapped(file: Path, shape: tuple[int, int, int, int]) -> torch.Tensor:
    """uint8 ``shape``, memory-mapped, with a private copy of whatever page is written to."""
    try:
        return torch.from_numpy(np.memmap(file, np.uint8, mode="c", shape=shape))
    except OSError as error:
        if error.errno != errno.ENOMEM or sys.platform != "linux":
            raise
    # Linux wants memory in reserve for all those copies, which a file larger than the memory
    # cannot have; without a reserve it is only the pages written to that count.
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)
    count = int(np.prod(shape, dtype=np.int64))
    with file.open("rb") as handle:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        view = mmap.mmap(handle.fileno(), count, mmap.MAP_PRIVATE | no_reserve, protection)
    return torch.from_numpy(np.frombuffer(view, np.uint8).reshape(shape))
