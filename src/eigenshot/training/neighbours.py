"""Edges between images: second views that are of an image which the encoder finds alike.

The similarity graph of the paper joins views of one image, and images of one latent class. Which
those are nobody says, but an encoder that has learned for a while has an opinion: the nearest
images by its features. From then on some second views are of one of these.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from eigenshot.collective import rank, world_size
from eigenshot.config import NeighboursConfig
from eigenshot.data.source import Source
from eigenshot.encoder import Encoder
from eigenshot.errors import UserError
from eigenshot.evaluation.features import extract_features
from eigenshot.evaluation.knn import nearest_others, unit_rows
from eigenshot.hardware import Precision
from eigenshot.randomness import numpy_generator


class Neighbours(nn.Module):
    """Which images count as neighbours of each; a buffer, so that a checkpoint holds it.

    Parameters
    ----------
    settings : how many, how often and from when on.
    source : the images; any of them can be asked for at any time.
    seed : of the draws.
    """

    table: Tensor

    def __init__(self, settings: NeighboursConfig, source: Source, seed: int) -> None:
        super().__init__()
        if getattr(source, "reader", None) == "streamed":
            raise UserError(
                "neighbours.share needs images that can be had in any order, and streamed ones "
                "come in their own; use data.reader=mapped, or neighbours.share=0"
            )
        if len(source) <= settings.count:
            raise UserError(
                f"neighbours.count={settings.count} needs more images than that, "
                f"found {len(source)}; lower it"
            )
        self.settings = settings
        self.seed = seed
        # Before the first look every image is its own neighbour. On the host, where draws are made.
        own = torch.arange(len(source), dtype=torch.int32, device="cpu")
        self.register_buffer("table", own[:, None].repeat(1, settings.count))

    def due(self, epoch: int, epochs: int) -> bool:
        """Whether neighbours are looked for before ``epoch``, of ``epochs`` counted from 0."""
        since = epoch - int(np.ceil(self.settings.begin * epochs))
        return since >= 0 and since % self.settings.every == 0

    def look(
        self,
        encoder: Encoder,
        source: Source,
        *,
        size: int,
        device: torch.device,
        precision: Precision,
    ) -> None:
        """Find the nearest of each image by the features of ``encoder`` at ``size`` pixels.

        Features are centred and compared by their angle. Several processes call it together.
        """
        looking = replace(encoder, preprocessing=replace(encoder.preprocessing, image_size=size))
        features = extract_features(
            looking,
            source,
            device=device,
            cache=False,
            together=world_size() > 1,
            precision=precision,
        )
        vectors = unit_rows(torch.from_numpy(features - features.mean(axis=0)), device)
        for rows, _, nearest in nearest_others(vectors, self.settings.count):
            self.table[rows] = nearest.to(self.table)

    def partners(self, number: int, rows: np.ndarray | Tensor) -> Tensor:
        """Whose second views step ``number`` takes for the images ``rows``, int64 ``(batch,)``."""
        own = torch.as_tensor(rows).cpu()
        place = (number, rank()) if world_size() > 1 else (number,)
        generator = numpy_generator(self.seed, "neighbours", *place)
        of_another = torch.from_numpy(generator.random(len(own)) < self.settings.share)
        which = torch.from_numpy(generator.integers(self.settings.count, size=len(own)))
        return torch.where(of_another, self.table[own, which].to(own.dtype), own)
