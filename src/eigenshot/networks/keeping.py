"""What a look, a trial or a second pass must leave as it was: a module's buffers and modes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

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
