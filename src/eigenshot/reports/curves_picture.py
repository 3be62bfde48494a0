"""Learning curves of several runs in one picture: accuracy on validation classes by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from eigenshot.files import atomic_write
from eigenshot.reports.demo_picture import INK

# Distinct in grey and to most eyes; dashes tell apart what is more than these.
_COLOURS = ("#1f5fa8", "#c8102e", "#1a7f4b", "#e08a00", "#7a3e9d", "#4d4d4d", "#00838f", "#b0556f")
_STYLES = ("-", "--", ":")


@dataclass(frozen=True)
class Curve:
    """A run's name and its points: epochs and accuracies in percent, of one length.

    ``place`` decides the colour, so that a run has the same one in several pictures.
    """

    label: str
    epochs: Sequence[float]
    accuracies: Sequence[float]
    place: int


def draw_curves(path: str | Path, curves: Sequence[Curve], *, title: str, measure: str) -> None:
    """Write the picture as PNG; ``measure`` says what the vertical axis shows.

    Labels stand at the right, in the order of the last points, each in its curve's colour.
    """
    figure = Figure(figsize=(9, 5), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for curve in curves:
        axes.plot(
            curve.epochs,
            curve.accuracies,
            color=_COLOURS[curve.place % len(_COLOURS)],
            linestyle=_STYLES[curve.place // len(_COLOURS) % len(_STYLES)],
            linewidth=1.8,
            marker="o" if len(curve.epochs) == 1 else None,
            label=f"{curve.label}, {curve.accuracies[-1]:.1f}",
        )
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(curves)), key=lambda number: -curves[number].accuracies[-1])
    axes.legend(
        [handles[number] for number in order],
        [labels[number] for number in order],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=9,
        labelcolor="linecolor",
    )
    axes.set_xlabel("epoch", color=INK)
    axes.set_ylabel(measure, color=INK)
    axes.set_title(title, color=INK, loc="left")
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlim(left=0)
    with atomic_write(path) as handle:
        figure.savefig(handle, format="png", dpi=110, bbox_inches="tight")
