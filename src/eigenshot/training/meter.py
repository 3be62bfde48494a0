"""Running means of the loss terms, kept on the device so that no step waits for the host."""

from __future__ import annotations

import torch
from torch import Tensor

from eigenshot.collective import mean_over_ranks, world_size
from eigenshot.errors import TrainingDiverged
from eigenshot.hardware import widest_float


class Meter:
    """Sums of named scalars since the last `reset`.

    All sums share one tensor, float64 where the device has that, which keeps its place in memory,
    so a captured step can add to it. ``add`` is what the device does, ``count`` what the host
    knows.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.sums: Tensor | None = None
        self.count = 0
        self._sent_for: _SentFor | None = None
        self._seen: dict[str, float] = {}

    def add(self, terms: dict[str, Tensor]) -> None:
        """Add one step's terms on the device; the caller counts the step."""
        self.names = self.names or tuple(terms)
        dtype = widest_float(terms[self.names[0]].device)
        values = torch.stack([terms[name].detach().to(dtype) for name in self.names])
        if self.sums is None:
            self.sums = torch.zeros_like(values)
        self.sums += values

    def means(self) -> dict[str, float]:
        """Mean of each term over steps and processes; this waits for the device."""
        if self.sums is None:
            return {}
        means = mean_over_ranks(self.sums) / max(1, self.count)
        return dict(zip(self.names, means.tolist(), strict=True))

    def glance(self) -> dict[str, float]:
        """Means of this process alone, without waiting: on a GPU those of an earlier glance.

        Each one sends for the sums as they are by then, and sees what has arrived since the last.
        Nothing is known at first, nor after a `reset`.
        """
        self._take_in()
        if self._sent_for is None and self.sums is not None:
            self._sent_for = _SentFor(self.sums, self.count)
            if not self.sums.is_cuda:
                self._take_in()
        return self._seen

    def _take_in(self) -> None:
        if self._sent_for is not None and self._sent_for.has_arrived():
            means = (self._sent_for.sums / max(1, self._sent_for.count)).tolist()
            self._seen = dict(zip(self.names, means, strict=True))
            self._sent_for = None

    def check_finite(self) -> None:
        """Raise `TrainingDiverged` when a term since the last reset was not finite."""
        _require_finite(self.means())

    def glance_at_finite(self) -> None:
        """As `check_finite`, without waiting: of what `glance` has seen, so it may come later.

        Several processes must stop together, so they wait for each other.
        """
        _require_finite(self.means() if world_size() > 1 else self.glance())

    def reset(self) -> None:
        """Start a new mean."""
        self.count = 0
        self._sent_for, self._seen = None, {}
        if self.sums is not None:
            self.sums.zero_()

    def state(self) -> tuple[dict[str, Tensor], int]:
        """What `restore` needs; a mean over processes, of which one writes."""
        if self.sums is None:
            return {}, self.count
        sums = mean_over_ranks(self.sums)
        return {name: sums[i].clone() for i, name in enumerate(self.names)}, self.count

    def restore(self, sums: dict[str, Tensor], count: int, device: torch.device) -> None:
        """Continue a mean that a checkpoint interrupted."""
        self.count = count
        if sums:
            self.names = tuple(sums)
            values = [value.to(widest_float(device)) for value in sums.values()]
            self.sums = torch.stack(values).to(device)


class _SentFor:
    """Sums on their way from the device to the host."""

    def __init__(self, sums: Tensor, count: int) -> None:
        self.count = count
        on_cuda = sums.is_cuda
        self.sums = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=on_cuda)
        self.sums.copy_(sums, non_blocking=on_cuda)
        self._copied = torch.cuda.Event() if on_cuda else None
        if self._copied is not None:
            self._copied.record()

    def has_arrived(self) -> bool:
        """Whether ``sums`` holds what was sent for."""
        return self._copied is None or self._copied.query()


def _require_finite(means: dict[str, float]) -> None:
    broken = [name for name, value in means.items() if not abs(value) < float("inf")]
    if broken:
        verb = "is" if len(broken) == 1 else "are"
        raise TrainingDiverged(f"{', '.join(broken)} {verb} no longer finite")
