"""Learning curves of several runs in one picture: accuracy on validation classes by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from eigenshot.reports.look import (
    INK,
    colour_of,
    label_at_right,
    panels,
    save,
    shade_of,
    style_of,
)


@dataclass(frozen=True)
class Curve:
    """A run's name and its points: epochs and accuracies in percent, of one length.

    ``place`` decides the colour, so that a run has the same one in several pictures. Curves with
    the same ``panel`` are drawn together; ``shade``, from light (0) to dark (1), tells those apart
    that share a colour.
    """

    label: str
    epochs: Sequence[float]
    accuracies: Sequence[float]
    place: int
    panel: str = ""
    shade: float | None = None


def draw_curves(
    path: str | Path, curves: Sequence[Curve], *, title: str, measure: str, note: str = ""
) -> None:
    """Write the picture as PNG; ``measure`` says what the vertical axis shows.

    Labels stand at the right, in the order of the last points, each in its curve's colour. Of
    several panels, they stand below each, in the order of the curves.
    """
    names = list(dict.fromkeys(curve.panel for curve in curves))
    width, height = (9.0, 5.0) if len(names) == 1 else (3.7, 4.8)
    figure, grid = panels(title, len(names), width=width, height=height, alike=True)
    for axes, name in zip(grid, names, strict=True):
        together = [curve for curve in curves if curve.panel == name]
        lines = [_draw(axes, curve) for curve in together]
        if len(names) == 1:
            order = sorted(range(len(curves)), key=lambda number: -curves[number].accuracies[-1])
            label_at_right(axes, [lines[number] for number in order])
        else:
            axes.set_title(name, color=INK, loc="left")
            axes.legend(loc="upper left", bbox_to_anchor=(0, -0.13), frameon=False, fontsize=9)
        axes.set_xlabel("epoch", color=INK)
        axes.set_xlim(left=0)
    grid[0].set_ylabel(measure, color=INK)
    save(figure, path, note)


def _draw(axes: Axes, curve: Curve) -> Line2D:
    colour = colour_of(curve.place)
    (line,) = axes.plot(
        curve.epochs,
        curve.accuracies,
        color=colour if curve.shade is None else shade_of(colour, curve.shade),
        linestyle=style_of(curve.place),
        linewidth=1.8,
        marker="o" if len(curve.epochs) == 1 else None,
        label=f"{curve.label}, {curve.accuracies[-1]:.1f}",
    )
    return line
