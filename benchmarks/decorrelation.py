"""The decorrelation term through the smaller matrix, beside the K×K covariance of Algorithm 1.

python benchmarks/decorrelation.py [--out results/benchmarks/decorrelation.json]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from eigenshot.files import write_json
from eigenshot.hardware import environment
from eigenshot.methods.dle import decorrelation_loss

SHAPES = [(32, 2048), (128, 2048), (512, 2048), (2048, 2048), (128, 512)]


def as_in_the_paper(z: Tensor) -> Tensor:
    """Algorithm 1 as printed: the covariance, its off-diagonal entries squared and summed."""
    covariance = z.T @ z / len(z)
    return (covariance - torch.diag(torch.diag(covariance))).pow(2).sum()


def seconds_a_call(loss: Callable[[Tensor], Tensor], z: Tensor, repeats: int = 15) -> float:
    """Best time of forward and backward."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        torch.autograd.grad(loss(z), z)
        if z.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """Measure both on the same embeddings and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for batch, dimensions in SHAPES:
        z = torch.randn(batch, dimensions, device=options.device, requires_grad=True)
        ours = seconds_a_call(decorrelation_loss, z)
        paper = seconds_a_call(as_in_the_paper, z)
        smaller = min(batch, dimensions)
        rows.append(
            {
                "batch": batch,
                "K": dimensions,
                "milliseconds": round(1e3 * ours, 3),
                "milliseconds_as_in_the_paper": round(1e3 * paper, 3),
                "times_faster": round(paper / ours, 2),
                "matrix_entries_fewer": (dimensions / smaller) ** 2,
            }
        )
        print(
            f"B={batch:<5} K={dimensions:<5} {1e3 * ours:8.2f} ms, as printed "
            f"{1e3 * paper:8.2f} ms: {paper / ours:5.1f} times faster"
        )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.out, {"rows": rows, **environment(torch.device(options.device))})


if __name__ == "__main__":
    main()
