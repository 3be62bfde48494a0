"""The user's cache folder, and arrays that are made once and kept there."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from eigenshot.errors import UserError
from eigenshot.files import atomic_write


class CacheUnavailable(UserError):
    """There is no cache folder, or it cannot be written, or has no room."""


def cache_folder() -> Path:
    """``$EIGENSHOT_CACHE``, or ``eigenshot`` in the user's cache folder."""
    chosen = os.environ.get("EIGENSHOT_CACHE")
    try:
        if chosen:
            return Path(chosen).expanduser()
        usual = os.environ.get("XDG_CACHE_HOME")
        return (Path(usual).expanduser() if usual else Path.home() / ".cache") / "eigenshot"
    except RuntimeError as error:  # a user without a home folder, or unknown to the system
        raise CacheUnavailable(
            "there is no home folder for the cache; set EIGENSHOT_CACHE to a folder"
        ) from error


def mebibytes(count: float) -> str:
    """``"1,024 MiB"`` for bytes, rounded up: what is needed should suffice."""
    return f"{-int(-count // 2**20):,} MiB"


def load_cached(key: str, *, shape: tuple[int, ...] | None = None) -> np.ndarray | None:
    """The uint8 array kept under ``key``, or None where it is missing or not of ``shape``."""
    try:
        with np.load(cache_folder() / f"{key}.npz", allow_pickle=False) as stored:
            array = stored["array"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    fits = array.dtype == np.uint8 and (shape is None or array.shape == shape)
    return array if fits else None


def store_cached(key: str, array: np.ndarray) -> None:
    """Keep ``array`` under ``key``. A cache that cannot be written is done without."""
    try:
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / f"{key}.npz") as handle:
            np.savez_compressed(handle, array=array)
    except (OSError, CacheUnavailable):
        return
