"""A second task: by how many quarter turns has an image been turned?

What brings two views together makes an encoder forget all that they differ in, whether that tells
classes apart or not. Which way up a thing stands is something that it could forget and should not
(Gidaris et al. 2018; beside a loss that asks for invariance, Dangovski et al. 2022). The features
have to tell it; the embedding, on which the first loss works, need not.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from eigenshot.collective import rank, world_size
from eigenshot.errors import UserError
from eigenshot.methods.base import exact
from eigenshot.networks import Backbone, Projector
from eigenshot.networks.normalisation import untracked

TURNS = 4


def rotation_head(features: int) -> Projector:
    """From features ``(batch, features)`` to the logits of the quarter turns, ``(batch, 4)``."""
    return Projector(features, layers=2, width=features, out_features=TURNS, standardize=False)


def turned(images: Tensor, every: int = 1) -> tuple[Tensor, Tensor]:
    """Every ``every``-th image of a batch, the first by no quarter turn, the next by one, ….

    Batches come in random order, so nothing has to be drawn. Where several processes train
    together, turns are counted through all ranks' blocks.

    Parameters
    ----------
    images : ``(batch, C, side, side)``.
    every : of so many images of this process one is turned.

    Returns
    -------
    The turned images, ``(⌈batch / every⌉, C, side, side)``, and by how many quarter turns each,
    counter-clockwise, ``(⌈batch / every⌉,)``.
    """
    if images.ndim != 4 or images.shape[2] != images.shape[3]:
        raise UserError(
            "only square images can be turned by a quarter: expected (batch, C, side, side), "
            f"found {tuple(images.shape)}"
        )
    chosen = images[::every]
    first = rank() * len(chosen)
    turns = (torch.arange(len(chosen), device=images.device) + first) % TURNS
    outcome = torch.empty_like(chosen)
    for place in range(TURNS):
        outcome[place::TURNS] = torch.rot90(chosen[place::TURNS], first + place, (2, 3))
    return outcome, turns


def rotation_losses(backbone: Backbone, head: nn.Module, images: Tensor, every: int = 1) -> Tensor:
    """The cross-entropy of the turns, an entry an image; its mean is that of the turned ones.

    Entries of images that are not turned are 0 and the others are scaled up by as much. Batch
    normalisation has the statistics of the turned images, and does not keep them: a trained encoder
    looks at upright ones. In training so many are turned, on all ranks together, that every turn
    occurs; fewer are a `UserError`.

    Parameters
    ----------
    backbone : from images to features ``(·, features)``.
    head : from features to logits ``(·, 4)``, as `rotation_head` gives it.
    images : ``(batch, C, side, side)``.
    every : of so many images one is turned.

    Returns
    -------
    ``(batch,)``, float32 at least.
    """
    rotated, turns = turned(images, every)
    together = len(rotated) * world_size()
    if together < TURNS and head.training:  # a turn that never occurs would never be learned
        raise UserError(
            f"rotate_every={every} leaves {together} of {len(images) * world_size()} images to be "
            f"turned together, fewer than the {TURNS} quarter turns to tell; lower rotate_every, "
            "or raise the batch size or have fewer training.micro_batches"
        )
    with untracked(backbone):
        logits = head(backbone(rotated))
    with torch.autocast(device_type=logits.device.type, enabled=False):
        own = cross_entropy(exact(logits), turns, reduction="none")
    losses = own.new_zeros(len(images))
    losses[::every] = own * (len(images) / len(own))
    return losses
