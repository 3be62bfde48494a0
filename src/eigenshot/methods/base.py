"""What a method is: a module that turns two views of a batch into named loss terms."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from eigenshot.networks import Backbone


class Method(nn.Module):
    """Base of the self-supervised methods.

    A subclass implements ``forward(view_a, view_b)`` and returns a dictionary of scalar tensors
    whose entry ``"loss"`` is minimised; the other entries are logged. The training loop knows no
    method by name: it calls, in this order, ``draw``, ``forward``, the optimiser and
    ``after_step``.

    Parameters
    ----------
    backbone : the network that is kept after training.
    projector : the head on which the loss works and which is discarded. Shapes: ``(batch,
        backbone.out_features)`` to ``(batch, K)``.
    """

    def __init__(self, backbone: Backbone, projector: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector

    def draw(self, batch_size: int, generator: np.random.Generator) -> Any | None:
        """The random choices of one step that are made on the host, or None.

        What is returned here is handed to ``forward`` as its third argument. Keeping the choice
        outside the forward pass makes a step a function of its arguments.

        Where several processes train together, ``batch_size`` is that of this rank's block, and
        every rank is handed the same generator: what is drawn alike is alike on all ranks.
        """
        return None

    def embed(self, images: Tensor) -> Tensor:
        """Embeddings z of normalised images: ``(batch, C, H, W)`` to ``(batch, K)``."""
        embeddings: Tensor = self.projector(self.backbone(images))
        return embeddings

    def after_step(self) -> None:
        """Called after every optimiser step: moving averages, queues."""
