"""MoCo v2: He, Fan, Wu, Xie and Girshick, "Momentum Contrast for Unsupervised Visual
Representation Learning" (2020), with the head and temperature of Chen, Fan, Girshick and He,
"Improved Baselines with Momentum Contrastive Learning" (2020).

A query has to find its key, the target network's embedding of the other view, among the keys of
earlier batches, which wait in a queue.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from eigenshot.collective import gather_rows, world_size
from eigenshot.errors import UserError, check_positive
from eigenshot.methods.base import exact, mixed_features
from eigenshot.methods.heads import embedding_length, unit
from eigenshot.methods.mixing import Mix, MixingOptions, mixed
from eigenshot.methods.momentum import MomentumMethod
from eigenshot.networks import Backbone


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


class MoCo(MomentumMethod):
    """Contrast of a query with its key and a queue of earlier keys.

    Queries are the network's embeddings of the second view, keys the target's of the first. Mixed
    is the second view; its loss is the same mixture of the losses with either image's key. Batch
    statistics are of the whole batch, so its images are not shuffled over devices for them.

    Parameters
    ----------
    backbone, projector : as in `Method`. The projector has ``out_features``.
    temperature : τ of the loss.
    queue_length : how many keys are kept; at least as many as a step brings.
    momentum : what a step keeps of the target network.
    symmetric : whether the first view's queries are also compared with the second view's keys,
        both unmixed. The loss is then the mean of the two, and all keys go into the queue.
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
        **mixing: Unpack[MixingOptions],
    ) -> None:
        super().__init__(backbone, projector, momentum=momentum, **mixing)
        check_positive(temperature=temperature, queue_length=queue_length)
        dimensions = embedding_length(projector)
        self.temperature = temperature
        self.symmetric = symmetric
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
        # The queue changes before the backward pass, which needs it as it was.
        negatives = self.queue.clone()
        if self.symmetric:
            queries_a, queries_b = map(unit, self.embed_pair(view_a, view_b, mix))
            keys_a, keys_b = map(unit, self.embed_target_pair(view_a, view_b))
            loss_a = queue_contrast_loss(queries_a, keys_b, negatives, self.temperature)
            loss_b = queue_contrast_loss(queries_b, keys_a, negatives, self.temperature, mix)
            loss = (loss_a + loss_b) / 2
            new = torch.cat([gather_rows(keys_a), gather_rows(keys_b)])
        else:
            queries_b = unit(self.projector(mixed_features(self.backbone, view_b, mix)))
            keys_a = unit(self.embed_target(view_a))
            loss = queue_contrast_loss(queries_b, keys_a, negatives, self.temperature, mix)
            new = gather_rows(keys_a)
        if self.training:
            self._enqueue(new)
        similarity = (queries_b.detach() * mixed(keys_a, mix)).sum(dim=1).mean()
        return {"loss": loss, "similarity": similarity}

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
