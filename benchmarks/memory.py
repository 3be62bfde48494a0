"""Peak GPU memory of a training step, against batch size and embedding length K.

    python benchmarks/memory.py [--out FILE]

Three tables: the decorrelation term alone (forward and backward) through the smaller of its two
matrices and through the K×K covariance, which is how it is usually written; the whole step of
ResNet-12 at 32 px; and the same batch taken in several parts (`training.micro_batches`). Memory is
what torch has allocated at most, images and weights included.
"""

from __future__ import annotations

import argparse
import gc
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from eigenshot.configfile import load_config
from eigenshot.data.source import ArraySource
from eigenshot.files import write_json
from eigenshot.hardware import environment
from eigenshot.methods.dle import decorrelation_loss
from eigenshot.reporter import Reporter
from eigenshot.training.engine import create_optimizer, create_step
from eigenshot.training.meter import Meter
from eigenshot.training.setup import build, resolve_batch, resolve_size

MEBIBYTE = 2**20
BATCHES = (64, 128, 256, 512, 1024, 2048)
LENGTHS = (512, 2048, 8192)


def start() -> None:
    """Forget what earlier cases have allocated."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def of_the_term(batch: int, length: int, route: Literal["auto", "covariance"]) -> float:
    """MiB that forward and backward of the decorrelation term add to the embeddings."""
    start()
    z = torch.randn(batch, length, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    decorrelation_loss(z, route).backward()
    return (torch.cuda.max_memory_allocated() - before) / MEBIBYTE


def of_a_step(batch: int, **settings: Any) -> float:
    """MiB that a whole captured step takes."""
    start()
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    config = load_config("fc100", {"training.batch_size": batch, **changes})
    pixels = torch.zeros(2 * batch, 3, 32, 32, dtype=torch.uint8)
    source = ArraySource(pixels, name="zeros")
    config = resolve_batch(resolve_size(config, source, "cuda"), source, "cuda")
    parts = build(config, source, "cuda")
    optimizer = create_optimizer(parts.method, config.optimizer, parts.fabric.device)
    step = create_step(parts, optimizer, Meter(), Reporter())
    parts.method.train()
    for number in range(2):
        step(number, np.arange(batch), 0.01)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / MEBIBYTE


def main() -> None:
    """Measure, print three tables, keep the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this measures GPU memory, and there is no CUDA device here")
    term = []
    print("decorrelation term, MiB: batch, K, smaller matrix, covariance, ratio")
    for batch in BATCHES:
        for length in LENGTHS:
            ours, theirs = (of_the_term(batch, length, r) for r in ("auto", "covariance"))
            row = {"batch": batch, "K": length, "auto": ours, "covariance": theirs}
            term.append({key: round(value, 2) for key, value in row.items()})
            print(f"{batch:6} {length:6} {ours:10.1f} {theirs:10.1f} {theirs / ours:8.1f}")
    print("whole step of ResNet-12 at 32 px, MiB: batch, K")
    steps = []
    for batch in BATCHES:
        for length in LENGTHS:
            steps.append(
                {
                    "batch": batch,
                    "K": length,
                    "mebibytes": round(of_a_step(batch, projector__width=length)),
                }
            )
            print(f"{batch:6} {length:6} {steps[-1]['mebibytes']:10,}")
    print("batch of 2048 in parts, MiB: parts, loss of each part, loss of the whole batch")
    split = []
    for parts in (1, 4, 16):
        plain, exact = (
            of_a_step(2048, training__micro_batches=parts, training__whole_batch_loss=whole)
            for whole in (False, True)
        )
        split.append({"parts": parts, "each": round(plain), "whole": round(exact)})
        print(f"{parts:6} {plain:10,.0f} {exact:10,.0f}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"term": term, "steps": steps, "parts": split}
        write_json(options.out, {**record, **environment(torch.device("cuda"))})


if __name__ == "__main__":
    main()
