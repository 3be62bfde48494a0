"""What processes that train together exchange, so that they compute what one process would.

The global batch is split into equal blocks, one a rank. Every rank's loss is the loss of the
global batch, or a share whose mean over ranks is that loss. The backward passes here sum gradients
over ranks: each rank's copy of a parameter receives the derivative of the sum of all W losses,
which is W times the loss of the global batch. DistributedDataParallel then averages the copies'
gradients, which divides their sum by W. What the optimiser sees is exactly the gradient of the loss
of the global batch.

Without torch.distributed, or with a single process, nothing is exchanged and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


def world_size() -> int:
    """The number of processes that train together; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process among them, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def sum_over_ranks(x: Tensor) -> Tensor:
    """The sum of every rank's ``x``, of one shape on all; gradients are summed likewise."""
    if world_size() == 1:
        return x
    total: Tensor = _SumOverRanks.apply(x)
    return total


def gather_rows(x: Tensor) -> Tensor:
    """Every rank's ``(rows, …)`` below one another, in rank order: ``(world_size · rows, …)``.

    All ranks must bring equally many rows. The gradient of a rank's own rows is the sum of what
    all ranks have for them.
    """
    if world_size() == 1:
        return x
    gathered: Tensor = _GatherRows.apply(x)
    return gathered


def batch_mean(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """``x.mean(dim)`` over the global batch, from blocks of equal size, with its gradient."""
    mean = x.mean(dim=dim)
    ranks = world_size()
    return mean if ranks == 1 else sum_over_ranks(mean) / ranks


@torch.no_grad()
def mean_over_ranks(x: Tensor) -> Tensor:
    """The mean of every rank's ``x``, without a gradient: for what is logged."""
    ranks = world_size()
    return x.detach() if ranks == 1 else _summed(x) / ranks


def average_gradients(parameters: Iterable[Tensor]) -> None:
    """Let every parameter's gradient be its mean over ranks.

    All ranks must bring the same parameters, with gradients for the same ones.
    """
    gradients = (parameter.grad for parameter in parameters)
    average_in_place(gradient for gradient in gradients if gradient is not None)


@torch.no_grad()
def average_in_place(tensors: Iterable[Tensor]) -> None:
    """Let every tensor be its mean over ranks, in one exchange for each dtype.

    All ranks must bring tensors of the same shapes in the same order.
    """
    ranks = world_size()
    if ranks == 1:
        return
    by_dtype: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    for alike in by_dtype.values():
        flat = torch.cat([tensor.reshape(-1) for tensor in alike])
        dist.all_reduce(flat)
        flat /= ranks
        for tensor, mean in zip(alike, flat.split([t.numel() for t in alike]), strict=True):
            tensor.copy_(mean.view(tensor.shape))


def any_rank(flag: bool, device: torch.device | str) -> bool:
    """Whether ``flag`` is true on any rank; ``device`` is one the backend can send from."""
    if world_size() == 1:
        return flag
    votes = torch.tensor(int(flag), dtype=torch.int32, device=device)
    return bool(_summed(votes) > 0)


def _summed(x: Tensor) -> Tensor:
    # A dense copy: gradients may be expanded views, and neither they nor x may change.
    total = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return _summed(x)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _summed(gradient)


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        gathered = x.new_empty((world_size() * len(x), *x.shape[1:]))
        dist.all_gather(list(gathered.split(len(x))), x.contiguous())
        return gathered

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _summed(gradient).chunk(world_size())[rank()]
