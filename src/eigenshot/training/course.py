"""The course of a run: what happens at which step, by its settings and the number of its images."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from eigenshot.config import Config
from eigenshot.training.schedule import Schedule, first_step, schedule_of

_ROUNDING = 1e-9  # of a share: 1 - 0.7 is a little more than 0.3


@dataclass(frozen=True)
class Course:
    """Rates and sizes of views, step by step.

    Settings are in epochs and in shares of a run. What is decided of two runs is decided in steps:
    a share of one and another share of the other may round to the same.
    """

    config: Config
    images: int

    @property
    def steps_an_epoch(self) -> int:
        """Optimiser steps of one pass over the images; a last, incomplete batch is left out."""
        return self.images // int(self.config.training.batch_size)

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.config.training.epochs * self.steps_an_epoch

    @property
    def schedule(self) -> Schedule:
        """The learning rate of every step."""
        return schedule_of(
            self.config.optimizer,
            steps_an_epoch=self.steps_an_epoch,
            total_steps=self.total_steps,
        )

    def epochs(self, step: int) -> float:
        """How many epochs ``step`` steps are."""
        return step / self.steps_an_epoch

    def size_changes(self, *, until: int) -> list[tuple[int, int]]:
        """Steps before ``until`` from which on views have another side, and that side."""
        changes = [
            (first_step(share, self.total_steps), side)
            for share, side in self.config.training.resolution
        ]
        return [(step, side) for step, side in changes if step < until]

    def view_size(self, step: int) -> int | None:
        """The side of the views at ``step``; None where it is that of the images."""
        reached = self.size_changes(until=step + 1)
        return reached[-1][1] if reached else None

    def stretches(self, *, first: int = 0) -> list[tuple[int, int, int | None]]:
        """From which step to before which views have which side, from step ``first`` to the end."""
        begins = {first, *(step for step, _ in self.size_changes(until=self.total_steps))}
        begins = {step for step in begins if first <= step < self.total_steps}
        return [
            (begin, end, self.view_size(begin))
            for begin, end in itertools.pairwise([*sorted(begins), self.total_steps])
        ]

    def sizes_in_words(self, *, until: int) -> str:
        """What `size_changes` has, for a person."""
        texts = [
            f"{side} px from epoch {self.epochs(step):g} on"
            for step, side in self.size_changes(until=until)
        ]
        return ", ".join(texts) or "the images' own size"


def stretched(old: Config, new: Config) -> tuple[tuple[float, int], ...]:
    """The sizes of the views of ``old``, in shares of a run with the length of ``new``.

    They change at the steps at which they did while the rate stayed, and at the same share of its
    fall.
    """
    ratio = old.training.epochs / new.training.epochs
    falls, falls_now = _fall(old), _fall(new)
    stages = []
    for share, side in old.training.resolution:
        if share < falls - _ROUNDING:
            moved = share * ratio
        else:
            along = (share - falls) / (1 - falls)
            moved = falls_now + along * (1 - falls_now)
        # Digits enough to come to the same step in runs of any length.
        stages.append((round(moved, 15), side))
    return tuple(stage for stage in stages if stage[0] < 1)  # none where nothing falls any more


def _fall(config: Config) -> float:
    """The share of a run with a trapezoid at which its rate begins to fall."""
    epochs, warmup = config.training.epochs, config.optimizer.warmup_epochs
    return max(min(warmup / epochs, 0.5), 1 - config.optimizer.cooldown)
