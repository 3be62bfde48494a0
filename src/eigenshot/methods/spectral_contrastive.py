"""The spectral contrastive loss: HaoChen, Wei, Gaidon and Ma, "Provable Guarantees for
Self-Supervised Deep Learning with Spectral Contrastive Loss" (2021).

Its minimum over all embeddings is the best low-rank approximation of the normalised adjacency
matrix of the graph whose edges are positive pairs: the same eigenvectors as those of the Laplacian,
found by a factorisation in place of a trace under a constraint.
"""

from __future__ import annotations

import math
from typing import Literal, Unpack

import torch
from torch import Tensor, nn

from eigenshot.collective import gather_rows, sum_over_ranks
from eigenshot.errors import check_positive
from eigenshot.methods.base import exact
from eigenshot.methods.mixing import Mix, mixed
from eigenshot.methods.pairs import PairMethod, PairOptions, check_pair, contrasted_batch
from eigenshot.networks import Backbone


def within_ball(z: Tensor, mu: float) -> Tensor:
    """Rows of ``z``, ``(batch, K)``, longer than √μ brought to that length; others as they are."""
    with torch.autocast(device_type=z.device.type, enabled=False):
        z = exact(z)
        radius = math.sqrt(mu)
        length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
        return z * (radius / length.clamp_min(radius))


def attraction_loss(z_a: Tensor, z_b: Tensor, mix: Mix | None = None) -> Tensor:
    """−2 E[z·z⁺] over positive pairs, the first term of the loss (Section 3.2).

    It is that of the rows given. Where several processes train together, each has its own share,
    whose mean over ranks is the term of the global batch.

    Parameters
    ----------
    z_a, z_b : ``(batch, K)``, row i of both belongs to one image.
    mix : how `z_b` was mixed; a row of it then has the same mixture of rows of `z_a` as partner.
    """
    check_pair(z_a, z_b)
    with torch.autocast(device_type=z_a.device.type, enabled=False):
        return -2 * (mixed(exact(z_a), mix) * exact(z_b)).sum(dim=1).mean()


def repulsion_loss(
    z_a: Tensor,
    z_b: Tensor,
    mix: Mix | None = None,
    route: Literal["auto", "moments", "gram"] = "auto",
) -> Tensor:
    """E[(z·z')²] over independent pairs, the second term of the loss (Section 3.2).

    The pairs are all (a_i, b_j) with i ≠ j, which makes the estimate unbiased. With ``mix``, b_j is
    a view of image j to the share λ and of permutation(j) to the share 1 − λ, and the term is the
    same mixture of those that leave out the one or the other.

    ‖Z_a Z_bᵀ‖_F² = ⟨Z_aᵀZ_a, Z_bᵀZ_b⟩, so the sum over all pairs is had from the B×B Gram matrix
    or from two K×K second moments; ``"auto"`` forms the smaller ones. Value and gradient are the
    same.

    The batch of B samples is the global one: where several processes train together, the equal
    blocks of all. Every rank returns the same value.

    Parameters
    ----------
    z_a, z_b : ``(batch, K)``, this process's samples, row i of both belongs to one image.
    mix : how `z_b` was mixed.
    """
    batch, dimensions = contrasted_batch(z_a), z_a.shape[1]
    if route == "auto":
        route = "gram" if batch < dimensions else "moments"
    with torch.autocast(device_type=z_a.device.type, enabled=False):
        z_a, z_b = exact(z_a), exact(z_b)
        dependent = _dependent_pairs(z_a, z_b, mix).sum()
        if route == "moments":
            everything = (sum_over_ranks(z_a.T @ z_a) * sum_over_ranks(z_b.T @ z_b)).sum()
            total = everything - sum_over_ranks(dependent)
        else:
            total = sum_over_ranks((z_a @ gather_rows(z_b).T).square().sum() - dependent)
        return total / (batch * (batch - 1))


def _dependent_pairs(z_a: Tensor, z_b: Tensor, mix: Mix | None) -> Tensor:
    """(z·z')² of each row of ``z_b`` with that of ``z_a`` it must not be held against: (batch,)."""
    own = (z_a * z_b).sum(dim=1).square()
    if mix is None:
        return own
    partner = (z_a[mix.permutation] * z_b).sum(dim=1).square()
    return mix.of_losses(own, partner)


class SpectralContrastive(PairMethod):
    """Factorisation of the graph of positive pairs, −2 E[z·z⁺] + E[(z·z')²].

    Mixed is the second view. It attracts the same mixture of the first view's embeddings, and is
    held against those of the first view of which it has no part.

    Parameters
    ----------
    backbone, projector : as in `Method`.
    mu : embeddings longer than √μ are scaled back to that length, and the loss is divided by μ, so
        that a learning rate suits every μ.
    others : options of `PairMethod`, and of `MixingMethod`.
    """

    capturable = True

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        mu: float = 1.0,
        **others: Unpack[PairOptions],
    ) -> None:
        super().__init__(backbone, projector, **others)
        check_positive(mu=mu)
        self.mu = mu

    def terms(self, z_a: Tensor, z_b: Tensor, mix: Mix | None) -> dict[str, Tensor]:
        """``{"loss", "attraction", "repulsion"}``, as of `PairMethod`.

        Of several processes ``attraction`` is this rank's share and ``repulsion`` is global.
        """
        z_a, z_b = within_ball(z_a, self.mu), within_ball(z_b, self.mu)
        attraction = attraction_loss(z_a, z_b, mix)
        repulsion = repulsion_loss(z_a, z_b, mix)
        loss = (attraction + repulsion) / self.mu
        return {"loss": loss, "attraction": attraction, "repulsion": repulsion}
