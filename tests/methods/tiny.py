"""A network and images of the smallest kind, in float64, for tests of methods."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eigenshot.methods.mixing import Mix
from eigenshot.networks import Backbone, Projector, create_backbone


def networks(
    out: int = 6, *, layers: int = 2, standardize: bool = False
) -> tuple[Backbone, Projector]:
    """A backbone with features of 8 and a projector, the same ones at every call."""
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
    projector = Projector(8, layers=layers, width=12, out_features=out, standardize=standardize)
    return backbone, projector


def views(batch: int = 6, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Two views ``(batch, 1, 16, 16)`` with nothing in common."""
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(
        (2, batch, 1, 16, 16), dtype=torch.float64, generator=generator
    ).unbind()
    return first, second


def mix_at(layer: int, batch: int = 6, coefficient: float = 0.3) -> Mix:
    """A mix of every image with the one before it."""
    permutation = torch.roll(torch.arange(batch), 1)
    return Mix(layer, torch.tensor(coefficient, dtype=torch.float64), permutation)


def mix_with_a_fixed_point(layer: int, coefficient: float | list[float] = 0.3) -> Mix:
    """A mix of six images in which one is its own partner; one λ, or one for each."""
    permutation = torch.tensor([2, 0, 5, 3, 1, 4])
    return Mix(layer, torch.tensor(coefficient, dtype=torch.float64), permutation)


def rows(seed: int, batch: int = 6, dimensions: int = 5) -> Tensor:
    """Embeddings ``(batch, dimensions)`` with nothing in common, the same ones for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, dimensions, dtype=torch.float64, generator=generator)


def shapes_of_products(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """A list that the shape of every matrix product from now on is added to."""
    shapes: list[tuple[int, ...]] = []
    plain = torch.Tensor.__matmul__

    def spy(left: Tensor, right: Tensor) -> Tensor:
        product = plain(left, right)
        shapes.append(tuple(product.shape))
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", spy)
    return shapes
