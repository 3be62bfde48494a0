"""Methods whose loss is a function of the embeddings of two views, and perhaps a second task."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from eigenshot.collective import world_size
from eigenshot.errors import UserError, check_at_least
from eigenshot.methods.mixing import MixingMethod, MixingOptions
from eigenshot.methods.rotation import rotation_head, rotation_losses
from eigenshot.networks import Backbone


class PairOptions(MixingOptions, total=False):
    """The options that every method with `PairMethod` as base hands on to it."""

    rotation: float
    rotate_every: int


class PairMethod(MixingMethod):
    """Base of the methods that say all in `terms`.

    With it a batch can go through the network in parts and still have the loss of the whole
    (`eigenshot.training.accumulation`).

    Parameters
    ----------
    backbone, projector : as in `Method`.
    rotation : weight of a second task, to tell from the features by how many quarter turns an image
        of the first view was turned (`eigenshot.methods.rotation`). With 0 there is none.
    rotate_every : of so many images one is turned for it; with 2 a quarter more images go through
        the network.
    mixing : options of `MixingMethod`.
    """

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        rotation: float = 0.0,
        rotate_every: int = 2,
        **mixing: Unpack[MixingOptions],
    ) -> None:
        super().__init__(backbone, projector, **mixing)
        if not rotation >= 0:
            raise UserError(f"rotation must not be negative, found {rotation}")
        check_at_least(1, rotate_every=rotate_every)
        if rotate_every != 2 and not rotation:
            raise UserError(f"rotate_every={rotate_every} does nothing without rotation above 0")
        self.rotation = rotation
        self.rotate_every = rotate_every
        if rotation:
            self.rotation_head = rotation_head(backbone.out_features)

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
        terms = self.terms(*self.embed_pair(view_a, view_b, drawn), drawn)
        return self._with_rotation(terms, self._rotation_losses(view_a) if self.rotation else None)

    def represent(
        self, view_a: Tensor, view_b: Tensor, drawn: Any | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rows ``(batch, K)`` of both views, as of `Method`.

        Where there is a second task, those of the first are ``(batch, K + 1)`` and end with its
        losses.
        """
        rows_a, rows_b = super().represent(view_a, view_b, drawn)
        if self.rotation:
            losses = self._rotation_losses(view_a)
            rows_a = torch.cat([rows_a.to(losses.dtype), losses[:, None]], dim=1)
        return rows_a, rows_b

    def objective(
        self, rows_a: Tensor, rows_b: Tensor, drawn: Any | None = None
    ) -> dict[str, Tensor]:
        """Loss terms as of ``forward`` from the rows of `represent`, an image a row."""
        losses = None
        if self.rotation:
            rows_a, losses = rows_a[:, :-1].to(rows_b.dtype), rows_a[:, -1]
        terms = self.terms(self.standardised(rows_a), self.standardised(rows_b), drawn)
        return self._with_rotation(terms, losses)

    def _rotation_losses(self, view: Tensor) -> Tensor:
        return rotation_losses(self.backbone, self.rotation_head, view, self.rotate_every)

    def _with_rotation(self, terms: dict[str, Tensor], losses: Tensor | None) -> dict[str, Tensor]:
        """``terms`` with the second task in them, if there is one: ``losses``, ``(batch,)``."""
        if losses is None:
            return terms
        loss = losses.mean()
        return {**terms, "loss": terms["loss"] + self.rotation * loss, "rotation": loss}


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
