"""What a run is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn

from eigenshot.config import Config
from eigenshot.data.source import Source
from eigenshot.data.views.views import TwoViews
from eigenshot.encoder import Encoder
from eigenshot.training.average import WeightAverage
from eigenshot.training.schedule import Schedule, first_step, schedule_of

# Compiled functions: the owner, the name of its own function, what stands in for it.
Programs: TypeAlias = list[tuple[Any, str, Any]]


@dataclass
class Parts:
    """Everything a run is made of, ready to train."""

    config: Config
    source: Source
    method: nn.Module
    views: TwoViews
    encoder: Encoder
    fabric: Any
    labels: torch.Tensor | None = None  # (images,) class numbers, where the method learns from them
    average: WeightAverage | None = None
    seconds_a_step: float | None = None  # once it has been measured
    programs: Programs = field(default_factory=list)

    @property
    def steps_an_epoch(self) -> int:
        """Optimiser steps of one pass over the images; a last, incomplete batch is left out."""
        return len(self.source) // int(self.config.training.batch_size)

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

    def view_size(self, step: int) -> int:
        """The side of the views at ``step``."""
        stages = self.config.training.resolution
        reached = [side for share, side in stages if first_step(share, self.total_steps) <= step]
        return reached[-1] if reached else self.source.shape[1]
