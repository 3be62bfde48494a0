"""The look that pictures of accuracies share: colours, panels, labels at the right."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image, UnidentifiedImageError

from eigenshot.files import atomic_write

INK = "#222222"
# Distinct in grey and to most eyes; dashes tell apart what is more than these.
_COLOURS = ("#1f5fa8", "#c8102e", "#1a7f4b", "#e08a00", "#7a3e9d", "#4d4d4d", "#00838f", "#b0556f")
_STYLES: tuple[Literal["-", "--", ":"], ...] = ("-", "--", ":")
_WHITE, _BLACK = 0.65, 0.5  # how much of it the lightest and the darkest shade have
_ITSELF = 0.6  # where among the shades the colour itself stands
_ACROSS = 3  # panels beside each other
_NOTE = "Description"  # PNG's word for it


def colour_of(place: int) -> str:
    """The colour of what stands at ``place`` among its peers."""
    return _COLOURS[place % len(_COLOURS)]


def style_of(place: int) -> Literal["-", "--", ":"]:
    """The dashes that tell apart what has the same colour."""
    return _STYLES[place // len(_COLOURS) % len(_STYLES)]


def shade_of(colour: str, share: float) -> str:
    """A shade of ``colour``, from light (0) to dark (1)."""
    white = float(np.interp(share, [0, _ITSELF], [_WHITE, 0]))
    black = float(np.interp(share, [_ITSELF, 1], [0, _BLACK]))
    red, green, blue = ((part * (1 - white) + white) * (1 - black) for part in to_rgb(colour))
    return to_hex((red, green, blue))


def panels(
    title: str, count: int, *, width: float, height: float, alike: bool = False
) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, each of this size in inches, under one title.

    Where they are ``alike``, they have one vertical axis.
    """
    across, down = min(count, _ACROSS), -(-count // _ACROSS)
    figure = Figure(figsize=(width * across, height * down), facecolor="white")
    FigureCanvasAgg(figure)
    grid = list(figure.subplots(down, across, squeeze=False, sharey=alike).flat)
    for unused in grid[count:]:
        unused.remove()
    for axes in grid[:count]:
        axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    if count == 1:
        grid[0].set_title(title, color=INK, loc="left")
    else:
        figure.set_layout_engine("constrained", w_pad=0.12)
        figure.suptitle(title, color=INK, x=0.01, ha="left")
    return figure, grid[:count]


def label_at_right(axes: Axes, handles: Sequence[Line2D]) -> None:
    """Name lines beside their panel, each in its colour."""
    axes.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=9,
        labelcolor=[handle.get_color() for handle in handles],
    )


def save(figure: Figure, path: str | Path, note: str = "") -> None:
    """Write the picture as PNG, whole or not at all, with a ``note`` in it that `note_of` reads."""
    metadata = {_NOTE: note} if note else None
    with atomic_write(path) as handle:
        figure.savefig(handle, format="png", dpi=110, bbox_inches="tight", metadata=metadata)


def note_of(path: str | Path) -> str:
    """What `save` noted in a picture; empty where there is none, or no picture."""
    try:
        with Image.open(path) as picture:
            return str(picture.info.get(_NOTE, ""))
    except UnidentifiedImageError:
        return ""
