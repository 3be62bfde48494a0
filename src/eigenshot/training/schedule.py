"""The learning rate as a function of the step."""

from __future__ import annotations

import math


def learning_rate(step: int, *, base: float, total_steps: int, warmup_steps: int = 0) -> float:
    """Linear from 0 over ``warmup_steps``, then half a cosine from ``base`` down to 0.

    The last step, ``total_steps - 1``, still has a positive rate; the step after it would have 0.
    """
    if step < warmup_steps:
        return base * (step + 1) / (warmup_steps + 1)
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return base * 0.5 * (1 + math.cos(math.pi * progress))
