"""Small tables of encoded pictures for tests. Worker processes import this, so no torch."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from eigenshot.data.tables.encoded import PlainTable, digest_of


def png(pixels: np.ndarray) -> bytes:
    """uint8 (height, width) or (height, width, 3) as a PNG file."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def noise_pngs(count: int, side: int = 8, seed: int = 0) -> list[bytes | None]:
    """Distinct square RGB pictures."""
    generator = np.random.default_rng(seed)
    shape = (side, side, 3)
    return [png(generator.integers(0, 256, shape, dtype=np.uint8)) for _ in range(count)]


class ListTable(PlainTable):
    """A table from a list of encoded pictures; it meets `eigenshot.data.tables.encoded.Encoded`.

    Parameters
    ----------
    images : one a row, None where there is none to be read
    labels : int64 (N,), indices into ``class_names``, or None
    group : rows a group
    log : a file to which every row that is read is appended, a line each
    delay : seconds that reading a row takes
    """

    def __init__(
        self,
        images: Sequence[bytes | None],
        labels: Sequence[int] | np.ndarray | None = None,
        class_names: Sequence[str] = (),
        group: int = 4,
        log: Path | None = None,
        delay: float = 0.0,
    ) -> None:
        self.images = list(images)
        self.labels = None if labels is None else np.asarray(labels, dtype=np.int64)
        self.class_names = tuple(class_names)
        self.name = "list"
        self.log = log
        self.delay = delay
        self.groups = np.unique(np.append(np.arange(0, len(self.images), group), len(self.images)))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def identity(self) -> str:
        return digest_of([None if image is None else image.hex() for image in self.images])

    @property
    def fingerprint(self) -> str:
        return digest_of(self.identity, self.labels, list(self.class_names))

    def read(self, rows: Sequence[int] | np.ndarray) -> list[bytes | None]:
        if self.log is not None:
            # One write to a file opened for appending is not mixed with another process's.
            descriptor = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.write(descriptor, "".join(f"{int(row)}\n" for row in rows).encode())
            os.close(descriptor)
        time.sleep(self.delay * len(rows))
        return [self.images[int(row)] for row in rows]

    def describe(self, row: int) -> str:
        return f"list[{int(row)}]"


class DeadlyTable(ListTable):
    """Reading it ends the process at once, as a lack of memory does, except the one it is from."""

    def __init__(self, images: Sequence[bytes | None]) -> None:
        super().__init__(images)
        self.maker = os.getpid()

    def read(self, rows: Sequence[int] | np.ndarray) -> list[bytes | None]:
        if os.getpid() != self.maker:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().read(rows)


def read_places(pictures: ListTable, rows: list[int]) -> int:
    """How many pictures are read: work for a process."""
    return len(pictures.read(rows))
