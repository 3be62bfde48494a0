"""Is the embedding alive, and do the weights move? Measured every epoch.

The embedding is that of the same images in the same views each time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from eigenshot.hardware import widest_float

# Below these an embedding no longer tells images apart, whatever the loss says.
COLLAPSED_RANK = 2.0
COLLAPSED_STD = 0.05


@dataclass(frozen=True)
class Diagnostics:
    """Health of an embedding.

    ``std_mean`` and ``std_min`` are over dimensions, 1 when standardised; ``std_share`` is the mean
    as a share of the entries' root mean square, 0 when all embeddings are one; ``effective_rank``
    is the exponential of the entropy of the normalised singular values (RankMe); ``alignment`` is
    the mean squared distance of the two views on the unit sphere; ``uniformity`` is the logarithm
    of the mean Gaussian potential of pairs there, lower being more spread out.
    """

    std_mean: float
    std_min: float
    std_share: float
    effective_rank: float
    alignment: float
    uniformity: float

    def collapse(self, *, standardised: bool) -> str | None:
        """What says that the embedding has collapsed, or None.

        Most methods do not mind how long embeddings are; but what is ``standardised`` and has no
        unit variance has lost it to the eps of its own normalisation.
        """
        if self.effective_rank < COLLAPSED_RANK:
            return f"effective rank {self.effective_rank:.2f} is below {COLLAPSED_RANK:g}"
        deviation = min(self.std_mean, self.std_share) if standardised else self.std_share
        if deviation < COLLAPSED_STD:
            return f"mean deviation {deviation:.3f} of a dimension is below {COLLAPSED_STD:g}"
        return None

    def as_metrics(self) -> dict[str, float]:
        """Flat names for the log."""
        return {
            f"z_{name}" if name.startswith("std") else name: v for name, v in asdict(self).items()
        }


def diagnose(z_a: Tensor, z_b: Tensor) -> Diagnostics:
    """Diagnostics of the embeddings of two views, each ``(n, K)``."""
    z_a, z_b = z_a.float(), z_b.float()
    deviation = z_a.std(dim=0, unbiased=False)
    unit_a = torch.nn.functional.normalize(z_a, dim=1)
    unit_b = torch.nn.functional.normalize(z_b, dim=1)
    return Diagnostics(
        std_mean=float(deviation.mean()),
        std_min=float(deviation.min()),
        std_share=float(deviation.mean() / z_a.square().mean().sqrt().clamp_min(1e-30)),
        effective_rank=effective_rank(z_a),
        alignment=float((unit_a - unit_b).square().sum(dim=1).mean()),
        uniformity=uniformity(unit_a),
    )


def effective_rank(z: Tensor) -> float:
    """exp of the entropy of the singular values of z, ``(n, K)``: between 1 and min(n, K)."""
    z = _in_float64(z)
    # The squares are eigenvalues of the smaller product, less those that rounding alone makes.
    squares = torch.linalg.eigvalsh(z @ z.T if len(z) <= z.shape[1] else z.T @ z)
    noise = squares.max() * len(squares) * torch.finfo(squares.dtype).eps
    values = torch.where(squares > noise, squares, 0.0).sqrt()
    total = values.sum()
    if not bool(total > 0):
        return 0.0
    return float(torch.special.entr(values / total).sum().exp())


def uniformity(unit: Tensor) -> float:
    """log of the mean of exp(−2‖x − y‖²) over pairs of rows of ``(n, d)`` on the unit sphere."""
    count = len(unit)
    if count < 2:
        return 0.0
    unit = _in_float64(unit)
    potentials = (4 * (unit @ unit.T - 1)).exp()  # ‖x − y‖² = 2 − 2 x·y on the sphere
    return float(((potentials.sum() - potentials.trace()) / (count * (count - 1))).log())


def relative_step(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Length of SGD's last step as a share of the weights' own, by name; nothing without momentum.

    The median over weight matrices and kernels. Most of them stand before a normalisation, where
    only their direction counts, and turn no faster than this, whatever the learning rate is. Of
    weights that only decay it is lr · decay / (1 − momentum); where decay and steps at right angles
    balance, √(2 · lr · decay / (1 + momentum)).
    """
    shares = []
    for group in optimizer.param_groups:
        for weight in (parameter for parameter in group["params"] if parameter.dim() > 1):
            velocity = optimizer.state.get(weight, {}).get("momentum_buffer")
            if velocity is not None:
                own = weight.detach().norm().clamp_min(1e-30)
                shares.append(group["lr"] * velocity.norm() / own)
    return {"relative_step": float(torch.stack(shares).median())} if shares else {}


def _in_float64(z: Tensor) -> Tensor:
    """``z`` in float64, on its own device where that has it."""
    place = z.device if widest_float(z.device) == torch.float64 else "cpu"
    return z.to(place).double()
