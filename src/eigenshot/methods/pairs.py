"""Methods whose loss is a function of the embeddings of two views and of nothing else."""

from __future__ import annotations

from typing import Any

from torch import Tensor

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
