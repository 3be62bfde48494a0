"""Files that are whole or not there: written aside, synced, then renamed into place."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from eigenshot.errors import CannotRead, UserError, reason_of


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Iterator[IO[bytes]]:
    """A binary handle whose content appears at ``path`` when the block ends, or not at all."""
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes it private; a result is for sharing
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def why_not_writable(folder: Path) -> str | None:
    """Why no file can be made in ``folder``, as the end of a sentence; None where one can.

    It is tried: the permissions alone do not tell of file systems that cannot be written to.
    """
    try:
        with tempfile.TemporaryFile(dir=folder, prefix="."):  # for a moment others may see it
            return None
    except OSError as error:
        return reason_of(error)


def why_no_folder(folder: Path) -> str | None:
    """Why there can be no ``folder`` to write to, as a clause; None where there can.

    Nothing is made: of one that is not there yet, the folder is tried that it would be made in.
    """
    place = folder
    while not os.path.lexists(place):
        place = place.parent
    if not os.path.isdir(place):
        return f"'{place}' is no folder"
    reason = why_not_writable(place)
    return None if reason is None else f"'{place}' cannot be written to: {reason}"


def make_room_for(file: Path) -> str | None:
    """Make the folder that ``file`` is to lie in; why it can hold none, or None where it can."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return f"its folder cannot be made: {reason_of(error)}"
    return why_not_writable(file.parent)


def refuse_to_replace(file: Path, what: str, is_ours: Callable[[Path], bool]) -> None:
    """Let an existing ``file`` be written over only if it is empty or ``is_ours``.

    ``what`` ends the sentence on others: "…' is there already and <what>".
    """
    with looking_into(file):
        if not file.is_file():  # to read from anything else may take for ever
            raise UserError(f"'{file}' is there already and no file: write to another")
        ours = not file.stat().st_size or is_ours(file)
    if not ours:
        raise UserError(
            f"'{file}' is there already and {what}: remove it first, or write to another"
        )


@contextlib.contextmanager
def looking_into(place: str | Path) -> Iterator[None]:
    """What the system refuses while ``place`` is looked at is a `CannotRead` that names it."""
    try:
        yield
    except OSError as error:
        raise CannotRead(f"cannot read '{place}': {reason_of(error)}") from error


def as_unicode(name: str) -> str:
    """``name`` as valid Unicode: bytes of a file name that are no text are shown as ``\\xff``."""
    try:
        content = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character that does not stand for a byte
        content = name.encode("utf-8", "backslashreplace")
    return content.decode("utf-8", "backslashreplace")


def _sync_folder(folder: Path) -> None:
    """Make the rename itself durable, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_leftovers(folder: Path, name: str) -> None:
    """Drop what a killed `atomic_write` of ``folder/name`` left behind."""
    for leftover in folder.glob(f".{name}.*"):
        leftover.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with atomic_write(path) as handle:
        handle.write(text.encode())


def write_json(path: str | Path, value: Any) -> None:
    """Write readable JSON atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")
