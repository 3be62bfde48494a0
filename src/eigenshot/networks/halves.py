"""Two views through a network in one pass, each with batch statistics of its own.

Twice the batch fills a device better than two passes do. Layers that look at the whole batch must
not see the two views as one, though: they take its halves one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from eigenshot.networks.projector import Standardize


class _Apart(nn.Module):
    """A layer with batch statistics that can take the halves of a batch one after the other."""

    apart = False

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, …)`` to the same shape."""
        if not (self.apart and self.training):
            return super().forward(x)
        first, second = x.chunk(2)
        return torch.cat([super().forward(first), super().forward(second)])


class ApartBatchNorm1d(_Apart, nn.BatchNorm1d):
    """`nn.BatchNorm1d` that can keep the halves of a batch apart."""


class ApartBatchNorm2d(_Apart, nn.BatchNorm2d):
    """`nn.BatchNorm2d` that can keep the halves of a batch apart."""


class ApartStandardize(_Apart, Standardize):
    """`Standardize` that can keep the halves of a batch apart."""


_APART: dict[type[nn.Module], type[_Apart]] = {
    nn.BatchNorm1d: ApartBatchNorm1d,
    nn.BatchNorm2d: ApartBatchNorm2d,
    Standardize: ApartStandardize,
}
_KNOWN_ORIGINS = ("torch", "eigenshot")
_OPAQUE = (torch.jit.ScriptModule, torch.fx.GraphModule)  # torch's classes around others' code
_OWN_STATISTICS = (nn.modules.batchnorm._BatchNorm, Standardize)


def can_keep_halves_apart(module: nn.Module) -> bool:
    """Make ``module`` ready for `halves_apart`; False where a layer of it cannot be.

    Layers stay the same objects with the same names and weights. Those of other classes with batch
    statistics, such as ones that are synchronised over processes, have their own ways. So may
    every layer that is neither torch's nor eigenshot's: what it makes of a batch is not known.
    """
    if not all(_is_known(part) for part in module.modules()):
        return False
    layers = [part for part in module.modules() if isinstance(part, _OWN_STATISTICS)]
    known = {*_APART, *_APART.values()}
    if any(type(layer) not in known for layer in layers):
        return False
    for layer in layers:
        layer.__class__ = _APART.get(type(layer), type(layer))  # type: ignore[assignment]
    return True


def _is_known(part: nn.Module) -> bool:
    origin = type(part).__module__.split(".")[0]
    return origin in _KNOWN_ORIGINS and not isinstance(part, _OPAQUE)


@contextlib.contextmanager
def halves_apart(*modules: nn.Module) -> Iterator[None]:
    """Within the block every layer of ``modules`` treats the halves of a batch as two batches."""
    layers = [part for module in modules for part in module.modules() if isinstance(part, _Apart)]
    for layer in layers:
        layer.apart = True
    try:
        yield
    finally:
        for layer in layers:
            layer.apart = False
