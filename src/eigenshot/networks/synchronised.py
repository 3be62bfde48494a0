"""Batch normalisation over the global batch of several processes."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn

from eigenshot.collective import batch_mean, world_size
from eigenshot.errors import UserError


class SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """``nn.BatchNorm1d`` or ``2d`` with the statistics of all ranks' blocks together.

    It works on every device and backend, where ``torch.nn.SyncBatchNorm`` refuses the CPU. Names
    of weights and buffers are the same. In eval mode, and with a single process, it is plain batch
    normalisation. Blocks must be of equal size.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, num_features, …)`` to the same shape."""
        self._check_input_dim(x)
        ranks = world_size()
        if not self.training or ranks == 1:
            output: Tensor = super().forward(x)
            return output
        if (count := ranks * x.numel() // self.num_features) < 2:
            raise UserError(
                f"cannot normalise a training batch with {count} values a channel: at least 2 "
                "are needed; raise the batch size"
            )
        with torch.autocast(x.device.type, enabled=False):
            exact = x.to(torch.promote_types(x.dtype, torch.float32))
            others = (0, *range(2, x.ndim))
            mean = batch_mean(exact, others)
            centred = exact - _per_channel(mean, x.ndim)
            variance = batch_mean(centred.square(), others)
            follow(self, mean.detach(), variance.detach() * (count / (count - 1)))
            normalised = scaled(self, centred, _per_channel(variance, x.ndim), x.ndim)
            return normalised.to(x.dtype)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise UserError(f"expected (batch, {self.num_features}, …), found {tuple(x.shape)}")


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


def scaled(
    layer: nn.modules.batchnorm._BatchNorm, centred: Tensor, variance: Tensor, dimensions: int
) -> Tensor:
    """Centred values with variance 1, or with the layer's own scale and mean if it has them.

    ``variance`` broadcasts against ``centred``, which has ``dimensions`` dimensions from the batch
    on, and may have others before.
    """
    scale = torch.rsqrt(variance + layer.eps)
    if layer.weight is not None:
        scale = scale * _per_channel(layer.weight, dimensions)
    normalised = centred * scale
    return normalised if layer.bias is None else normalised + _per_channel(layer.bias, dimensions)


def synchronise(module: nn.Module, *, always: bool = False) -> nn.Module:
    """Let every ``nn.BatchNorm1d`` and ``2d`` of ``module`` see the global batch.

    On CUDA they become ``torch.nn.SyncBatchNorm``, elsewhere :class:`SynchronisedBatchNorm`. They
    stay the same objects with the same parameters, buffers, names and hooks; ``module`` itself is
    returned. Classes derived from them have their own ways and are left alone, as is every other
    kind of layer. With a single process nothing is changed, unless ``always``.
    """
    if world_size() == 1 and not always:
        return module
    tensor = next(chain(module.parameters(), module.buffers()), None)
    on_cuda = tensor is not None and tensor.device.type == "cuda"
    for part in module.modules():
        if type(part) not in (nn.BatchNorm1d, nn.BatchNorm2d):
            continue
        # A new class for the old object: whoever else holds the layer keeps holding the right one.
        if on_cuda:
            part.process_group = None  # type: ignore[assignment]
            part.__class__ = nn.SyncBatchNorm
        else:
            part.__class__ = SynchronisedBatchNorm
    return module


def _per_channel(values: Tensor, dimensions: int) -> Tensor:
    """``(channels,)`` in the form that broadcasts against ``(batch, channels, …)``."""
    return values.view(-1, *(1,) * (dimensions - 2))
