"""The projector: a multilayer perceptron whose output is standardised over the batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from eigenshot.collective import batch_mean, world_size
from eigenshot.errors import UserError
from eigenshot.networks.layers import require_positive


class Standardize(nn.Module):
    """Zero mean and unit (biased) variance in every dimension over the batch.

    The batch is the global one: where several processes train together, the equal blocks of all.

    In eval mode running statistics stand in for those of the batch: their mean over the first
    batches, then a moving average. The work is done in float32
    at least, outside autocast: float64 stays float64, half precision becomes float32.

    ``eps`` lies far below any real variance. With the 1e-5 of batch normalisation, weight decay
    can shrink the layer before until eps dominates; the output then loses its unit variance, and
    every loss that relies on it can be had for nothing.
    """

    running_mean: Tensor
    running_var: Tensor
    batches_seen: Tensor

    def __init__(self, num_features: int, *, eps: float = 1e-12, momentum: float = 0.1) -> None:
        super().__init__()
        require_positive(num_features=num_features)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))
        self.register_buffer("batches_seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, num_features)`` to the same shape."""
        if x.ndim != 2 or x.shape[1] != self.num_features:
            raise UserError(f"expected (batch, {self.num_features}), found {tuple(x.shape)}")
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(torch.promote_types(x.dtype, torch.float32))
            if not self.training:
                centred = x - self.running_mean.to(x.dtype)
                return centred * torch.rsqrt(self.running_var.to(x.dtype) + self.eps)
            samples = len(x) * world_size()
            if samples < 2:
                raise UserError(
                    f"cannot standardise a training batch of {samples}: at least 2 samples are "
                    "needed; raise the batch size or drop the last, incomplete batch"
                )
            mean = batch_mean(x, 0)
            centred = x - mean
            variance = batch_mean(centred.square(), 0)
            self._update_running_statistics(mean.detach(), variance.detach(), samples)
            return centred * torch.rsqrt(variance + self.eps)

    def _update_running_statistics(self, mean: Tensor, variance: Tensor, batch: int) -> None:
        unbiased = variance * (batch / (batch - 1))
        # A plain mean at first: the values that the buffers start with mean nothing.
        self.batches_seen += 1
        share = (1 / self.batches_seen).clamp_min(self.momentum).to(self.running_mean.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}"


class Projector(nn.Module):
    """``layers`` linear layers with ReLU and, before it, batch normalisation between them.

    Parameters
    ----------
    in_features : the length of the backbone's features.
    layers : the number of linear layers; with none the features themselves are embeddings.
    width : the length of the hidden vectors.
    out_features : the length K of an embedding; ``width`` when not given.
    norm : whether there is batch normalisation between layers.
    standardize : whether the last layer is followed by :class:`Standardize`.
    """

    def __init__(
        self,
        in_features: int,
        *,
        layers: int = 3,
        width: int = 2048,
        out_features: int | None = None,
        norm: bool = True,
        standardize: bool = True,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = width if out_features is None else out_features
        if layers < 0:
            raise UserError(f"layers must not be negative, found {layers}")
        if layers == 0:
            self.out_features = in_features
        require_positive(in_features=in_features, width=width, out_features=self.out_features)
        parts: list[nn.Module] = []
        inputs = in_features
        for _ in range(layers - 1):
            # No bias where the mean is taken off right after.
            parts.append(nn.Linear(inputs, width, bias=not norm))
            parts += [nn.BatchNorm1d(width)] if norm else []
            parts.append(nn.ReLU(inplace=True))
            inputs = width
        if layers:
            parts.append(nn.Linear(inputs, self.out_features, bias=not standardize))
        if standardize:
            parts.append(Standardize(self.out_features))
        self.layers = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        """Features ``(batch, in_features)`` to embeddings ``(batch, out_features)``."""
        return self.layers(x)
