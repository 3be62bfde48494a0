"""W-MSE: two views are compared after each has been whitened.

Ermolov, Siarohin, Sangineto and Sebe: Whitening for Self-Supervised Representation Learning. ICML
2021. Equation numbers are that paper's.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from eigenshot.collective import gather_rows, rank, world_size
from eigenshot.errors import UserError, check_at_least, check_positive
from eigenshot.methods.base import exact
from eigenshot.methods.mixing import Mix, mixed
from eigenshot.methods.pairs import PairMethod, PairOptions
from eigenshot.methods.whitening import cholesky_whitened
from eigenshot.networks import Backbone

# A prime and one of its primitive roots. Squares modulo the prime come in an order without a
# pattern, no two of the first 2³⁰ numbers have the same one, and a square of any fits in 64 bits.
_PRIME, _ROOT = 2**31 - 1, 48271


def whitened_in_parts(z: Tensor, sub_batch: int, partition: int, ridge: float) -> Tensor:
    """Rows ``(samples, K)``, each made white together with those of its own sub-batch (Eq. 8).

    There are as many sub-batches of at least ``sub_batch`` rows as there can be, of sizes that
    differ by at most one. ``partition`` numbers the ways to form them; the first takes the rows as
    they come.
    """
    samples, dimensions = z.shape
    count = max(samples // sub_batch, 1)
    if samples // count <= dimensions:
        raise UserError(
            f"whitening needs more samples than dimensions, found sub-batches of "
            f"{samples // count} and {dimensions} dimensions; raise training.batch_size and "
            "method.options.sub_batch, lower projector.out, or, where a batch goes through the "
            "network in parts, set training.whole_batch_loss=true"
        )
    order = _order(samples, partition, z.device)
    parts = z.index_select(0, order).tensor_split(count)
    white = torch.cat([cholesky_whitened(part, ridge) for part in parts])
    return torch.zeros_like(white).index_copy(0, order, white)


def _order(samples: int, partition: int, device: torch.device) -> Tensor:
    """A permutation ``(samples,)`` for each number, alike on all ranks; the identity for 0.

    A batch has its images in random order, so rows at fixed places are a random choice of images.
    """
    places = torch.arange(samples, device=device)
    if partition == 0:
        return places
    multiples = (places + 1) * pow(_ROOT, partition, _PRIME) % _PRIME
    return (multiples.square() % _PRIME).argsort()


class WMSE(PairMethod):
    """The squared distance of unit vectors, 2 − 2 cos, of whitened views (Eq. 5, Eq. 6).

    Where several processes train together, sub-batches are formed of all ranks' samples. `embed`,
    which diagnostics look at, is the projector's output before it is whitened.

    What is mixed: the second view inside the network. Once white, it is compared with the same
    mixture of the first view's white embeddings.

    Parameters
    ----------
    backbone, projector : as in `Method`.
    sub_batch : the least number of samples that are whitened together; the authors take twice the
        dimensions. A smaller batch is one sub-batch.
    iterations : the number of partitions into sub-batches, over which the loss is a mean.
    ridge : what is added to every variance before the Cholesky factor is taken, as a share of their
        mean.
    others : options of `PairMethod`, and of `MixingMethod`.
    """

    capturable = True

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        sub_batch: int = 128,
        iterations: int = 1,
        ridge: float = 1e-6,
        **others: Unpack[PairOptions],
    ) -> None:
        super().__init__(backbone, projector, **others)
        check_at_least(1, sub_batch=sub_batch, iterations=iterations)
        check_positive(ridge=ridge)
        self.sub_batch = sub_batch
        self.iterations = iterations
        self.ridge = ridge

    def terms(self, z_a: Tensor, z_b: Tensor, mix: Mix | None) -> dict[str, Tensor]:
        """``{"loss"}``, as of `PairMethod`, this rank's share."""
        with torch.autocast(device_type=z_a.device.type, enabled=False):
            z_a, z_b = gather_rows(exact(z_a)), gather_rows(exact(z_b))
            losses = []
            for partition in range(self.iterations):
                white_a, white_b = (
                    whitened_in_parts(z, self.sub_batch, partition, self.ridge).chunk(world_size())
                    for z in (z_a, z_b)
                )
                own_a, own_b = mixed(white_a[rank()], mix), white_b[rank()]
                losses.append(2 - 2 * cosine_similarity(own_a, own_b, dim=1).mean())
            return {"loss": torch.stack(losses).mean()}
