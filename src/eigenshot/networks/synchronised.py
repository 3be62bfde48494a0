"""Batch normalisation over the global batch of several processes."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn

from eigenshot.collective import batch_mean, world_size
from eigenshot.errors import UserError
from eigenshot.networks.normalisation import follow, per_channel, scaled


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
            centred = exact - per_channel(mean, x.ndim)
            variance = batch_mean(centred.square(), others)
            follow(self, mean.detach(), variance.detach() * (count / (count - 1)))
            normalised = scaled(self, centred, per_channel(variance, x.ndim), x.ndim)
            return normalised.to(x.dtype)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.ndim < 2 or x.shape[1] != self.num_features:
            raise UserError(f"expected (batch, {self.num_features}, …), found {tuple(x.shape)}")


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
