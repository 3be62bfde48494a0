"""What a look, a trial or a second pass must leave as it was: buffers, modes, attributes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn


def copied_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The values of all buffers by name, as `put_back` takes them."""
    return {name: buffer.detach().clone() for name, buffer in module.named_buffers()}


@torch.no_grad()
def put_back(module: nn.Module, copies: dict[str, Tensor]) -> None:
    """Give the buffers in ``copies`` their values again, in place."""
    for name, buffer in module.named_buffers():
        if name in copies:
            buffer.copy_(copies[name])


@contextlib.contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """After the block every part of ``module`` trains, or not, as it did before it."""
    modes = {part: part.training for part in module.modules()}
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


@contextlib.contextmanager
def layers_with(
    name: str, value: Any, kind: type[nn.Module], *modules: nn.Module
) -> Iterator[None]:
    """Within the block all layers of a kind in ``modules`` have this value of an attribute."""
    found = (part for module in modules for part in module.modules() if isinstance(part, kind))
    before = {layer: getattr(layer, name) for layer in found}  # a shared one stands here once
    for layer in before:
        setattr(layer, name, value)
    try:
        yield
    finally:
        for layer, former in before.items():
            setattr(layer, name, former)
