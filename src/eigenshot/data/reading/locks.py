"""Locks on what several processes may want to make: one does, the others wait."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from eigenshot.data.reading.chunks import writing
from eigenshot.errors import Busy

try:
    import fcntl
except ImportError:  # not a Unix system: two builds at once then do the work twice
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def locked(
    stem: Path, work: str, note: Callable[[str], None] | None = None, *, wait: bool = True
) -> Iterator[None]:
    """Keep other processes from the same ``work``, as "decoding it" is; its folder is made.

    While another is at it, this one waits, or without ``wait`` is told so by a `Busy`.
    """
    while True:
        with writing():
            stem.parent.mkdir(parents=True, exist_ok=True)
            handle = stem.with_suffix(".lock").open("ab")
        with handle:
            held = _lock(handle, work, note, wait)
            if held and not _is_current(handle, stem):
                continue  # whoever held it has removed it, and others may have a new one
            try:
                yield
            finally:
                if held:
                    _remove(stem)
            return


@contextlib.contextmanager
def idle(stem: Path) -> Iterator[bool]:
    """Whether nobody is building at ``stem``, nor begins to until the block ends."""
    try:
        handle = stem.with_suffix(".lock").open("ab")
    except OSError:
        yield False
        return
    with handle:
        held = False
        if fcntl is not None:
            with contextlib.suppress(OSError):  # held by another, or a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = _is_current(handle, stem)
        try:
            yield held
        finally:
            if held:
                _remove(stem)


def _lock(handle: IO[bytes], work: str, note: Callable[[str], None] | None, wait: bool) -> bool:
    """Get the lock; False where there are none to be had."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if not wait:
            raise Busy(f"another process is {work}") from None
        if note is not None:
            note(f"waiting for another process that is {work}")
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:  # some network file systems have no locks
        return False
    return True


def _is_current(handle: IO[bytes], stem: Path) -> bool:
    """Whether the open file is still the one that others find by its name."""
    try:
        return os.path.samestat(os.fstat(handle.fileno()), stem.with_suffix(".lock").stat())
    except OSError:
        return False


def _remove(stem: Path) -> None:
    """Remove the lock's file while it is held, so that who waits for it sees that it is gone."""
    with contextlib.suppress(OSError):
        stem.with_suffix(".lock").unlink()
