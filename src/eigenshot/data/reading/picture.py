"""Picture files of any mode and orientation to uint8.

Without torch: worker processes import this, and start in a fraction of a second so.
"""

from __future__ import annotations

import os
from typing import BinaryIO

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError

from eigenshot.errors import UserError

# Only formats that are plain pixels: among Pillow's others is EPS, which starts Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")

# Pillow's own bound for an attack, kept here so that it holds even where a program has lifted it.
MAX_PIXELS = 178_956_970

# Beyond this the centred square shows next to nothing of the picture.
MAX_ASPECT_RATIO = 50

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableImage(UserError):
    """A picture that cannot be used; ``reason`` says why in one line."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)  # both, so that the exception survives pickling
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"cannot read {self.path}: {self.reason}"


def read_image(
    path_or_file: str | os.PathLike[str] | BinaryIO, *, size: int, channels: int = 3
) -> np.ndarray:
    """Decode the first frame of a picture file, upright, as a centred square.

    Parameters
    ----------
    path_or_file : path or binary file open for reading
    size : side of the square in pixels
    channels : 3 for RGB, 1 for grey

    Returns
    -------
    uint8 array (channels, size, size)

    Raises
    ------
    UnreadableImage
        For every way in which a file can fail to be a usable picture.
    """
    check_options(size, channels)
    if isinstance(path_or_file, (str, os.PathLike)):
        name = os.fspath(path_or_file)
    else:
        name = str(getattr(path_or_file, "name", "<stream>"))
    try:
        with Image.open(path_or_file, formats=FORMATS) as image:
            return _square(image, name, size, channels)
    except UnreadableImage:
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImage(name, _unidentified(path_or_file)) from error
    except Exception as error:  # broken files surface as nearly any exception, MemoryError included
        raise UnreadableImage(name, _reason(error)) from error


def to_array(image: Image.Image, *, size: int, channels: int = 3) -> np.ndarray:
    """Treat an already open picture as `read_image` does; of several frames, the current one.

    Returns a uint8 array (channels, size, size).
    """
    check_options(size, channels)
    name = str(getattr(image, "filename", "") or "<image>")
    try:
        return _square(image, name, size, channels)
    except UnreadableImage:
        raise
    except Exception as error:
        raise UnreadableImage(name, _reason(error)) from error


def check_image_size(size: int) -> None:
    """Refuse what cannot be the side of a picture."""
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool) or size < 1:
        raise UserError(f"expected an image size of at least 1 pixel, found {size!r}")


def check_options(size: int, channels: int) -> None:
    check_image_size(size)
    if channels not in (1, 3):
        raise UserError(f"expected 1 channel (grey) or 3 (RGB), found {channels!r}")


def _square(image: Image.Image, name: str, size: int, channels: int) -> np.ndarray:
    """The centred square of ``image``, (channels, size, size)."""
    _check_extent(image, name)
    # JPEG can be decoded at a half, a quarter or an eighth; twice the target leaves the resampling
    # enough to work with.
    image.draft(None, (2 * size, 2 * size))
    image.load()
    flat = _eight_bit(image, name)
    flat = flat.convert("RGB" if channels == 3 else "L")
    width, height = flat.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    # Resampling the centred square only is the same as resizing all and cropping, for less work.
    flat = flat.resize(
        (size, size),
        Image.Resampling.BICUBIC,
        box=(left, top, left + side, top + side),
        reducing_gap=3.0,
    )
    # The square is centred, so turning it afterwards is the same as turning the whole picture.
    turn = _UPRIGHT.get(_orientation(image))
    if turn is not None:
        flat = flat.transpose(turn)
    pixels = np.asarray(flat, dtype=np.uint8)
    if channels == 1:
        return pixels[None].copy()
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _check_extent(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise UnreadableImage(name, f"the picture is empty ({width} x {height} pixels)")
    if width * height > MAX_PIXELS:
        raise UnreadableImage(
            name, f"too large: {width} x {height} pixels, at most {MAX_PIXELS:,} are decoded"
        )
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise UnreadableImage(
            name,
            f"too elongated: {width} x {height} pixels, at most {MAX_ASPECT_RATIO}:1 is accepted",
        )


def _eight_bit(image: Image.Image, name: str) -> Image.Image:
    """The same picture in L or RGB or a mode that converts to them, transparency on white."""
    if image.mode.startswith("I;16"):
        return _from_sixteen_bit(np.asarray(image))
    if image.mode == "I":
        values = np.asarray(image)
        # Some decoders hand out 16-bit pictures as 32-bit integers.
        if values.min() >= 0 and values.max() <= 65535:
            return _from_sixteen_bit(values)
        return _from_own_range(values, name)
    if image.mode == "F":
        return _from_own_range(np.asarray(image), name)
    if image.has_transparency_data:
        # Pillow has no direct way from premultiplied grey to RGBA.
        rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    if image.mode == "L":
        return image
    return image.convert("RGB")


def _from_sixteen_bit(values: np.ndarray) -> Image.Image:
    """0..65535 to 0..255, (height, width); 65535 = 257 * 255."""
    return Image.fromarray(((values.astype(np.uint32) + 128) // 257).astype(np.uint8))


def _from_own_range(values: np.ndarray, name: str) -> Image.Image:
    """The smallest value to black, the largest to white, (height, width); a constant is black."""
    values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        raise UnreadableImage(name, "the picture holds no finite value")
    low, high = float(finite.min()), float(finite.max())
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    scale = 255.0 / (high - low) if high > low else 0.0
    return Image.fromarray(np.rint((values - low) * scale).astype(np.uint8))


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation still to be applied, 1 for none.

    Read after loading: Pillow turns TIFF files itself then and removes the tag.
    """
    try:
        value = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # a damaged header does not make the pixels unusable
        return 1
    return value if isinstance(value, int) else 1


def _unidentified(path_or_file: str | os.PathLike[str] | BinaryIO) -> str:
    if isinstance(path_or_file, (str, os.PathLike)):
        empty = os.path.getsize(path_or_file) == 0
    else:
        empty = path_or_file.seek(0, os.SEEK_END) == 0
    return "the file is empty" if empty else f"not a picture in any of {', '.join(FORMATS)}"


def _reason(error: Exception) -> str:
    """One line for a person."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, PermissionError):
        return "permission denied"
    if isinstance(error, IsADirectoryError):
        return "a folder, not a file"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
