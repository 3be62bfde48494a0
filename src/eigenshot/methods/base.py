"""What a method is: a module that turns two views of a batch into named loss terms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from eigenshot.networks import Backbone, Projector
from eigenshot.networks.apart import halves_apart
from eigenshot.networks.projector import Standardize
from eigenshot.options import parameters_of

_AFTER_STEP = ("after_step", "momentum_at")


class Interpolation(Protocol):
    """What is done to the samples of a batch at one layer, 0 being the input."""

    @property
    def layer(self) -> int:
        """After how many stages."""

    def __call__(self, x: Tensor) -> Tensor:
        """``(batch, …)`` to the same shape."""


class Method(nn.Module):
    """Base of the self-supervised methods.

    A subclass implements ``forward(view_a, view_b)`` and returns a dictionary of scalar tensors
    whose entry ``"loss"`` is minimised; the other entries are logged. The training loop knows no
    method by name: it calls, in this order, ``draw``, ``forward``, the optimiser and
    ``after_step``.

    A subclass that has an ``objective`` too, with ``forward`` equal to
    ``objective(*represent(view_a, view_b, drawn), drawn)``, can have the loss of a whole batch that
    goes through the network in parts (`eigenshot.training.accumulation`).

    A class that says ``capturable = True`` has a ``forward`` that may run as a CUDA graph: all that
    changes from step to step is in the views, the weights, the buffers and the tensors of what was
    drawn, and it is changed in place. Python in it runs once, not at every step. A subclass that
    overrides what a forward pass runs says so again. ``after_step`` is never part of a graph.

    Parameters
    ----------
    backbone : the network that is kept after training.
    projector : the head on which the loss works and which is discarded. Shapes: ``(batch,
        backbone.out_features)`` to ``(batch, K)``.
    """

    capturable: ClassVar[bool] = False
    # What a person is told whose embedding has collapsed.
    against_collapse: ClassVar[str] = "a lower learning rate usually helps"

    def __init__(self, backbone: Backbone, projector: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector
        # Whether both views take one pass. The numbers are the same up to what dropout draws.
        self.joint = False

    def draw(self, batch_size: int, generator: np.random.Generator, blocks: int = 1) -> Any | None:
        """The random choices of one step that are made on the host, or None.

        What is returned here is handed to ``forward`` as its third argument. Keeping the choice
        outside the forward pass makes a step a function of its arguments.

        Where several processes train together, ``batch_size`` is that of this rank's block, and
        every rank is handed the same generator: what is drawn alike is alike on all ranks.

        A batch that goes through the network in parts has that many ``blocks``, one after the
        other and of one size. What is drawn then has ``part(index, count)``, the choices of one
        of them, so no image may need another block's.
        """
        return None

    def represent(
        self, view_a: Tensor, view_b: Tensor, drawn: Any | None = None
    ) -> tuple[Tensor, Tensor]:
        """What the loss is computed from, one row an image: ``(batch, K)`` for each view.

        It is the projector's output before the `Standardize` at its end, the last place where an
        image's row depends on no other part of the batch, batch normalisation aside.
        """
        with _without_standardize(self.projector):
            return self.embed_pair(view_a, view_b, drawn)

    def standardised(self, rows: Tensor) -> Tensor:
        """Embeddings of one view from its rows of `represent`, ``(batch, K)`` to the same shape."""
        _, last = _split(self.projector)
        return rows if last is None else last(rows)

    @property
    def standardises(self) -> bool:
        """Whether embeddings have unit variance in every dimension."""
        return _split(self.projector)[1] is not None

    def objective(
        self, rows_a: Tensor, rows_b: Tensor, drawn: Any | None = None
    ) -> dict[str, Tensor]:
        """Loss terms, as of ``forward``, from the rows of `represent`, each ``(batch, K)``."""
        raise NotImplementedError(f"{type(self).__name__} has no objective")

    def embed(self, images: Tensor) -> Tensor:
        """Embeddings z of normalised images: ``(batch, C, H, W)`` to ``(batch, K)``."""
        embeddings: Tensor = self.projector(self.backbone(images))
        return embeddings

    def embed_pair(
        self, view_a: Tensor, view_b: Tensor, mix: Interpolation | None = None
    ) -> tuple[Tensor, Tensor]:
        """Embeddings of two views, each ``(batch, C, H, W)`` to ``(batch, K)``.

        ``mix`` interpolates what flows through its layer on the way of the second view. Each view
        has batch statistics of its own.
        """
        return embed_pair(self.backbone, self.projector, view_a, view_b, mix, joint=self.joint)

    def after_step(self, progress: float) -> None:
        """Called on the host after every optimiser step: moving averages, queues.

        ``progress`` is the share of the run's steps that are done, above 0 and at the end 1.
        """

    @property
    def goes_by_length(self) -> bool:
        """Whether `after_step` does something else after as many steps of a longer run.

        A class with an `after_step` of its own says so anew; where it does not, see `heeds_length`.
        """
        return False

    def remarks(self, images: int, at_once: int) -> list[str]:
        """What a person should know of this method before it learns from so many images.

        Sentences, or none. ``at_once`` of this process's images go through the network together.
        """
        return []

    def constant_rate(self) -> list[nn.Parameter]:
        """Parameters whose learning rate stays as it starts, where a method wants that."""
        return []


def embed_pair(
    backbone: Backbone,
    projector: nn.Module,
    view_a: Tensor,
    view_b: Tensor,
    mix: Interpolation | None = None,
    *,
    joint: bool = False,
) -> tuple[Tensor, Tensor]:
    """Embeddings of two views, each ``(batch, C, H, W)`` to ``(batch, K)``, by any two networks.

    ``mix`` interpolates on the way of the second view. ``joint`` takes both in one pass, with
    layers that `eigenshot.networks.apart` has made ready for it.
    """
    if not joint:
        return projector(backbone(view_a)), projector(mixed_features(backbone, view_b, mix))
    with halves_apart(backbone, projector):
        both = torch.cat([view_a, view_b])
        first = 0
        if mix is not None:
            first = mix.layer
            clean, other = backbone.forward_stages(both, 0, first).chunk(2)
            both = torch.cat([clean, mix(other)])
        embeddings: Tensor = projector(backbone.pool(backbone.forward_stages(both, first)))
    z_a, z_b = embeddings.chunk(2)
    return z_a, z_b


def mixed_features(backbone: Backbone, view: Tensor, mix: Interpolation | None) -> Tensor:
    """f_L(λ g_L(x_i) + (1 − λ) g_L(x_j)), Eq. 11 of the paper, up to the projector.

    ``(batch, C, H, W)`` to ``(batch, out_features)``.
    """
    if mix is None:
        return backbone(view)
    hidden = mix(backbone.forward_stages(view, 0, mix.layer))
    return backbone.pool(backbone.forward_stages(hidden, mix.layer))


def exact(z: Tensor) -> Tensor:
    """At least float32: a sum over thousands of products has no place in half precision."""
    return z.float() if z.dtype in (torch.float16, torch.bfloat16) else z


def _split(projector: nn.Module) -> tuple[nn.Module, Standardize | None]:
    """A projector as what comes before the `Standardize` at its end, and that, if it has one."""
    layers = projector.layers if isinstance(projector, Projector) else projector
    if isinstance(layers, Standardize):
        return nn.Identity(), layers
    last = layers[-1] if isinstance(layers, nn.Sequential) and len(layers) else None
    if not isinstance(layers, nn.Sequential) or not isinstance(last, Standardize):
        return projector, None
    return layers[:-1], last


@contextlib.contextmanager
def _without_standardize(projector: nn.Module) -> Iterator[None]:
    """Within the block ``projector`` leaves out the `Standardize` at its end, if it has one.

    Its ``forward`` is replaced, not the layer's: a compiled one may stand in for it, and would not
    notice a change further down.
    """
    before, last = _split(projector)
    if last is None:
        yield
        return
    standing_in = vars(projector).get("forward")
    projector.forward = before.forward
    try:
        yield
    finally:
        del projector.forward
        if standing_in is not None:
            projector.forward = standing_in


def takes_progress(method: nn.Module) -> bool:
    """Whether ``after_step`` of a method, which need not be a `Method`, is told the progress."""
    after_step = getattr(method, "after_step", None)
    return callable(after_step) and bool(parameters_of(after_step))


def heeds_length(method: nn.Module) -> bool:
    """Whether what ``method`` does after a step depends on how long the run is.

    A class that has inherited ``goes_by_length`` and has an ``after_step`` of its own has vouched
    for nothing: if that is told the progress, it may well heed it.
    """
    classes = type(method).__mro__
    owner = next((n for n, kind in enumerate(classes) if "goes_by_length" in vars(kind)), None)
    overridden = any(name in vars(kind) for kind in classes[:owner] for name in _AFTER_STEP)
    if owner is None or overridden:
        return takes_progress(method)
    return bool(method.goes_by_length)
