"""The learning rate as a function of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eigenshot.config import OptimizerConfig


@dataclass(frozen=True)
class Schedule:
    """The rates of a run of ``total_steps`` steps.

    Linear from 0 over ``warmup_steps``, then half a cosine from ``base`` down to 0; or, where
    ``cooldown_steps`` says how many steps that takes, constant until there and in a line down to 0.
    The last step still has a positive rate; the step after it would have 0.
    """

    base: float
    total_steps: int
    warmup_steps: int = 0
    cooldown_steps: int | None = None

    @property
    def plateau_end(self) -> int:
        """The first step whose rate depends on how long the run is."""
        if self.cooldown_steps is None:
            return self.warmup_steps
        return max(self.warmup_steps, self.total_steps - self.cooldown_steps)

    def __call__(self, step: int) -> float:
        """The rate of ``step``, from 0 on."""
        if step < self.warmup_steps:
            return self.base * (step + 1) / (self.warmup_steps + 1)
        falling = (step - self.plateau_end) / max(1, self.total_steps - self.plateau_end)
        if self.cooldown_steps is None:
            return self.base * 0.5 * (1 + math.cos(math.pi * falling))
        return self.base * min(1.0, 1 - falling)


def schedule_of(settings: OptimizerConfig, *, steps_an_epoch: int, total_steps: int) -> Schedule:
    """The rates of a run with these settings; a warm-up takes at most half of it."""
    warmup = round(settings.warmup_epochs * steps_an_epoch)
    cooldown = round(settings.cooldown * total_steps) if settings.schedule == "trapezoid" else None
    return Schedule(settings.lr, total_steps, min(warmup, total_steps // 2), cooldown)
