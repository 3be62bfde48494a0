"""Running means of the loss terms, kept on the device so that no step waits for the host."""

from __future__ import annotations

import torch
from torch import Tensor

from eigenshot.collective import mean_over_ranks
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

    def own_means(self) -> dict[str, float]:
        """Means of this process alone, for a look that the others take no part in."""
        sums = [] if self.sums is None else (self.sums / max(1, self.count)).tolist()
        return dict(zip(self.names, sums, strict=True))

    def check_finite(self) -> None:
        """Raise `TrainingDiverged` when a term since the last reset was not finite."""
        broken = [name for name, value in self.means().items() if not abs(value) < float("inf")]
        if broken:
            raise TrainingDiverged(f"{', '.join(broken)} is no longer finite")

    def reset(self) -> None:
        """Start a new mean."""
        self.count = 0
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
