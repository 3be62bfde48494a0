"""SimSiam: predict the other view's embedding, through which no gradient flows.

Chen and He, "Exploring simple Siamese representation learning", 2021.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from eigenshot.methods.heads import create_predictor, spread, unit
from eigenshot.methods.mixing import Mix, MixingMethod, MixingOptions, mixed
from eigenshot.networks import Backbone


def negative_cosine(first: Tensor, second: Tensor) -> Tensor:
    """Mean negative inner product of rows, which is the negative cosine (Eq. 1) of unit vectors.

    It is that of the rows given. Where several processes train together, each has its own share,
    whose mean over ranks is the term of the global batch.

    Parameters
    ----------
    first, second : ``(batch, K)``, unit vectors or mixtures of such.
    """
    with torch.autocast(device_type=first.device.type, enabled=False):
        return -(first * second).sum(dim=1).mean()


class SimSiam(MixingMethod):
    """Simple Siamese networks.

    The loss is the mean of two terms, each a prediction of one view against the embedding of the
    other, held fixed (Eq. 4). With mixing, the second view is mixed. Its prediction is compared
    with the mixture of the first views' embeddings, and its embedding with the mixture of their
    predictions: both terms are λ times that of an image and its own, and 1 − λ times that of an
    image and its partner's.

    Parameters
    ----------
    backbone, projector : as in `Method`. The projector's output should be standardised.
    predictor_width : hidden units of the predictor.
    constant_predictor_rate : whether the predictor's learning rate stays as it starts.
    mixing : options of `MixingMethod`.
    """

    capturable = True

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        predictor_width: int = 512,
        constant_predictor_rate: bool = True,
        **mixing: Unpack[MixingOptions],
    ) -> None:
        super().__init__(backbone, projector, **mixing)
        self.predictor = create_predictor(projector, predictor_width)
        self.constant_predictor_rate = constant_predictor_rate

    def constant_rate(self) -> list[nn.Parameter]:
        """The predictor's parameters: it should follow the embeddings to the end (section 4.2)."""
        return list(self.predictor.parameters()) if self.constant_predictor_rate else []

    def forward(self, view_a: Tensor, view_b: Tensor, mix: Mix | None = None) -> dict[str, Tensor]:
        """Loss of a batch of positive pairs.

        Parameters
        ----------
        view_a, view_b : ``(batch, C, H, W)``, two views of the same images.
        mix : the interpolation of `view_b`.

        Returns
        -------
        ``{"loss", "spread"}``, scalars. ``loss`` is this rank's share, between −1 and 1.
        ``spread`` is that of the embeddings of `view_a`: 0 where they have collapsed.
        """
        z_a, z_b = self.embed_pair(view_a, view_b, mix)
        predicted_b, predicted_a = unit(self.predictor(z_a)), unit(self.predictor(z_b))
        fixed_a, fixed_b = unit(z_a.detach()), unit(z_b.detach())
        loss = negative_cosine(mixed(predicted_b, mix), fixed_b)
        loss = (loss + negative_cosine(predicted_a, mixed(fixed_a, mix))) / 2
        return {"loss": loss, "spread": spread(fixed_a)}
