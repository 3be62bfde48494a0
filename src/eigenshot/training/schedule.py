"""What a run does when: the learning rate as a function of the step, and the step of a share."""

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
        """The step from which on the rate falls."""
        if self.cooldown_steps is None:
            return self.warmup_steps
        return max(self.warmup_steps, self.total_steps - self.cooldown_steps)

    @property
    def same_until(self) -> int | None:
        """The step up to which a longer run has the same rates; None where there is none."""
        return None if self.cooldown_steps is None else self.plateau_end

    def __call__(self, step: int) -> float:
        """The rate of ``step``, from 0 on."""
        if step < self.warmup_steps:
            return self.base * (step + 1) / (self.warmup_steps + 1)
        falling = (step - self.plateau_end) / max(1, self.total_steps - self.plateau_end)
        if self.cooldown_steps is None:
            return self.base * 0.5 * (1 + math.cos(math.pi * falling))
        return self.base * min(1.0, 1 - falling)


def first_step(share: float, total_steps: int) -> int:
    """The first step at which ``share`` of a run of ``total_steps`` steps is done."""
    # A share is seldom exact in binary: 0.3 of 50 is not to be more than 15.
    return math.ceil(share * total_steps - 1e-6)


def schedule_of(settings: OptimizerConfig, *, steps_an_epoch: int, total_steps: int) -> Schedule:
    """The rates of a run with these settings; a warm-up takes at most half of it."""
    warmup = round(settings.warmup_epochs * steps_an_epoch)
    cooldown = None
    if settings.schedule == "trapezoid":
        cooldown = total_steps - first_step(1 - settings.cooldown, total_steps)
    return Schedule(settings.lr, total_steps, min(warmup, total_steps // 2), cooldown)
