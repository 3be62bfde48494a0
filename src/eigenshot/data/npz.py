"""NumPy archives of images as sources."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np

from eigenshot.data.source import ArraySource, to_names
from eigenshot.errors import CorruptFileError, UserError


def load_npz(path: str | os.PathLike[str]) -> ArraySource:
    """A source from an ``.npz`` file with ``images`` and optionally ``labels``, ``class_names``.

    Nothing is unpickled. Layouts and types are those of `ArraySource.from_array`.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise UserError(f"no such file: {path}")
    if not zipfile.is_zipfile(path):
        raise CorruptFileError(f"{path} is not an .npz file, or was cut short")
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = sorted(archive.files)
            if "images" not in found:
                raise UserError(
                    f"{path} has no array 'images', found: {', '.join(found) or 'none'}"
                )
            wanted = [key for key in ("images", "labels", "class_names") if key in found]
            arrays = {key: archive[key] for key in wanted}
    except UserError:
        raise
    except Exception as error:  # zip, zlib, header and object-array errors alike
        reason = "it holds Python objects" if "allow_pickle" in str(error) else str(error)
        raise CorruptFileError(f"cannot read {path}: {reason}") from error
    names = arrays.get("class_names")
    try:
        return ArraySource.from_array(
            arrays["images"],
            arrays.get("labels"),
            None if names is None else to_names(names),
            name=path.name,
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
