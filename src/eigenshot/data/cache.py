"""Arrays that are made once and kept in the user's cache folder."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from eigenshot.files import atomic_write


def cache_folder() -> Path:
    """``$EIGENSHOT_CACHE``, or ``eigenshot`` in the user's cache folder."""
    chosen = os.environ.get("EIGENSHOT_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eigenshot"


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
        cache_folder().mkdir(parents=True, exist_ok=True)
        with atomic_write(cache_folder() / f"{key}.npz") as handle:
            np.savez_compressed(handle, array=array)
    except OSError:
        return
