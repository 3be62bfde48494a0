"""Methods whose loss is a function of the embeddings of two views and of nothing else."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eigenshot.collective import world_size
from eigenshot.errors import UserError
from eigenshot.methods.mixing import MixingMethod


class PairMethod(MixingMethod):
    """Base of the methods that say all in `terms`.

    With it a batch can go through the network in parts and still have the loss of the whole
    (`eigenshot.training.accumulation`).
    """

    def terms(self, z_a: Tensor, z_b: Tensor, drawn: Any | None) -> dict[str, Tensor]:
        """Loss terms of a batch of positive pairs.

        Parameters
        ----------
        z_a, z_b : ``(batch, K)``, row i of both belongs to one image.
        drawn : what `draw` gave: the interpolation that ``z_b`` went through, or None.

        Returns
        -------
        Scalars by name, of which ``"loss"`` is minimised. Where several processes train together,
        each is global or this rank's share, whose mean over ranks is that of the global batch.
        """
        raise NotImplementedError(f"{type(self).__name__} has no terms")

    def forward(
        self, view_a: Tensor, view_b: Tensor, drawn: Any | None = None
    ) -> dict[str, Tensor]:
        """`terms` of two views of the same images, each ``(batch, C, H, W)``."""
        # The same as objective(*represent(…)), with the projector in one piece, as it is compiled.
        return self.terms(*self.embed_pair(view_a, view_b, drawn), drawn)

    def objective(
        self, rows_a: Tensor, rows_b: Tensor, drawn: Any | None = None
    ) -> dict[str, Tensor]:
        """`terms` from the rows of `represent`, each ``(batch, K)``."""
        return self.terms(self.standardised(rows_a), self.standardised(rows_b), drawn)


def check_pair(z_a: Tensor, z_b: Tensor) -> None:
    """Refuse what is no two tables ``(batch, K)`` of one shape."""
    if z_a.shape != z_b.shape or z_a.ndim != 2:
        raise UserError(
            "expected embeddings of two views of one shape (batch, K), "
            f"found {tuple(z_a.shape)} and {tuple(z_b.shape)}"
        )


def contrasted_batch(z: Tensor) -> int:
    """The size of the global batch of which ``z`` is this process's; there must be others in it."""
    batch = len(z) * world_size()
    if batch < 2:
        raise UserError("cannot contrast a batch of one image with others; raise the batch size")
    return batch
