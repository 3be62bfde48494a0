"""Names of files and folders, made of words and of what images are called."""

from __future__ import annotations

import os
import re

from eigenshot.reproduction.versions import short_digest


def plain_name(text: str) -> str:
    """``text`` as a part of a file name on any system."""
    return re.sub(r"[^\w.+=-]+", "-", text).strip("-.")


def short_name(data: str) -> str:
    """A file name for data: of a path its last piece."""
    last = os.path.basename(os.path.normpath(data))
    return plain_name(re.sub(r"\.(npz|parquet)$", "", last)) or "data"


def place_name(data: str) -> str:
    """A folder name for what is made of data, whether they are there or not.

    What lies in another folder, or at a hub's owner, has eight characters after its short name:
    others that are called the same may hold other images.
    """
    text = os.path.normpath(data)
    named_alone = text == os.path.basename(text)
    return short_name(data) if named_alone else f"{short_name(data)}-{short_digest([text])}"
