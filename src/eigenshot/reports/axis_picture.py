"""Accuracy along an axis, a line for each series: one panel for each thing that was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from eigenshot.reports.look import INK, colour_of, label_at_right, panels, save, style_of

_SPAN = 4  # from this ratio of the last place to the first on, an axis is logarithmic


@dataclass(frozen=True)
class Point:
    """Accuracy in percent at a place, with the half-width of its interval where it has one.

    ``collapsed`` is what has collapsed, ``otherwise`` what was made with other settings than now.
    """

    at: float
    accuracy: float
    interval: float | None = None
    collapsed: bool = False
    otherwise: bool = False


@dataclass(frozen=True)
class Series:
    """A line: its name and its points from left to right; ``place`` decides the colour."""

    label: str
    points: Sequence[Point]
    place: int


@dataclass(frozen=True)
class Panel:
    """What is measured, in words, and the series that have points in it."""

    measure: str
    series: Sequence[Series]


def is_logarithmic(places: Sequence[float]) -> bool:
    """Whether an axis with these places is: they are above 0, the last four times the first."""
    return min(places) > 0 and max(places) >= _SPAN * min(places)


def draw_along_axis(
    path: str | Path,
    shown: Sequence[Panel],
    *,
    title: str,
    axis: str,
    places: Sequence[float],
    note: str = "",
) -> None:
    """Write the picture as PNG; ``axis`` says what the horizontal axis shows.

    It has a tick at each of ``places``, whether or not something is drawn there.
    """
    width = 7.0 if len(shown) == 1 else 5.0
    figure, grid = panels(title, len(shown), width=width, height=4.4)
    for axes, panel in zip(grid, shown, strict=True):
        for series in panel.series:
            _draw(axes, series)
        if is_logarithmic(places):
            axes.set_xscale("log", base=2)
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.set_xticks([], minor=True)
        axes.set_xlabel(axis, color=INK)
        axes.set_ylabel(panel.measure, color=INK)
    label_at_right(grid[-1], _handles(shown))
    save(figure, path, note)


def _draw(axes: Axes, series: Series) -> None:
    colour = colour_of(series.place)
    axes.plot(
        [point.at for point in series.points],
        [point.accuracy for point in series.points],
        color=colour,
        linestyle=style_of(series.place),
        linewidth=1.8,
    )
    for point in series.points:
        axes.errorbar(
            point.at,
            point.accuracy,
            yerr=point.interval,
            color=colour,
            marker="X" if point.collapsed else "o",
            markersize=9 if point.collapsed else 5,
            markerfacecolor="white" if point.otherwise else colour,
            capsize=3,
        )


def _handles(shown: Sequence[Panel]) -> list[Line2D]:
    """What labels refer to: series in the order of their right ends, then the marks that occur."""
    named = {series.label: series for panel in shown for series in panel.series}
    ordered = sorted(named.values(), key=lambda series: -series.points[-1].accuracy)
    handles = [
        Line2D(
            [],
            [],
            color=colour_of(series.place),
            linestyle=style_of(series.place),
            linewidth=1.8,
            label=series.label,
        )
        for series in ordered
    ]
    points = [point for panel in shown for series in panel.series for point in series.points]
    marks = (
        ("|", INK, "95 % interval", any(point.interval is not None for point in points)),
        ("X", INK, "collapsed", any(point.collapsed for point in points)),
        ("o", "white", "made otherwise", any(point.otherwise for point in points)),
    )
    handles += [
        Line2D([], [], color=INK, linestyle="", marker=marker, markerfacecolor=fill, label=words)
        for marker, fill, words, occurs in marks
        if occurs
    ]
    return handles
