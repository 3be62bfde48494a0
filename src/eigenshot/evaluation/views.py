"""Features of random views: more support from the same few images."""

from __future__ import annotations

import numpy as np
import torch

from eigenshot.data.source import Source
from eigenshot.data.views.views import View, create_view
from eigenshot.encoder import Encoder
from eigenshot.errors import UserError
from eigenshot.hardware import Precision
from eigenshot.randomness import torch_generator


def training_view(encoder: Encoder) -> View:
    """The view maker that the encoder was trained with, from its provenance."""
    settings = encoder.provenance.get("config", {}).get("augment")
    if settings is None:
        raise UserError("this encoder does not say how it was trained, so it has no views to make")
    shape = encoder.preprocessing
    return create_view(
        settings["kind"],
        {**settings["options"], **settings["view_a"]},
        size=view_size(encoder),
        mean=shape.mean,
        std=shape.std,
    )


def view_size(encoder: Encoder) -> int:
    """The side of the last views that the encoder learned from, from its provenance.

    It may look at whole images in another (``training.encoder_size``), which shows their objects
    about as large as such views do.
    """
    settings = encoder.provenance.get("config", {})
    training = settings.get("training", {})
    if training.get("resolution"):
        return int(training["resolution"][-1][1])
    if training.get("encoder_size"):
        return int(settings["data"]["image_size"])
    return encoder.preprocessing.image_size


@torch.no_grad()
def extract_views(
    encoder: Encoder,
    source: Source,
    count: int,
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    batch_size: int = 256,
    precision: Precision = "auto",
) -> np.ndarray:
    """Features of ``count`` random views of every image, float32 ``(N, count, d)``.

    ``precision`` is as `Encoder.transform` takes it.
    """
    if count < 1:
        raise UserError(f"the number of views must be at least 1, found {count}")
    view = training_view(encoder).to(device)
    encoder.to(device).backbone.eval()
    features = np.empty((len(source), count, encoder.out_features), dtype=np.float32)
    for start in range(0, len(source), batch_size):
        rows = np.arange(start, min(start + batch_size, len(source)))
        images = source.images(rows).to(device)
        for number in range(count):
            generator = torch_generator(seed, "support view", number, start, device=device)
            found = encoder.features_in_parts(view(images, generator), precision=precision)
            features[rows, number] = found.cpu().numpy()
    return features
