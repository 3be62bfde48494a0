"""Arithmetic of batch normalisation, for layers that take their statistics in ways of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from eigenshot.networks.keeping import copied_buffers, layers_with, modes_kept, put_back


def follow(layer: nn.modules.batchnorm._BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Let the layer's running statistics, if it has any, move on to those of a batch.

    ``mean`` and the unbiased ``variance`` are ``(channels,)``.
    """
    if not layer.track_running_stats or layer.running_mean is None:
        return
    assert layer.running_var is not None
    assert layer.num_batches_tracked is not None
    layer.num_batches_tracked.add_(1)
    share = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), share)
    layer.running_var.lerp_(variance.to(layer.running_var.dtype), share)


@contextlib.contextmanager
def measuring(module: nn.Module) -> Iterator[None]:
    """Within the block batch normalisation takes its running statistics anew.

    They are the mean over the batches that go through ``module`` meanwhile; a layer through which
    none goes, or that stays in evaluation mode when told to train, keeps its own. Every other layer
    is in evaluation mode. Afterwards all are in the mode that they were in.
    """
    kind = nn.modules.batchnorm._BatchNorm
    layers = [part for part in module.modules() if isinstance(part, kind)]
    before = [(layer, layer.momentum, copied_buffers(layer)) for layer in layers]
    with modes_kept(module):
        module.eval()
        for layer in layers:
            layer.train()
            if layer.training:
                layer.reset_running_stats()
                layer.momentum = None  # torch's word for a plain mean
        try:
            yield
        finally:
            for layer, momentum, statistics in before:
                layer.momentum = momentum
                if layer.num_batches_tracked is not None and not layer.num_batches_tracked:
                    put_back(layer, statistics)


def untracked(module: nn.Module) -> AbstractContextManager[None]:
    """Within the block batch normalisation keeps nothing of the batches that it normalises."""
    return layers_with("track_running_stats", False, nn.modules.batchnorm._BatchNorm, module)


def scaled(
    layer: nn.modules.batchnorm._BatchNorm, centred: Tensor, variance: Tensor, dimensions: int
) -> Tensor:
    """Centred values with variance 1, or with the layer's own scale and mean if it has them.

    ``variance`` broadcasts against ``centred``, which has ``dimensions`` dimensions from the batch
    on, and may have others before.
    """
    scale = torch.rsqrt(variance + layer.eps)
    if layer.weight is not None:
        scale = scale * per_channel(layer.weight, dimensions)
    normalised = centred * scale
    return normalised if layer.bias is None else normalised + per_channel(layer.bias, dimensions)


def per_channel(values: Tensor, dimensions: int) -> Tensor:
    """``(channels,)`` in the form that broadcasts against ``(batch, channels, …)``.

    ``dimensions`` is how many those are: 4 for maps, 2 for vectors.
    """
    return values.view(-1, *(1,) * (dimensions - 2))
