"""Learning from labels, the yardstick of all that does without: draw and loss of its methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, TypeAlias, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from eigenshot.errors import UserError
from eigenshot.methods.base import exact
from eigenshot.methods.mixing import Mix, MixingMethod, MixingOptions
from eigenshot.networks import Backbone


@dataclass(frozen=True)
class Labels:
    """The class numbers of one batch, ``(batch,)``, int64."""

    labels: Tensor

    def to(self, device: torch.device) -> Self:
        """The same labels on ``device``."""
        return replace(self, labels=self.labels.to(device))

    def part(self, index: int, count: int) -> Self:
        """Those of block ``index`` of ``count`` equal ones."""
        return replace(self, labels=_block(self.labels, index, count))


@dataclass(frozen=True)
class LabelledMix(Mix):
    """One batch's interpolation, and the class numbers ``(batch,)`` of its unmixed images."""

    labels: Tensor

    def to(self, device: torch.device) -> Self:
        """The same mix with its tensors on ``device``."""
        return replace(super().to(device), labels=self.labels.to(device))

    def part(self, index: int, count: int) -> Self:
        """The mix and the labels of block ``index`` of ``count`` equal ones."""
        return replace(super().part(index, count), labels=_block(self.labels, index, count))


Drawn: TypeAlias = Labels | LabelledMix


def _block(labels: Tensor, index: int, count: int) -> Tensor:
    size = len(labels) // count
    return labels[index * size : (index + 1) * size]


def classification_loss(logits: Tensor, labels: Tensor, mix: Mix | None = None) -> Tensor:
    """Mean cross-entropy; of mixed images λ CE(y_i) + (1 − λ) CE(y_j).

    It is that of the rows given. Where several processes train together, each has its own share,
    whose mean over ranks is the loss of the global batch.

    Parameters
    ----------
    logits : ``(batch, classes)``.
    labels : ``(batch,)``, the class numbers of the unmixed images.
    mix : what the images behind ``logits`` went through.
    """
    with torch.autocast(device_type=logits.device.type, enabled=False):
        logits = exact(logits)
        own = cross_entropy(logits, labels, reduction="none")
        if mix is None:
            return own.mean()
        partners = cross_entropy(logits, labels[mix.permutation], reduction="none")
        return mix.of_losses(own, partners).mean()


class SupervisedMethod(MixingMethod):
    """Base of the methods that train a classifier on labelled images.

    Both views are classified, and the loss is the mean of their cross-entropies. With mixing, the
    second view is mixed and so are its labels.

    Parameters
    ----------
    backbone, projector : as in `Method`. The classifier works on the projector's output, which is
        that of the backbone where the projector has no layers.
    classifier : ``(batch, K)`` to logits ``(batch, classes)``.
    mixing : options of `MixingMethod`.
    """

    capturable = True

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        classifier: nn.Module,
        **mixing: Unpack[MixingOptions],
    ) -> None:
        super().__init__(backbone, projector, **mixing)
        self.classifier = classifier

    def draw(  # type: ignore[override]
        self,
        batch_size: int,
        generator: np.random.Generator,
        blocks: int = 1,
        labels: Tensor | None = None,
    ) -> Drawn:
        """The batch's ``labels``, ``(batch_size,)``, with its mix as of `MixingMethod.draw`."""
        if labels is None or labels.shape != (batch_size,):
            found = "none" if labels is None else f"labels of shape {tuple(labels.shape)}"
            raise UserError(f"expected a label for each of {batch_size} images, found {found}")
        mix = super().draw(batch_size, generator, blocks)
        if mix is None:
            return Labels(labels)
        return LabelledMix(mix.layer, mix.coefficient, mix.permutation, labels)

    def forward(self, view_a: Tensor, view_b: Tensor, drawn: Drawn) -> dict[str, Tensor]:
        """Loss of a batch of labelled images.

        Parameters
        ----------
        view_a, view_b : ``(batch, C, H, W)``, two views of the same images.
        drawn : their labels, with the interpolation of `view_b` if there is one.

        Returns
        -------
        ``{"loss", "accuracy"}``, scalars, this rank's shares; ``accuracy`` is that of `view_a`.
        """
        mix = drawn if isinstance(drawn, Mix) else None
        logits_a, logits_b = map(self.classifier, self.embed_pair(view_a, view_b, mix))
        loss = classification_loss(logits_a, drawn.labels)
        loss = (loss + classification_loss(logits_b, drawn.labels, mix)) / 2
        hits = logits_a.detach().argmax(dim=1) == drawn.labels
        return {"loss": loss, "accuracy": hits.to(loss.dtype).mean()}


def require_classes(classes: int | None) -> int:
    """The number of classes; a UserError where there are none to tell apart."""
    if classes is None or classes < 2:
        raise UserError(f"a classifier needs at least 2 classes to tell apart, found {classes}")
    return classes
