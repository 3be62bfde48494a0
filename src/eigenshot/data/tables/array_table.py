"""Pictures of an array as a table, for what goes through encoded pictures."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from eigenshot.data.tables.encoded import PlainTable, digest_of

_GROUP = 256  # rows


class GivenPictures:
    """Encoded pictures that come with the question."""

    def read(self, places: Sequence[bytes]) -> list[bytes]:
        """The pictures as they are."""
        return list(places)


class ArrayTable(PlainTable):
    """An array of pictures, each encoded without loss when it is asked for.

    Parameters
    ----------
    pixels : uint8 (N, channels, height, width) with 1 or 3 channels
    labels : int64 (N,), -1 where unknown, or None; class_names : what they index
    name : a short description for people
    """

    lasting = False

    def __init__(
        self,
        pixels: np.ndarray,
        labels: np.ndarray | None,
        class_names: Sequence[str],
        name: str,
    ) -> None:
        self.pixels = pixels
        self.labels = labels
        self.class_names = tuple(class_names)
        self.name = name
        self.groups = np.append(np.arange(0, len(pixels), _GROUP), len(pixels))

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, rows: Sequence[int] | np.ndarray) -> list[bytes]:
        """The pictures at ``rows`` as BMP files."""
        return [_encoded(self.pixels[row]) for row in rows]

    def pictures(self) -> GivenPictures:
        """Nothing of the array: the pictures travel one by one."""
        return GivenPictures()

    def places(self, rows: Sequence[int] | np.ndarray) -> list[bytes]:
        """The encoded pictures themselves."""
        return self.read(rows)

    def describe(self, row: int) -> str:
        """The row."""
        return f"{self.name}, row {row}"

    @property
    def identity(self) -> str:
        """Digest of the pixels."""
        return digest_of(self.pixels)

    @property
    def fingerprint(self) -> str:
        """Digest of pixels, labels and class names."""
        return digest_of(self.pixels, self.labels, list(self.class_names))


def _encoded(picture: np.ndarray) -> bytes:
    """A picture (channels, height, width) as a BMP file, which is quick to write."""
    file = io.BytesIO()
    Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)).save(
        file, "BMP"
    )
    return file.getvalue()
