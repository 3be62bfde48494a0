"""One optimiser step: images in, loss terms out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigenshot.data.augment import TwoViews
from eigenshot.data.source import Source
from eigenshot.randomness import derive_seed, numpy_generator, torch_generator


class EagerStep:
    """A step run operation by operation: the form that works on every device.

    A step depends on the weights, the indices, the learning rate and (seed, number) alone, so
    another way to run it, such as a captured graph, can stand in its place.
    """

    def __init__(
        self,
        fabric: Any,
        method: nn.Module,
        optimizer: torch.optim.Optimizer,
        views: TwoViews,
        source: Source,
        seed: int,
    ) -> None:
        self.fabric = fabric
        self.method = method
        self.optimizer = optimizer
        self.module, self.stepper = fabric.setup(method, optimizer)
        self.views = views
        self.source = source
        self.seed = seed

    def __call__(self, number: int, indices: np.ndarray, rate: float) -> dict[str, Tensor]:
        """Step ``number`` on the images at ``indices`` with learning rate ``rate``."""
        device = self.fabric.device
        images = self.source.images(indices).to(device)
        generator = torch_generator(self.seed, "augment", number, device=device)
        view_a, view_b = (
            view.contiguous(memory_format=torch.channels_last)
            for view in self.views(images, generator)
        )
        # Dropout and its kin draw from torch's own generator.
        torch.manual_seed(derive_seed(self.seed, "module", number))
        terms: dict[str, Tensor] = self.module(view_a, view_b, *self._draw(number, len(indices)))
        self.stepper.zero_grad()
        self.fabric.backward(terms["loss"])
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.stepper.step()
        if callable(after_step := getattr(self.method, "after_step", None)):
            after_step()
        return terms

    def _draw(self, number: int, batch_size: int) -> tuple[Any, ...]:
        """The method's own choices for this step, as further arguments of its forward."""
        draw = getattr(self.method, "draw", None)
        generator = numpy_generator(self.seed, "method", number)
        drawn = draw(batch_size, generator) if callable(draw) else None
        if drawn is None:
            return ()
        return (drawn.to(self.fabric.device) if hasattr(drawn, "to") else drawn,)
