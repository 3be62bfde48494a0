"""One picture that shows the demonstration to a person."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from eigenshot.evaluation.fewshot import FewShotResult
from eigenshot.files import atomic_write
from eigenshot.reports.look import INK

RIGHT, WRONG = "#1a7f4b", "#c8102e"
_COLOURS = {"pixels": "#b8b8b8", "untrained": "#8fa9c4", "learned": "#1f5fa8"}


@dataclass(frozen=True)
class Example:
    """One task: pictures of the support ``(ways, side, side)`` and of the queries
    ``(ways, queries, side, side)``, and the class that each representation predicts,
    ``(ways, queries)``."""

    support: np.ndarray
    query: np.ndarray
    predictions: dict[str, np.ndarray]


def draw_demo(
    path: str | Path,
    example: Example,
    results: dict[str, dict[int, FewShotResult]],
    names: dict[str, str],
) -> None:
    """Write the picture: a task before and after learning, and the accuracies over all tasks."""
    figure = Figure(figsize=(14, 4.6), facecolor="white")
    FigureCanvasAgg(figure)
    before, after, bars = figure.subplots(1, 3, width_ratios=[1, 1, 0.72])
    for axes, key, title in (
        (before, "untrained", "Before learning"),
        (after, "learned", "After learning, without labels"),
    ):
        _draw_task(axes, example, key)
        predicted = example.predictions[key]
        correct = int((predicted == np.arange(len(predicted))[:, None]).sum())
        axes.set_title(f"{title}\n{correct} of {predicted.size} right", fontsize=12, color=INK)
    figure.suptitle(
        "Five characters never seen in training, one example each: "
        "which of the five is each drawing?",
        fontsize=14,
        color=INK,
    )
    figure.subplots_adjust(left=0.01, right=0.985, top=0.8, bottom=0.07, wspace=0.06)
    _draw_bars(bars, results, names)
    with atomic_write(path) as handle:
        figure.savefig(handle, format="png", dpi=110)


def _draw_task(axes: Axes, example: Example, key: str) -> None:
    """The example of each class at the left, its queries beside it, framed by right or wrong."""
    ways, queries = example.query.shape[:2]
    axes.set(xlim=(-1.75, queries), ylim=(ways, -0.35), aspect="equal")
    axes.axis("off")
    axes.text(-1.15, -0.1, "example", ha="center", fontsize=9)
    axes.text(queries / 2, -0.1, "drawings to read, and the answer", ha="center", fontsize=9)
    for way in range(ways):
        _place(axes, example.support[way], -1.15, way + 0.5, 0.84, INK, inverted=True)
        for column in range(queries):
            answer = int(example.predictions[key][way, column])
            colour = RIGHT if answer == way else WRONG
            _place(axes, example.query[way, column], column + 0.5, way + 0.5, 0.84, colour)
            if answer != way:  # the wrong answer, small in the corner
                support = example.support[answer]
                _place(axes, support, column + 0.77, way + 0.77, 0.34, WRONG, inverted=True)


def _place(
    axes: Axes,
    picture: np.ndarray,
    x: float,
    y: float,
    side: float,
    colour: str,
    inverted: bool = False,
) -> None:
    box = (x - side / 2, x + side / 2, y + side / 2, y - side / 2)
    shown = picture if inverted else 255 - picture
    axes.imshow(shown, cmap="gray", vmin=0, vmax=255, extent=box, interpolation="bilinear")
    axes.add_patch(
        Rectangle((box[0], box[3]), side, side, fill=False, edgecolor=colour, linewidth=1.8)
    )


def _draw_bars(
    axes: Axes, results: dict[str, dict[int, FewShotResult]], names: dict[str, str]
) -> None:
    width = 0.26
    groups = list(next(iter(results.values())))
    for offset, (key, by_shots) in enumerate(results.items()):
        for group, shots in enumerate(groups):
            result = by_shots[shots]
            place = group + (offset - 1) * width
            axes.bar(
                place,
                result.accuracy,
                width * 0.92,
                yerr=result.ci95,
                color=_COLOURS[key],
                ecolor=INK,
                label=names[key] if group == 0 else None,
            )
            axes.text(
                place, result.accuracy + 1.5, f"{result.accuracy:.1f}", ha="center", fontsize=9
            )
    axes.axhline(20, color=INK, linewidth=0.8, linestyle=":")
    axes.text(1.42, 21.5, "guessing", fontsize=8)
    axes.set_xticks(range(len(groups)), [f"{n} example{'s' * (n > 1)}" for n in groups])
    episodes = len(next(iter(results.values()))[groups[0]].per_episode)
    axes.set(xlim=(-0.5, 1.8), ylim=(0, 130), yticks=range(0, 101, 20))
    axes.set_title(f"Accuracy in %, over {episodes:,} tasks\nof 5 unseen characters", fontsize=12)
    box = axes.get_position()
    axes.set_position((box.x0 + 0.025, box.y0, box.width - 0.025, box.height))  # room for ticks
    axes.legend(loc="upper left", fontsize=9, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
