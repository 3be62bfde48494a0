"""What is done to features before a classifier sees them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eigenshot.errors import UserError

Transform = Literal["none", "l2", "power", "centre"]
TRANSFORMS: tuple[Transform, ...] = ("none", "l2", "power", "centre")


def check_transform(name: str) -> None:
    """Refuse a transform that there is not."""
    if name not in TRANSFORMS:
        raise UserError(f"unknown transform '{name}'; known: {', '.join(TRANSFORMS)}")


def transform_features(
    features: Tensor, transform: Transform, base_mean: Tensor | None = None
) -> Tensor:
    """Features ``(…, d)`` after a transform; no labels and no other image are looked at.

    ``"none"``; ``"l2"``: unit length; ``"power"``: the square root of each entry, sign kept, then
    unit length, which evens out skewed activations; ``"centre"``: less ``base_mean`` ``(d,)``, the
    mean of the training images, then unit length (CL2N).
    """
    check_transform(transform)
    if transform == "none":
        return features
    if transform == "power":
        features = features.sign() * features.abs().sqrt()
    elif transform == "centre":
        if base_mean is None:
            raise UserError(
                "the transform 'centre' needs the mean of the training images' features: "
                "give base_mean, or --base DATA on the command line"
            )
        if base_mean.shape != features.shape[-1:]:
            raise UserError(
                f"expected a base mean of shape {tuple(features.shape[-1:])}, "
                f"found {tuple(base_mean.shape)}"
            )
        features = features - base_mean
    return torch.nn.functional.normalize(features, dim=-1)
