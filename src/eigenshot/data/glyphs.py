"""Letters and symbols drawn from the fonts that matplotlib ships: data that is always at hand.

A class is a character, a sample is a drawing of it in a random face, size, slant and place. Some
characters of different alphabets look the same (Latin A, Greek Α, Cyrillic А); those are one
class, otherwise an "unseen" test class could have a twin among the training classes.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import matplotlib
import numpy as np
import torch
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

from eigenshot.data.cache import load_cached, store_cached
from eigenshot.data.source import ArraySource
from eigenshot.errors import check_at_least
from eigenshot.options import lookup
from eigenshot.randomness import derive_seed, numpy_generator

SPLITS = {"train": (0.0, 0.64), "validation": (0.64, 0.80), "test": (0.80, 1.0)}
SIDE = 28
_OVERSAMPLING = 2  # glyphs are drawn at twice the size and averaged down once
_SCRIPTS = ("LATIN", "GREEK", "CYRILLIC", "ARMENIAN", "GEORGIAN")
_REFERENCE_SIZE = 48  # at which drawings are compared
_VERSION = 2  # raise when the drawing changes, so that old caches are not used


def _font_folder() -> Path:
    return Path(matplotlib.get_data_path()) / "fonts" / "ttf"


@cache
def _faces() -> dict[str, frozenset[int]]:
    """The code points that each text face can draw; mathematical sizes and displays are no text."""
    names = sorted(
        path.name
        for path in _font_folder().glob("*.ttf")
        if path.name.startswith(("DejaVuSans", "DejaVuSerif", "STIXGeneral"))
        and "Display" not in path.name
    )
    return {name: frozenset(FT2Font(str(_font_folder() / name)).get_charmap()) for name in names}


def _is_candidate(code: int) -> bool:
    """A letter of one of the alphabets, or a mathematical sign."""
    character = chr(code)
    if unicodedata.category(character) == "Sm":
        return True
    # Compatibility forms repeat other letters; Greek with breathings differs by specks only.
    if unicodedata.normalize("NFKC", character) != character or 0x1F00 <= code <= 0x1FFF:
        return False
    return unicodedata.category(character).startswith("L") and unicodedata.name(
        character, ""
    ).startswith(_SCRIPTS)


@cache
def _font(face: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(_font_folder() / face), size)


@cache
def glyph_classes() -> tuple[str, ...]:
    """One character a class, in code point order; characters drawn identically are one class.

    Two characters are the same when any one face draws them with the same ink, wherever the ink
    lies: a drawing is centred, so place tells nothing.
    """
    kept = load_cached(f"glyph-classes-{_versions()}")
    if kept is not None:
        return tuple(kept.tobytes().decode())
    characters = _merge_twins()
    store_cached(f"glyph-classes-{_versions()}", np.frombuffer("".join(characters).encode(), "u1"))
    return characters


def _versions() -> str:
    """Another matplotlib brings other outlines, another Pillow may rasterise them otherwise."""
    return f"v{_VERSION}-matplotlib{matplotlib.__version__}-pillow{Image.__version__}"


def _merge_twins() -> tuple[str, ...]:
    """The smallest character of every group that some face does not tell apart."""
    dejavu = [codes for face, codes in _faces().items() if face.startswith("DejaVu")]
    codes = [code for code in sorted(frozenset.intersection(*dejavu)) if _is_candidate(code)]
    first_with: dict[tuple[str, tuple[int, int], bytes], int] = {}
    merged: dict[int, int] = {}
    for code in codes:
        twins = {_root(merged, first_with.setdefault((*look,), code)) for look in _looks(code)}
        if twins:  # a character without ink is no class
            merged[code] = min(twins)
            merged.update({twin: min(twins) for twin in twins})
    return tuple(chr(code) for code, smallest in merged.items() if code == smallest)


def _root(merged: dict[int, int], code: int) -> int:
    """The smallest character that ``code`` is the same as, through others if need be."""
    while merged.get(code, code) != code:
        code = merged[code]
    return code


def _looks(code: int) -> Iterator[tuple[str, tuple[int, int], bytes]]:
    """What a character looks like in each face that has it: the face, and its ink."""
    for face, known in _faces().items():
        if code in known:
            mask = _font(face, _REFERENCE_SIZE).getmask(chr(code), mode="L")
            picture = Image.frombytes("L", mask.size, bytes(mask))
            box = picture.getbbox()
            if box is not None:
                ink = picture.crop(box)
                yield face, ink.size, ink.tobytes()


def split_classes(split: str) -> tuple[str, ...]:
    """The characters of ``"train"`` (64 %), ``"validation"`` (16 %) or ``"test"`` (20 %).

    The division is fixed: it depends neither on a run's seed nor on how much is drawn.
    """
    start, stop = lookup(split, SPLITS, "split")
    characters = glyph_classes()
    order = sorted(characters, key=lambda character: derive_seed(0, "glyph split", ord(character)))
    count = len(characters)
    return tuple(sorted(order[round(start * count) : round(stop * count)]))


def draw_character(character: str, generator: np.random.Generator) -> np.ndarray:
    """One drawing, uint8 ``(28, 28)``, white ink on black."""
    faces = [face for face, codes in _faces().items() if ord(character) in codes]
    face = faces[generator.integers(len(faces))]
    size = int(generator.integers(15, 25))
    angle = math.radians(generator.uniform(-25, 25))
    shear = generator.uniform(-0.3, 0.3)
    shift_x, shift_y = generator.uniform(-2.5, 2.5, size=2) * _OVERSAMPLING
    side = SIDE * _OVERSAMPLING
    font = _font(face, size * _OVERSAMPLING)
    left, top, right, bottom = font.getbbox(character)
    canvas = Image.new("L", (side, side))
    ImageDraw.Draw(canvas).text(
        (side / 2 - (left + right) / 2, side / 2 - (top + bottom) / 2),
        character,
        fill=255,
        font=font,
    )
    # Pillow wants the map from the output back to the input, about the centre.
    cos, sin = math.cos(angle), math.sin(angle)
    a, b, c, d = cos, sin + shear * cos, -sin, cos - shear * sin
    centre = side / 2
    offset_x = centre - a * (centre + shift_x) - b * (centre + shift_y)
    offset_y = centre - c * (centre + shift_x) - d * (centre + shift_y)
    turned = canvas.transform(
        (side, side),
        Image.Transform.AFFINE,
        (a, b, offset_x, c, d, offset_y),
        resample=Image.Resampling.BILINEAR,
    )
    return np.asarray(turned.reduce(_OVERSAMPLING))


def load_glyphs(split: str = "train", *, per_class: int = 20, seed: int = 0) -> ArraySource:
    """Drawings of one split's characters, ``per_class`` of each, uint8 ``(N, 1, 28, 28)``.

    Deterministic in ``seed`` and kept in the cache folder, so that they are drawn once.
    """
    check_at_least(1, per_class=per_class)
    characters = split_classes(split)
    key = f"glyphs-{split}-{per_class}-{seed}-{_versions()}"
    cached = load_cached(key, shape=(len(characters) * per_class, 1, SIDE, SIDE))
    if cached is None:
        cached = np.empty((len(characters), per_class, 1, SIDE, SIDE), dtype=np.uint8)
        for row, character in enumerate(characters):
            generator = numpy_generator(seed, "glyph", ord(character))
            for column in range(per_class):
                cached[row, column, 0] = draw_character(character, generator)
        cached = cached.reshape(-1, 1, SIDE, SIDE)
        store_cached(key, cached)
    return ArraySource(
        torch.from_numpy(cached),
        labels=np.repeat(np.arange(len(characters)), per_class),
        class_names=characters,
        name=f"glyphs ({split})",
    )
