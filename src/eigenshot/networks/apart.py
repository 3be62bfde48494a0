"""Parts of a batch that a network keeps apart although they take one pass: views, and groups.

Layers that look at the whole batch must not see its two views as one: they take its halves one
after the other. Twice the batch fills a device better than two passes do.

Groups are for methods whose batches must not know of themselves as a whole: each is normalised by
its own statistics, as if it were on a device of its own.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from eigenshot.networks.keeping import layers_with
from eigenshot.networks.normalisation import follow, scaled
from eigenshot.networks.projector import Standardize


class _Halved(nn.Module):
    """A layer with batch statistics that can take the halves of a batch one after the other."""

    halves = False

    def forward(self, x: Tensor) -> Tensor:
        """``(batch, …)`` to the same shape."""
        if not (self.halves and self.training):
            return self.normalised(x)
        first, second = x.chunk(2)
        return torch.cat([self.normalised(first), self.normalised(second)])

    def normalised(self, x: Tensor) -> Tensor:
        """What the layer makes of one view."""
        return super().forward(x)


class _Grouped(_Halved, nn.modules.batchnorm._BatchNorm):
    """Batch normalisation by the statistics of equal groups of images.

    The running statistics follow the mean of the groups'.
    """

    groups = 1

    def normalised(self, x: Tensor) -> Tensor:
        """What the layer makes of one view, ``(batch, channels, …)`` to the same shape."""
        if self.groups == 1 or not self.training:
            return super().normalised(x)
        self._check_input_dim(x)
        if x.shape[1] != self.num_features:
            return super().normalised(x)  # torch has a sentence for it
        exact = x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(0, (self.groups, -1))
        others = (1, *range(3, exact.ndim))  # all but groups and channels
        variances, means = torch.var_mean(exact, others, correction=0, keepdim=True)
        count = exact.numel() // (self.groups * self.num_features)
        follow(
            self,
            means.detach().mean(dim=0).flatten(),
            variances.detach().mean(dim=0).flatten() * (count / (count - 1)),
        )
        normalised = scaled(self, exact - means, variances, x.ndim)
        return normalised.flatten(0, 1).to(x.dtype)


class ApartBatchNorm1d(_Grouped, nn.BatchNorm1d):
    """`nn.BatchNorm1d` that can keep the halves and the groups of a batch apart."""


class ApartBatchNorm2d(_Grouped, nn.BatchNorm2d):
    """`nn.BatchNorm2d` that can keep the halves and the groups of a batch apart."""


class ApartStandardize(_Halved, Standardize):
    """`Standardize` that can keep the halves of a batch apart."""


_APART: dict[type[nn.Module], type[_Halved]] = {
    nn.BatchNorm1d: ApartBatchNorm1d,
    nn.BatchNorm2d: ApartBatchNorm2d,
    Standardize: ApartStandardize,
}
_KNOWN_ORIGINS = ("torch", "eigenshot")
_OPAQUE = (torch.jit.ScriptModule, torch.fx.GraphModule)  # torch's classes around others' code
_OWN_STATISTICS = (nn.modules.batchnorm._BatchNorm, Standardize)


def can_keep_halves_apart(module: nn.Module) -> bool:
    """Make ``module`` ready for `halves_apart`; False where a layer of it cannot be.

    Layers of other classes with batch statistics, such as ones that are synchronised over
    processes, have their own ways. So may every layer that is neither torch's nor eigenshot's: what
    it makes of a batch is not known.
    """
    if not all(_is_known(part) for part in module.modules()):
        return False
    layers = [part for part in module.modules() if isinstance(part, _OWN_STATISTICS)]
    known = {*_APART, *_APART.values()}
    if any(type(layer) not in known for layer in layers):
        return False
    make_ready(module)
    return True


def make_ready(module: nn.Module) -> None:
    """Let torch's and eigenshot's own layers heed `halves_apart` and `groups_apart`.

    They stay the same objects with the same names and weights. All other layers are left alone.
    """
    for layer in module.modules():
        if type(layer) in _APART:
            layer.__class__ = _APART[type(layer)]


def _is_known(part: nn.Module) -> bool:
    origin = type(part).__module__.split(".")[0]
    return origin in _KNOWN_ORIGINS and not isinstance(part, _OPAQUE)


def halves_apart(*modules: nn.Module) -> AbstractContextManager[None]:
    """Within the block every layer of ``modules`` treats the halves of a batch as two batches."""
    return layers_with("halves", True, _Halved, *modules)


def groups_apart(count: int, *modules: nn.Module) -> AbstractContextManager[None]:
    """Within the block ``modules`` normalise a batch, or its halves, in ``count`` equal groups."""
    return layers_with("groups", count, _Grouped, *modules)
