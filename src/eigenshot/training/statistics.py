"""Which images batch normalisation of a finished encoder goes by."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from eigenshot.data.opening import spread_rows
from eigenshot.data.source import ArraySource, Source
from eigenshot.encoder import Encoder
from eigenshot.hardware import Precision
from eigenshot.networks.normalisation import measuring
from eigenshot.randomness import numpy_generator
from eigenshot.training.parts import Parts

_IMAGES = 2048
_BATCH = 256


def settle_statistics(parts: Parts) -> None:
    """Give the encoder of a training that is over the statistics that its settings ask for."""
    settings = parts.config.training
    if settings.statistics == "images":
        parts.encoder = with_statistics(
            parts.encoder,
            parts.source,
            batch=min(_BATCH, int(settings.batch_size) // settings.micro_batches),
            device=parts.fabric.device,
            precision=parts.config.engine.precision,
        )


@torch.no_grad()
def with_statistics(
    encoder: Encoder,
    source: Source,
    *,
    batch: int = _BATCH,
    device: torch.device | str = "cpu",
    precision: Precision = "auto",
) -> Encoder:
    """A copy of ``encoder`` whose batch normalisation has the statistics of whole images.

    In training its running statistics followed the views: crops in other colours, mixed with each
    other. Here they are the mean over batches of at most 2,048 images from all over ``source``, in
    the size that the encoder looks at. They are shuffled, for a source may be sorted by class, and
    those that make no whole batch are left out.
    """
    rows = spread_rows(source, _IMAGES)
    batch = min(batch, len(rows))
    size = encoder.preprocessing.image_size
    whole = torch.cat(
        [
            ArraySource(source.images(rows[start : start + batch]).cpu()).resized(size).pixels
            for start in range(0, len(rows), batch)
        ]
    )
    order = torch.from_numpy(numpy_generator(0, "statistics").permutation(len(rows)))
    copied = replace(encoder, backbone=copy.deepcopy(encoder.backbone)).to(device)
    with measuring(copied.backbone):
        for part in order.split(batch)[: len(order) // batch]:
            copied.features(whole[part].to(device), precision=precision)
    return copied
