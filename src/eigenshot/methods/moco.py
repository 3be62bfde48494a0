"""MoCo v2: He, Fan, Wu, Xie and Girshick, "Momentum Contrast for Unsupervised Visual
Representation Learning" (2020), with the head and temperature of Chen, Fan, Girshick and He,
"Improved Baselines with Momentum Contrastive Learning" (2020).

A query has to find its key, the target network's embedding of the other view, among the keys of
earlier batches, which wait in a queue. Batch normalisation would tell it which: only its own key
comes from a batch with the same images. So a batch is normalised in groups, and other images make a
group of keys than one of queries ("shuffling BN", section 3.3 of the first paper).
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.modules.batchnorm import _BatchNorm

from eigenshot.collective import average_in_place, gather_rows, rank, world_size
from eigenshot.errors import UserError, check_positive
from eigenshot.methods.base import exact, mixed_features
from eigenshot.methods.heads import embedding_length, unit
from eigenshot.methods.mixing import Mix, MixingOptions, mixed
from eigenshot.methods.momentum import MomentumMethod
from eigenshot.networks import Backbone
from eigenshot.networks.apart import groups_apart, make_ready

_LEAST_IMAGES = 4  # of a group: of two, statistics leave little but signs


def queue_contrast_loss(
    queries: Tensor,
    keys: Tensor,
    negatives: Tensor,
    temperature: float = 0.2,
    mix: Mix | None = None,
) -> Tensor:
    """Mean of −log exp(q·k⁺/τ) / (exp(q·k⁺/τ) + Σ_n exp(q·n/τ)), InfoNCE (Eq. 1).

    It is that of the queries given. Where several processes train together, each has its own
    share, whose mean over ranks is the loss of the global batch.

    Parameters
    ----------
    queries, keys : ``(batch, K)`` of unit rows, row i of both belongs to one image.
    negatives : ``(length, K)`` of unit rows.
    temperature : τ.
    mix : how `queries` were mixed; the loss is then λ times that with key i and 1 − λ times that
        with the key of the partner.
    """
    with torch.autocast(device_type=queries.device.type, enabled=False):
        queries, keys, negatives = exact(queries), exact(keys), exact(negatives)
        others = (queries @ negatives.T / temperature).logsumexp(dim=1)

        def against(chosen: Tensor) -> Tensor:
            positive = (queries * chosen).sum(dim=1) / temperature
            return torch.logaddexp(positive, others) - positive

        own = against(keys)
        if mix is None:
            return own.mean()
        return mix.of_losses(own, against(keys[mix.permutation])).mean()


def crosswise(batch: int, groups: int, device: torch.device | str | None = None) -> Tensor:
    """An order of ``batch`` images whose ``groups`` equal groups cut across those of their order.

    ``(batch,)``, int64: every group has equally many of each former one, or nearly so. A batch is
    drawn at random, so who meets whom in a group is drawn as well.
    """
    return torch.cat([torch.arange(first, batch, groups, device=device) for first in range(groups)])


class MoCo(MomentumMethod):
    """Contrast of a query with its key and a queue of earlier keys.

    Queries are the network's embeddings of the second view, keys the target's of the first. Mixed
    is the second view; its loss is the same mixture of the losses with either image's key.

    Where several processes train together, each normalises its share of the groups, and views
    travel between them to make the groups of keys.

    Parameters
    ----------
    backbone, projector : as in `Method`. The projector has ``out_features``.
    temperature : τ of the loss.
    queue_length : how many keys are kept; at least as many as a step brings.
    momentum : what a step keeps of the target network.
    symmetric : whether the first view's queries are also compared with the second view's keys,
        both unmixed. The loss is then the mean of the two, and all keys go into the queue.
    groups : into how many parts of one size the images of all processes are divided for batch
        normalisation: on each of W processes ``groups // W``, or the next smaller number that
        divides its images into groups of four at least, and 1 at least. Of a batch that goes
        through the network in parts, each part is divided. With 1 the statistics are those of the
        whole batch, and nothing keeps a query from knowing its key by them. Layers of torch's own
        classes heed it; a projector that standardises does not, and is refused.
    mixing : options of `MixingMethod`.
    """

    capturable = True
    queue: Tensor
    position: Tensor

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        temperature: float = 0.2,
        queue_length: int = 16_384,
        momentum: float = 0.999,
        symmetric: bool = False,
        groups: int = 8,
        **mixing: Unpack[MixingOptions],
    ) -> None:
        super().__init__(backbone, projector, momentum=momentum, **mixing)
        check_positive(temperature=temperature, queue_length=queue_length, groups=groups)
        dimensions = embedding_length(projector)
        self.temperature = temperature
        self.symmetric = symmetric
        self.groups = groups
        if groups > 1 and self.standardises:
            raise UserError(
                "a standardised head tells queries their keys by the statistics of a batch; set "
                "projector.standardize=false, or method.options.groups=1 to have it all the same"
            )
        if groups > 1:
            make_ready(self)
        self.register_buffer("queue", normalize(torch.randn(queue_length, dimensions), dim=1))
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))  # of the oldest key

    def forward(self, view_a: Tensor, view_b: Tensor, mix: Mix | None = None) -> dict[str, Tensor]:
        """Loss terms of a batch of positive pairs; in training its keys then join the queue.

        Parameters
        ----------
        view_a, view_b : ``(batch, C, H, W)``, two views of the same images.
        mix : the interpolation of `view_b`; without it the pairs are compared unmixed.

        Returns
        -------
        ``{"loss", "similarity"}``, scalars; the second is the mean cosine of the second view's
        queries and their keys. Where several processes train together, both are this rank's share.
        """
        self._check_length(len(view_a) * world_size() * (2 if self.symmetric else 1))
        groups = self._groups(len(view_a))
        # The queue changes before the backward pass, which needs it as it was.
        negatives = self.queue.clone()
        with groups_apart(groups, self.backbone, self.projector):
            if self.symmetric:
                queries_a, queries_b = map(unit, self.embed_pair(view_a, view_b, mix))
            else:
                queries_b = unit(self.projector(mixed_features(self.backbone, view_b, mix)))
        new, keys_a = self._keys(view_a, groups)
        loss = queue_contrast_loss(queries_b, keys_a, negatives, self.temperature, mix)
        if self.symmetric:
            new_b, keys_b = self._keys(view_b, groups)
            other = queue_contrast_loss(queries_a, keys_b, negatives, self.temperature)
            loss = (loss + other) / 2
            new = torch.cat([new, new_b])
        if self.training:
            self._enqueue(new)
        similarity = (queries_b.detach() * mixed(keys_a, mix)).sum(dim=1).mean()
        return {"loss": loss, "similarity": similarity}

    @property
    def goes_by_length(self) -> bool:
        """As of every target that follows; what else is done is alike in runs of any length."""
        return super().goes_by_length

    def after_step(self, progress: float) -> None:
        """Let the target follow, and every process know the running statistics of all groups."""
        super().after_step(progress)
        if self.groups > 1 and world_size() > 1:
            layers = [part for part in self.modules() if isinstance(part, _BatchNorm)]
            kept = (
                tensor for layer in layers for tensor in (layer.running_mean, layer.running_var)
            )
            average_in_place(tensor for tensor in kept if tensor is not None)

    def remarks(self, images: int, at_once: int) -> list[str]:
        """A queue in which images meet themselves, and a batch that is not divided as asked."""
        found = []
        if len(self.queue) > images:
            found.append(
                f"a queue of {len(self.queue):,} keys is longer than an epoch of {images:,} "
                "images, which are contrasted with earlier keys of their own in it; a smaller "
                "method.options.queue_length, of a few batches at least, keeps them apart"
            )
        if self.groups > 1 and self._groups(at_once) * world_size() == 1:
            found.append(
                f"batches of {at_once} do not divide into groups of one size and at least "
                f"{_LEAST_IMAGES} images, so they are normalised as a whole, by which queries can "
                "tell their keys; another training.batch_size divides"
            )
        return found

    def _groups(self, batch: int) -> int:
        """How many groups this process's ``batch`` images are normalised in."""
        most = min(self.groups // world_size(), batch // _LEAST_IMAGES)
        return next((count for count in range(most, 1, -1) if batch % count == 0), 1)

    @torch.no_grad()
    def _keys(self, view: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        """Keys of one view of all images, ``(world_size · batch, K)``, and of this process's own.

        ``groups`` is the number of those that this process normalises.
        """
        if self.groups == 1:
            keys = unit(self.embed_target(view))
            return gather_rows(keys), keys
        everyone = gather_rows(view)
        order = crosswise(len(everyone), groups * world_size(), everyone.device)
        own = slice(rank() * len(view), (rank() + 1) * len(view))
        with groups_apart(groups, self.target_backbone, self.target_projector):
            keys = gather_rows(unit(self.embed_target(everyone[order[own]])))
        keys = torch.empty_like(keys).index_copy_(0, order, keys)
        return keys, keys[own]

    @torch.no_grad()
    def _enqueue(self, keys: Tensor) -> None:
        """Let ``keys``, ``(rows, K)``, take the place of the oldest ones."""
        length = len(self.queue)
        places = (self.position + torch.arange(len(keys), device=keys.device)) % length
        self.queue.index_copy_(0, places, keys.to(self.queue.dtype))
        self.position.add_(len(keys)).remainder_(length)

    def _check_length(self, keys: int) -> None:
        if keys > len(self.queue):
            raise UserError(
                f"a queue of {len(self.queue)} keys is shorter than the {keys} that a step brings; "
                "raise method.options.queue_length or lower training.batch_size"
            )
