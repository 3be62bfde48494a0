"""A folder of pictures as a source: sub-folders are classes, or none and it is unlabelled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

from eigenshot.data.reading.reader import DecodedSource, Reading, open_table
from eigenshot.data.reading.workers import Progress
from eigenshot.data.tables.folder_table import FolderTable
from eigenshot.data.tables.layout import look_into


def load_folder(
    path: str | os.PathLike[str],
    *,
    image_size: int,
    channels: int = 3,
    max_unreadable: float = 0.1,
    progress: Progress | None = None,
) -> DecodedSource:
    """Decode every picture under a folder into one uint8 array (N, channels, size, size).

    Pictures in sub-folders are labelled by the sub-folder directly under ``path``, however deep
    they lie; pictures directly in ``path`` make the source unlabelled. They are ordered by
    relative path. Files that cannot be read are skipped and listed in ``unreadable``.

    Parameters
    ----------
    image_size : side of the centred square taken from each picture, in pixels
    channels : 3 for RGB, 1 for grey
    max_unreadable : the share of unreadable files above which loading is refused, 0 to 1
    progress : called as ``progress(done, total)`` from the calling thread
    """
    reading = Reading("resident", max_unreadable=max_unreadable, progress=progress)
    layout = look_into(Path(path).expanduser())
    table = FolderTable(path, None if layout.shards else layout.note)
    source = open_table(table, size=image_size, channels=channels, reading=reading)
    return cast(DecodedSource, source)
