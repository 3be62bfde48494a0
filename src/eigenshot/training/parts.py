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
from eigenshot.training.course import Course

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
    seconds: dict[int, float] = field(default_factory=dict)  # a step takes, by the side of views
    programs: Programs = field(default_factory=list)

    @property
    def course(self) -> Course:
        """What happens at which step."""
        return Course(self.config, len(self.source))

    def view_size(self, step: int) -> int:
        """The side of the views at ``step``."""
        return self.course.view_size(step) or self.source.shape[1]
