"""Weights that a network starts from."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from eigenshot.encoder import encoder_path, load_weights
from eigenshot.errors import CorruptFileError
from eigenshot.networks import Backbone
from eigenshot.tensorfile import read_tensors


def initialise_from(backbone: Backbone, path: str | Path) -> None:
    """Start ``backbone`` from an encoder file, a checkpoint of a run, or a state dict.

    A state dict is read from safetensors, or from a ``torch.save`` file with weights only, which
    holds tensors and cannot run code.
    """
    file = encoder_path(path)
    if file.suffix == ".safetensors":
        tensors, _ = read_tensors(file, kind=None)
        within = "method.backbone."  # where a checkpoint keeps them
        if any(name.startswith(within) for name in tensors):
            tensors = {
                n.removeprefix(within): t for n, t in tensors.items() if n.startswith(within)
            }
    else:
        tensors = _read_state_dict(file)
    load_weights(backbone, tensors, str(file))


def _read_state_dict(file: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever the bytes provoke, with advice to unpickle
        raise CorruptFileError(
            f"'{file}' cannot be read as weights: it is damaged, or holds more than tensors"
        ) from error
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise CorruptFileError(f"'{file}' holds no state dict (names to tensors)")
    return content
