"""Which images batch normalisation of a finished encoder goes by."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch

from eigenshot.data.source import ArraySource, Source
from eigenshot.encoder import Encoder
from eigenshot.hardware import Precision
from eigenshot.networks.normalisation import measuring

_IMAGES = 2048  # statistics of so many are steady
_BATCH = 256


@torch.no_grad()
def with_statistics(
    encoder: Encoder,
    source: Source,
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "auto",
) -> Encoder:
    """A copy of ``encoder`` whose batch normalisation has the statistics of whole images.

    In training its running statistics followed the views: crops in other colours, mixed with each
    other. Here they are the mean over batches of 256 of at most 2,048 images, spread evenly over
    ``source``, in the size that the encoder looks at; a smaller last batch is left out.
    """
    rows = np.linspace(0, len(source) - 1, min(_IMAGES, len(source)), dtype=np.int64)
    whole = ArraySource(source.images(rows).cpu()).resized(encoder.preprocessing.image_size)
    batch = min(_BATCH, len(rows))
    copied = replace(encoder, backbone=copy.deepcopy(encoder.backbone)).to(device)
    with measuring(copied.backbone):
        for start in range(0, len(rows) - batch + 1, batch):
            images = whole.pixels[start : start + batch].to(device)
            copied.features(images, precision=precision)
    return copied
