"""Encoded pictures to pixels, on all cores.

Small pictures spend most of their time in Python, where threads wait for each other, so larger
amounts of work go to processes. Workers import no torch.
"""

from __future__ import annotations

import io
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image

from eigenshot.data.decode import UnreadableImage, read_image
from eigenshot.data.encoded import Encoded

MISSING = "there is no picture in this row"


def decode_rows(
    table: Encoded, rows: Sequence[int] | np.ndarray, *, size: int, channels: int
) -> tuple[np.ndarray, dict[int, str]]:
    """Decode some pictures in this thread.

    Returns uint8 (n, channels, size, size) in the order of ``rows``, black where a picture cannot
    be read, and the reason for each of those by its row.
    """
    pixels = np.zeros((len(rows), channels, size, size), dtype=np.uint8)
    failures = {}
    with warnings.catch_warnings():
        # Pillow warns of odd metadata and large photographs, which are read all the same.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        for place, (row, content) in enumerate(zip(rows, table.read(rows), strict=True)):
            if content is None:
                failures[int(row)] = MISSING
                continue
            try:
                pixels[place] = read_image(as_file(content), size=size, channels=channels)
            except UnreadableImage as error:
                failures[int(row)] = error.reason
    return pixels, failures


def as_file(content: bytes | Path) -> BinaryIO | Path:
    """What Pillow opens."""
    return io.BytesIO(content) if isinstance(content, bytes) else content


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_pool(
    workers: int | None = None,
    initializer: Callable[..., None] | None = None,
    initargs: tuple[Any, ...] = (),
) -> Executor:
    """Processes that decode, one a core by default; to be shut down by the caller.

    They are started afresh rather than forked (torch's threads do not survive a fork), and without
    running the caller's main module again. Each calls ``initializer(*initargs)`` once, and ends
    when this process is gone.
    """
    from joblib.externals.loky import ProcessPoolExecutor

    pool: Executor = ProcessPoolExecutor(
        workers or cores(),
        initializer=_start,
        initargs=(os.getpid(), initializer, initargs),
        timeout=300,
    )
    return pool


def table_pool(table: Encoded, workers: int | None = None) -> Executor:
    """A `process_pool` that `decode_of_table` can be submitted to: the table travels once."""
    # Unlike pickle it also takes what is defined in the user's script or a function.
    from joblib.externals.loky.backend.reduction import dumps

    return process_pool(workers, _keep, (bytes(dumps(table)),))


def decode_of_table(
    rows: np.ndarray, size: int, channels: int
) -> tuple[np.ndarray, dict[int, str]]:
    """`decode_rows` of the table that this process, one of a `table_pool`, was given."""
    # Not unpickled at the start: what fails there breaks the pool without a reason.
    if isinstance(_kept[0], bytes):
        _kept[0] = pickle.loads(_kept[0])
    return decode_rows(_kept[0], rows, size=size, channels=channels)


_kept: list[Any] = []


def _keep(pickled: bytes) -> None:
    _kept[:] = [pickled]


def _start(parent: int, initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    Image.init()
    if initializer is not None:
        initializer(*initargs)


def _end_with(parent: int) -> None:
    """End this process soon after its parent, which may be killed before it can say so."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
