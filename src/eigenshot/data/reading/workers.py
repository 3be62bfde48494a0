"""Encoded pictures to pixels, on all cores.

Small pictures spend most of their time in Python, where threads wait for each other, so larger
amounts of work go to processes. Workers import no torch.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, wait
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from PIL import Image

from eigenshot.data.reading.picture import UnreadableImage, read_image
from eigenshot.data.tables.encoded import Encoded, Pictures
from eigenshot.errors import UserError
from eigenshot.machine import cores

Progress: TypeAlias = Callable[[int, int], None]

MISSING = "there is no picture in this row"
_TASKS_A_WORKER = 3  # one in work, one in wait, one on its way


def decode(
    pictures: Pictures, places: Sequence[Any] | np.ndarray, size: int, channels: int
) -> tuple[np.ndarray, dict[int, str]]:
    """Decode some pictures in this thread; `quiet_pillow` is for the caller to enter.

    Returns uint8 (n, channels, size, size) in the order of ``places``, black where a picture
    cannot be read, and the reason for each of those by its position among them.
    """
    pixels = np.zeros((len(places), channels, size, size), dtype=np.uint8)
    failures = {}
    for position, content in enumerate(pictures.read(places)):
        if content is None:
            failures[position] = MISSING
            continue
        try:
            pixels[position] = read_image(as_file(content), size=size, channels=channels)
        except UnreadableImage as error:
            failures[position] = error.reason
    return pixels, failures


def decode_rows(
    table: Encoded, rows: Sequence[int] | np.ndarray, *, size: int, channels: int
) -> tuple[np.ndarray, dict[int, str]]:
    """Decode some rows of a table; for the calling thread.

    Returns uint8 (n, channels, size, size) in the order of ``rows``, black where a picture cannot
    be read, and the reason for each of those by its row.
    """
    with quiet_pillow():
        pixels, failures = decode(table.pictures(), table.places(rows), size, channels)
    return pixels, by_row(rows, failures)


def by_row(rows: Sequence[int] | np.ndarray, failures: dict[int, str]) -> dict[int, str]:
    """Reasons by position among ``rows`` (n,) as reasons by row."""
    return {int(rows[position]): reason for position, reason in failures.items()}


@contextlib.contextmanager
def quiet_pillow() -> Iterator[None]:
    """Pillow warns of odd metadata and large photographs, which are read all the same.

    Not for several threads at a time: filters belong to the process, and each would restore what
    it has found.
    """
    with warnings.catch_warnings():
        _silence_pillow()
        yield


def _silence_pillow() -> None:
    warnings.filterwarnings("ignore", module=r"PIL\.")


def as_file(content: bytes | Path) -> BinaryIO | Path:
    """What Pillow opens."""
    return io.BytesIO(content) if isinstance(content, bytes) else content


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
    """A `process_pool` for `with_pictures`: what reads the table's pictures travels once."""
    # Unlike pickle it also takes what is defined in the user's script or a function.
    from joblib.externals.loky.backend.reduction import dumps

    return process_pool(workers, _keep, (bytes(dumps(table.pictures())),))


def with_pictures(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(pictures, *arguments)`` in a process of a `table_pool`."""
    # Not unpickled at the start: what fails there breaks the pool without a reason.
    if isinstance(_kept[0], bytes):
        _kept[0] = pickle.loads(_kept[0])
    return function(_kept[0], *arguments)


def run_tasks(
    table: Encoded,
    function: Callable[..., Any],
    tasks: Iterable[tuple[Any, ...]],
    workers: int | None = None,
) -> Generator[Any, None, None]:
    """``function(pictures, *task)`` of each task, in processes; results as they come.

    Few tasks are on their way at a time, so that neither they nor their results pile up.
    """
    pool: Any = table_pool(table, workers)
    finished = False
    try:
        waiting = iter(tasks)
        first = islice(waiting, _TASKS_A_WORKER * (workers or cores()))
        running = {pool.submit(with_pictures, function, *task) for task in first}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            following = islice(waiting, len(done))
            running |= {pool.submit(with_pictures, function, *task) for task in following}
            while done:  # popped, so that pixels are not held any longer than needed
                yield done.pop().result()
        finished = True
    except BrokenExecutor as error:
        raise UserError(
            f"a process that decoded {table.name} was ended from outside, most likely for want of "
            "memory; end other programs or give it more memory, and run again"
        ) from error
    finally:
        pool.shutdown(wait=True, kill_workers=not finished)


_kept: list[Any] = []


def _keep(pickled: bytes) -> None:
    _kept[:] = [pickled]


def _start(parent: int, initializer: Callable[..., None] | None, initargs: tuple[Any, ...]) -> None:
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _silence_pillow()
    Image.init()
    if initializer is not None:
        initializer(*initargs)


def _end_with(parent: int) -> None:
    """End this process soon after its parent, which may be killed before it can say so."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
