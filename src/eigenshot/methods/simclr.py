"""SimCLR: Chen, Kornblith, Norouzi and Hinton, "A Simple Framework for Contrastive Learning of
Visual Representations" (2020).

The two views of an image are told apart from all other views of the batch by a softmax over cosine
similarities.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from eigenshot.collective import gather_rows, rank
from eigenshot.errors import check_positive
from eigenshot.methods.heads import unit
from eigenshot.methods.mixing import Mix, mixed
from eigenshot.methods.pairs import PairMethod, PairOptions, check_pair, contrasted_batch
from eigenshot.networks import Backbone


def nt_xent_loss(
    z_a: Tensor, z_b: Tensor, temperature: float = 0.5, mix: Mix | None = None
) -> Tensor:
    """The normalised, temperature-scaled cross entropy over the 2B views of a batch (Eq. 1).

    The loss of a positive pair is ℓ(x, y) = −s(x, y)/τ + log Σ_{v ≠ x} exp(s(x, v)/τ), with the
    cosine similarity s and v any other view. The batch has the mean of ℓ(a_i, b_i) and
    ℓ(b_i, a_i). With ``mix``, b_i is in a positive pair with a_i to the share λ and with
    a_permutation(i) to the share 1 − λ.

    The batch of B samples is the global one. Where several processes train together, each returns
    the share of its own samples, whose mean over ranks is the loss.

    Parameters
    ----------
    z_a, z_b : ``(batch, K)``, row i of both belongs to one image. Rows are scaled to length 1.
    temperature : τ.
    mix : how `z_b` was mixed.
    """
    check_pair(z_a, z_b)
    rows, batch = len(z_a), contrasted_batch(z_a)
    with torch.autocast(device_type=z_a.device.type, enabled=False):
        z_a, z_b = unit(z_a), unit(z_b)
        everything = torch.cat([gather_rows(z_a), gather_rows(z_b)])
        logits = torch.cat([z_a, z_b]) @ everything.T / temperature
        own = torch.arange(rows, device=z_a.device) + rank() * rows
        columns = torch.cat([own, own + batch]).unsqueeze(1)
        norm_a, norm_b = logits.scatter(1, columns, -torch.inf).logsumexp(dim=1).chunk(2)
        # ℓ is linear in the similarity and in the normaliser, so their mixtures are its mixture.
        positive = (mixed(z_a, mix) * z_b).sum(dim=1) / temperature
        return ((mixed(norm_a, mix) + norm_b) / 2 - positive).mean()


class SimCLR(PairMethod):
    """Contrast of the two views of every image with all other views of the batch.

    Mixed is the second view. It is paired with both of its images, with λ of the one and 1 − λ of
    the other, and so are they with it.

    Parameters
    ----------
    backbone, projector : as in `Method`.
    temperature : τ, by which similarities are divided.
    others : options of `PairMethod`, and of `MixingMethod`.
    """

    capturable = True

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        temperature: float = 0.5,
        **others: Unpack[PairOptions],
    ) -> None:
        super().__init__(backbone, projector, **others)
        check_positive(temperature=temperature)
        self.temperature = temperature

    def terms(self, z_a: Tensor, z_b: Tensor, mix: Mix | None) -> dict[str, Tensor]:
        """``{"loss", "similarity"}``, as of `PairMethod`, this rank's shares.

        The second is the mean cosine of positive pairs.
        """
        return {
            "loss": nt_xent_loss(z_a, z_b, self.temperature, mix),
            "similarity": _mean_similarity(z_a, z_b, mix),
        }


@torch.no_grad()
def _mean_similarity(z_a: Tensor, z_b: Tensor, mix: Mix | None) -> Tensor:
    """The mean cosine of positive pairs, ``(batch, K)`` both, each with its share."""
    z_a, z_b = unit(z_a), unit(z_b)
    return (mixed(z_a, mix) * z_b).sum(dim=1).mean()
