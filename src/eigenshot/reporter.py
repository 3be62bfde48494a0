"""What a person sees of a run while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

_REFRESH_SECONDS = 0.5


def duration(seconds: float) -> str:
    """Seconds in words a person reads: ``"2 h 10 min"``."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.1f} days"


def count_epochs(count: int) -> str:
    """``"1 epoch"``, ``"2 epochs"``."""
    return f"{count} epoch{'' if count == 1 else 's'}"


class Reporter:
    """Says nothing; the base of reporters that do."""

    def note(self, text: str) -> None:
        """Something worth knowing."""

    def warn(self, text: str) -> None:
        """Something that is probably wrong."""

    def counting(self, what: str) -> Callable[[int, int], None]:
        """A ``progress(done, total)`` callback for a preparation."""
        return lambda done, total: None

    def begin(self, total_steps: int, step: int) -> None:
        """Training starts, or goes on, at ``step``."""

    def due(self) -> bool:
        """Whether `advance` would show anything now; asking costs nothing."""
        return False

    def advance(self, step: int, images_per_second: float, terms: dict[str, float]) -> None:
        """``step`` steps are done; means of the loss terms in this epoch."""

    def epoch(self, record: dict[str, float]) -> None:
        """An epoch has ended with these metrics."""

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *details: object) -> None:
        """The run has ended or broken off."""


class ConsoleReporter(Reporter):
    """A progress bar on a terminal, one line an epoch elsewhere; ``prefix`` begins each line."""

    def __init__(self, console: Console, epochs: int | None = None, *, prefix: str = "") -> None:
        self.console = console
        self.epochs = epochs
        self.prefix = prefix
        self._counting: Progress | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._shown = 0.0

    def note(self, text: str) -> None:
        self._say(text)

    def warn(self, text: str) -> None:
        self._say(f"warning: {text}", style="yellow")

    def _say(self, text: str, style: str | None = None) -> None:
        self.console.print(
            self.prefix + text, style=style, highlight=False, markup=False, soft_wrap=True
        )

    def counting(self, what: str) -> Callable[[int, int], None]:
        bar = Progress(
            SpinnerColumn(),
            TextColumn(what),
            BarColumn(),
            MofNCompleteColumn(),
            console=self.console,
            transient=True,
        )
        task = bar.add_task(what, total=None)

        def progress(done: int, total: int) -> None:
            if not self.console.is_terminal:
                return
            self._counting = bar
            bar.start()
            bar.update(task, completed=done, total=total)
            if done >= total:
                self._stop_counting()

        return progress

    def begin(self, total_steps: int, step: int) -> None:
        if not self.console.is_terminal:
            return
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[terms]}"),
            console=self.console,
            transient=True,
            auto_refresh=False,  # a thread that draws would take turns with the one that trains
        )
        self._task = self._bar.add_task("", total=total_steps, completed=step, rate="", terms="")
        self._bar.start()

    def due(self) -> bool:
        return self._bar is not None and time.monotonic() - self._shown >= _REFRESH_SECONDS

    def advance(self, step: int, images_per_second: float, terms: dict[str, float]) -> None:
        if self._bar is None or self._task is None:
            return
        self._shown = time.monotonic()
        self._bar.update(
            self._task,
            completed=step,
            rate=f"{images_per_second:,.0f} images/s",
            terms=_terms(terms),
            refresh=True,
        )

    def epoch(self, record: dict[str, float]) -> None:
        known = {"epoch", "step", "lr", "seconds", "images_per_second", "effective_rank"}
        known |= {
            "z_std_mean",
            "z_std_min",
            "z_std_share",
            "alignment",
            "uniformity",
            "relative_step",
        }
        terms = _terms({name: value for name, value in record.items() if name not in known})
        of = f"/{self.epochs}" if self.epochs else ""
        self._say(
            f"epoch {record['epoch']:.0f}{of}  {terms}  rank {record['effective_rank']:.1f}  "
            f"{record['images_per_second']:,.0f} images/s"
        )

    def __exit__(self, *details: object) -> None:
        self._stop_counting()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _stop_counting(self) -> None:
        if self._counting is not None:  # until it is stopped it hides the cursor
            self._counting.stop()
            self._counting = None


def _terms(values: dict[str, float]) -> str:
    return "  ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in values.items())
