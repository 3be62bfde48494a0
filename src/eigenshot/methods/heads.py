"""What methods put behind the projector, and what they make of its unit vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from eigenshot.collective import batch_mean
from eigenshot.errors import UserError, check_at_least
from eigenshot.methods.base import exact
from eigenshot.networks import Projector


def embedding_length(projector: nn.Module) -> int:
    """K, the length of what ``projector`` gives, for a method that builds on it."""
    length = getattr(projector, "out_features", None)
    if not isinstance(length, int):
        raise UserError(
            f"expected a projector that says how long its embeddings are, as 'out_features'; "
            f"{type(projector).__name__} does not"
        )
    return length


def create_predictor(projector: nn.Module, width: int) -> Projector:
    """Two layers from an embedding to one of the same length, ``(batch, K)`` to ``(batch, K)``."""
    check_at_least(1, predictor_width=width)
    length = embedding_length(projector)
    return Projector(length, layers=2, width=width, out_features=length, standardize=False)


def unit(z: Tensor) -> Tensor:
    """Rows of ``(batch, K)`` at length 1, in float32 at least."""
    with torch.autocast(device_type=z.device.type, enabled=False):
        return normalize(exact(z), dim=1)


def spread(units: Tensor) -> Tensor:
    """√K times the mean deviation of a dimension of unit vectors over the global batch.

    It is 0 where all ``(batch, K)`` are one point, and near 1 where they lie all around the
    sphere: the sign of collapse in section 4.1 of the SimSiam paper. It has no gradient.
    """
    units = units.detach()
    variance = batch_mean((units - batch_mean(units, 0)).square(), 0)
    return variance.sqrt().mean() * math.sqrt(units.shape[1])
