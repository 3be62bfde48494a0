"""Methods whose loss is a function of the embeddings of two views and of nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eigenshot.collective import world_size
from eigenshot.errors import UserError
from eigenshot.methods.base import mixed_features, without_standardize
from eigenshot.methods.mixing import Mix, MixingMethod
from eigenshot.networks.apart import unrecorded


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
        self,
        view_a: Tensor,
        view_b: Tensor,
        drawn: Any | None = None,
        local: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """`terms` of two views of the same images, each ``(batch, C, H, W)``.

        ``local`` are small views, ``(batch, count, C, h, w)``. Each stands in for the second view
        in turn, and the terms are the mean over all.
        """
        # The same as objective(*represent(…)), with the projector in one piece, as it is compiled.
        z_a, z_b = self.embed_pair(view_a, view_b, drawn)
        small = None if local is None else self.embed_local(local, drawn)
        return self._mean_terms(z_a, z_b, drawn, small)

    def represent(
        self,
        view_a: Tensor,
        view_b: Tensor,
        drawn: Any | None = None,
        local: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """As of `Method`; rows of small views follow as ``(batch, count, K)``."""
        rows = super().represent(view_a, view_b, drawn)
        if local is None:
            return rows
        with without_standardize(self.projector):
            return *rows, self.embed_local(local, drawn)

    def objective(
        self,
        rows_a: Tensor,
        rows_b: Tensor,
        drawn: Any | None = None,
        local: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """`terms` from the rows of `represent`, each ``(batch, K)``; of small views as there."""
        z_a, z_b = self.standardised(rows_a), self.standardised(rows_b)
        if local is None:
            return self._mean_terms(z_a, z_b, drawn)
        with unrecorded(self.projector):
            small = self.standardised(local.flatten(0, 1))
        return self._mean_terms(z_a, z_b, drawn, small.unflatten(0, local.shape[:2]))

    def embed_local(self, local: Tensor, drawn: Any | None = None) -> Tensor:
        """Embeddings of small views, ``(batch, count, C, h, w)`` to ``(batch, count, K)``.

        They are mixed as the second view is, and go through the network together, with batch
        statistics of their own, which leave no trace: the encoder is to know whole images.
        """
        count = local.shape[1]
        mix = drawn.of_each(count) if isinstance(drawn, Mix) else None
        with unrecorded(self.backbone, self.projector):
            features = mixed_features(self.backbone, local.flatten(0, 1), mix)
            embeddings: Tensor = self.projector(features)
        return embeddings.unflatten(0, (-1, count))

    def _mean_terms(
        self, z_a: Tensor, z_b: Tensor, drawn: Any | None, small: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`terms` with ``z_b``, or their mean with it and with each of ``(batch, count, K)``."""
        terms = self.terms(z_a, z_b, drawn)
        if small is None:
            return terms
        others = [self.terms(z_a, z, drawn) for z in small.unbind(dim=1)]
        return {
            name: torch.stack([term, *(other[name] for other in others)]).mean()
            for name, term in terms.items()
        }


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
