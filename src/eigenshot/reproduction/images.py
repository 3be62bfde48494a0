"""The images that a table names, as they are kept: none is decoded, and none fetched."""

from __future__ import annotations

from eigenshot.data.glyphs import load_glyphs
from eigenshot.data.naming import choose_split, is_npz, open_named
from eigenshot.data.npz import load_npz
from eigenshot.data.source import ArraySource
from eigenshot.data.tables.encoded import Encoded


def open_kept(data: str, split: str | None) -> Encoded | ArraySource:
    """Names, labels and digest of the images of ``data``, which are here."""
    if data == "glyphs":
        return load_glyphs(split or "train")
    return load_npz(data) if is_npz(data) else open_named(data, split)


def digest_of_tested(data: str) -> str:
    """What tells the images that few-shot tasks of ``data`` are drawn of from others.

    It is the same for encoders of every size of images.
    """
    return open_kept(data, choose_split(data, "test")).fingerprint
