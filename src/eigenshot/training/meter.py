"""Running means of the loss terms, kept on the device so that no step waits for the host."""

from __future__ import annotations

import torch
from torch import Tensor

from eigenshot.errors import TrainingDiverged


class Meter:
    """Sums of named scalars since the last `reset`."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.count = 0

    def update(self, terms: dict[str, Tensor]) -> None:
        """Add one step's terms; float64, so that a long epoch loses nothing."""
        for name, value in terms.items():
            value = value.detach().double()
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.count += 1

    def means(self) -> dict[str, float]:
        """Mean of each term; this waits for the device."""
        return {name: float(value) / max(1, self.count) for name, value in self.sums.items()}

    def check_finite(self) -> None:
        """Raise `TrainingDiverged` when a term since the last reset was not finite."""
        broken = [name for name, value in self.means().items() if not abs(value) < float("inf")]
        if broken:
            raise TrainingDiverged(f"{', '.join(broken)} is no longer finite")

    def reset(self) -> None:
        """Start a new mean."""
        self.sums, self.count = {}, 0

    def state(self) -> tuple[dict[str, Tensor], int]:
        """What `restore` needs."""
        return dict(self.sums), self.count

    def restore(self, sums: dict[str, Tensor], count: int, device: torch.device) -> None:
        """Continue a mean that a checkpoint interrupted."""
        self.sums = {name: value.to(device) for name, value in sums.items()}
        self.count = count
