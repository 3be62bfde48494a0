"""BYOL: predict what a slowly moving copy of the network makes of the other view.

Grill et al., "Bootstrap your own latent", 2020.
"""

from __future__ import annotations

from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from eigenshot.methods.heads import create_predictor, spread, unit
from eigenshot.methods.mixing import Mix, MixingOptions, mixed
from eigenshot.methods.momentum import MomentumMethod
from eigenshot.networks import Backbone


def regression_loss(prediction: Tensor, target: Tensor, mix: Mix | None = None) -> Tensor:
    """Mean squared distance of unit vectors, 2 − 2 cos (Eq. 2 of BYOL).

    It is that of the rows given. Where several processes train together, each has its own share,
    whose mean over ranks is the term of the global batch.

    Parameters
    ----------
    prediction, target : ``(batch, K)``, of any length.
    mix : what the images behind ``prediction`` went through. Each row then has the loss to its own
        target and to its partner's, with weights λ and 1 − λ.
    """
    with torch.autocast(device_type=prediction.device.type, enabled=False):
        # The cosine is linear in the target: that of the mixed target is the mixture of cosines.
        return 2 - 2 * (unit(prediction) * mixed(unit(target), mix)).sum(dim=1).mean()


class Byol(MomentumMethod):
    """Bootstrap your own latent.

    Both views are predicted, and the loss is the sum of the two. With mixing, the online network
    sees the second view mixed and predicts the same mixture of the target's first views. The
    target sees both views as they are, so the other term is the plain one.

    Parameters
    ----------
    backbone, projector : the online network, as in `Method`.
    momentum, schedule : of the target network, as in `MomentumMethod`.
    predictor_width : hidden units of the predictor.
    mixing : options of `MixingMethod`.
    """

    capturable = True

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        momentum: float = 0.99,
        schedule: Literal["constant", "cosine"] = "cosine",
        predictor_width: int = 4096,
        **mixing: Unpack[MixingOptions],
    ) -> None:
        super().__init__(backbone, projector, momentum=momentum, schedule=schedule, **mixing)
        self.predictor = create_predictor(projector, predictor_width)

    def forward(self, view_a: Tensor, view_b: Tensor, mix: Mix | None = None) -> dict[str, Tensor]:
        """Loss of a batch of positive pairs.

        Parameters
        ----------
        view_a, view_b : ``(batch, C, H, W)``, two views of the same images.
        mix : the interpolation of `view_b` in the online network.

        Returns
        -------
        ``{"loss", "spread"}``, scalars. ``loss`` is this rank's share. ``spread`` is that of the
        online embeddings of `view_a`: 0 where they have collapsed.
        """
        z_a, z_b = self.embed_pair(view_a, view_b, mix)
        target_a, target_b = self.embed_target_pair(view_a, view_b)
        loss = regression_loss(self.predictor(z_a), target_b)
        loss = loss + regression_loss(self.predictor(z_b), target_a, mix)
        return {"loss": loss, "spread": spread(unit(z_a))}
