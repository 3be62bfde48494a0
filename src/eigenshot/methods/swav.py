"""SwAV: predict from one view to which prototypes the other view belongs.

Caron et al., "Unsupervised learning of visual features by contrasting cluster assignments", 2020.
Of its two parts this is the loss; the other, multi-crop, is augmentation: here there are two views.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

from eigenshot.collective import batch_mean, gather_rows, rank, world_size
from eigenshot.errors import UserError, check_at_least, check_positive
from eigenshot.methods.heads import embedding_length, unit
from eigenshot.methods.mixing import Mix, MixingMethod, MixingOptions, mixed
from eigenshot.networks import Backbone


@torch.no_grad()
def sinkhorn_codes(
    scores: Tensor, *, epsilon: float, iterations: int, counted: Tensor | None = None
) -> Tensor:
    """Codes that use all prototypes alike: Sinkhorn-Knopp on exp(scores / ε) (Eq. 5).

    Each iteration gives all prototypes an equal share of the samples, then every sample a total of
    1. The logarithms of both factors are kept, so that no ε is too small for them. Samples of all
    ranks count; each rank returns the codes of its own.

    Parameters
    ----------
    scores : ``(rows, prototypes)``, inner products of samples with prototypes.
    epsilon : the smaller, the nearer a code is to a single prototype.
    iterations : at least 1.
    counted : ``(rows,)``, False for rows that have no say in the shares; each rank needs a True.

    Returns
    -------
    ``(rows, prototypes)``, each row a distribution.
    """
    with torch.autocast(device_type=scores.device.type, enabled=False):
        logits = scores / epsilon
        voice = torch.zeros_like(logits[:, :1])
        if counted is not None:
            voice = voice.masked_fill(~counted[:, None], -torch.inf)
        of_sample = torch.zeros_like(voice)
        of_prototype = torch.zeros_like(logits[:1])
        for _ in range(iterations):
            total = torch.logsumexp(logits + of_sample + voice, dim=0, keepdim=True)
            of_prototype = -torch.logsumexp(gather_rows(total), dim=0, keepdim=True)
            of_sample = -torch.logsumexp(logits + of_prototype, dim=1, keepdim=True)
        return (logits + of_prototype + of_sample).exp()


def swapped_loss(
    codes_a: Tensor, codes_b: Tensor, log_a: Tensor, log_b: Tensor, mix: Mix | None = None
) -> Tensor:
    """Mean of two cross-entropies, each of one view's code and the other's prediction.

    It is half of Eq. 1, as in the paper's listing, and that of the rows given. Where several
    processes train together, each has its own share, whose mean over ranks is the loss of the
    global batch.

    Parameters
    ----------
    codes_a, codes_b : ``(batch, prototypes)``, distributions.
    log_a, log_b : ``(batch, prototypes)``, logarithms of predicted distributions.
    mix : what the images of b went through. Each of them then stands for its own image of a with
        weight λ and for its partner's with 1 − λ, in both terms.
    """
    from_b = -(mixed(codes_a, mix) * log_b).sum(dim=1).mean()
    from_a = -(codes_b * mixed(log_a, mix)).sum(dim=1).mean()
    return (from_a + from_b) / 2


class SwAV(MixingMethod):
    """Swapped assignments between two views, without multi-crop.

    With mixing, the second view is mixed, and so is its code. Its prediction is compared with the
    mixture of the first views' codes, and its code with the mixture of their log-predictions: in
    both terms a cross-entropy with weight λ and the partner's with 1 − λ.

    Parameters
    ----------
    backbone, projector : as in `Method`.
    prototypes : how many there are.
    temperature : of the predictions.
    epsilon, iterations : of `sinkhorn_codes`.
    frozen_steps : steps at the start in which the prototypes do not change.
    queue_size : earlier embeddings of each view that have a say in the codes, for batches that
        are small beside the number of prototypes; 0 for none.
    queue_start : the share of the run after which they have it, if there are enough of them.
    mixing : options of `MixingMethod`.
    """

    capturable = True
    queue: Tensor
    stored: Tensor
    steps: Tensor
    queue_open: Tensor

    def __init__(
        self,
        backbone: Backbone,
        projector: nn.Module,
        *,
        prototypes: int = 512,
        temperature: float = 0.1,
        epsilon: float = 0.05,
        iterations: int = 3,
        frozen_steps: int = 300,
        queue_size: int = 3840,
        queue_start: float = 0.075,
        **mixing: Unpack[MixingOptions],
    ) -> None:
        super().__init__(backbone, projector, **mixing)
        check_positive(temperature=temperature, epsilon=epsilon)
        check_at_least(2, prototypes=prototypes)
        check_at_least(1, iterations=iterations)
        check_at_least(0, frozen_steps=frozen_steps, queue_size=queue_size)
        if not 0 <= queue_start <= 1:
            raise UserError(f"queue_start must lie between 0 and 1, found {queue_start}")
        self.temperature = temperature
        self.epsilon = epsilon
        self.iterations = iterations
        self.frozen_steps = frozen_steps
        self.queue_size = queue_size
        self.queue_start = queue_start
        length = embedding_length(projector)
        self.prototypes = nn.Parameter(normalize(torch.randn(prototypes, length), dim=1))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        if queue_size:
            self.register_buffer("queue", torch.zeros(2, queue_size, length))
            self.register_buffer("stored", torch.zeros((), dtype=torch.int64))
            self.register_buffer("queue_open", torch.tensor(queue_start == 0))

    def forward(self, view_a: Tensor, view_b: Tensor, mix: Mix | None = None) -> dict[str, Tensor]:
        """Loss of a batch of positive pairs; in training its embeddings then join the queue.

        Parameters
        ----------
        view_a, view_b : ``(batch, C, H, W)``, two views of the same images.
        mix : the interpolation of `view_b`.

        Returns
        -------
        ``{"loss", "perplexity"}``, scalars. ``loss`` is this rank's share. ``perplexity`` is that
        of the mean prediction over the global batch: how many prototypes are in use.
        """
        z_a, z_b = map(unit, self.embed_pair(view_a, view_b, mix))
        with torch.autocast(device_type=z_a.device.type, enabled=False):
            prototypes = self._prototypes()
            scores_a, scores_b = z_a @ prototypes.T, z_b @ prototypes.T
            codes_a = self._codes(0, scores_a)
            codes_b = self._codes(1, scores_b)
            if self.queue_size and self.training:
                self._remember(z_a, z_b)
            log_a = log_softmax(scores_a / self.temperature, dim=1)
            log_b = log_softmax(scores_b / self.temperature, dim=1)
            usage = batch_mean(log_a.detach().exp(), 0)
            return {
                "loss": swapped_loss(codes_a, codes_b, log_a, log_b, mix),
                "perplexity": torch.special.entr(usage).sum().exp(),
            }

    @property
    def goes_by_length(self) -> bool:
        """Whether a queue waits for its share of the run."""
        return self.queue_size > 0 and self.queue_start > 0

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Bring the prototypes back to unit length, and see whether the queue's time has come."""
        self.prototypes.copy_(normalize(self.prototypes, dim=1))
        self.steps += 1
        if self.queue_size:
            self.queue_open.fill_(progress >= self.queue_start)

    def _prototypes(self) -> Tensor:
        """The prototypes, ``(prototypes, K)``, with a gradient of zero while they are frozen."""
        # Zero and not none: processes wait for each other's gradient of every parameter.
        moving = (self.steps >= self.frozen_steps).to(self.prototypes.dtype)
        return torch.lerp(self.prototypes.detach(), self.prototypes, moving)

    @torch.no_grad()
    def _codes(self, view: int, scores: Tensor) -> Tensor:
        """Codes of this rank's samples of one view, from and of the shape of their ``scores``."""
        if not self.queue_size:
            return sinkhorn_codes(scores, epsilon=self.epsilon, iterations=self.iterations)
        # The queue is the same on all ranks, and each counts its own part of it.
        earlier = self.queue[view, rank() :: world_size()] @ self.prototypes.T
        in_use = self.queue_open & (self.stored >= self.queue_size)
        counted = torch.cat([in_use.expand(len(earlier)), torch.ones_like(scores[:, 0]).bool()])
        codes = sinkhorn_codes(
            torch.cat([earlier, scores]),
            epsilon=self.epsilon,
            iterations=self.iterations,
            counted=counted,
        )
        return codes[len(earlier) :]

    @torch.no_grad()
    def _remember(self, z_a: Tensor, z_b: Tensor) -> None:
        """Let the global batch take the place of what has been in the queue for longest."""
        both = torch.stack([z_a, z_b], dim=1)  # rows first, as they are gathered
        new = gather_rows(both.detach())[-self.queue_size :].to(self.queue.dtype)
        rows = torch.arange(len(new), device=new.device)
        self.queue.index_copy_(1, (self.stored + rows) % self.queue_size, new.transpose(0, 1))
        self.stored += len(new)
