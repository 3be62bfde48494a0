"""Peak GPU memory and time of a training step, against batch size and embedding length K.

    python benchmarks/memory.py [--tables term steps …] [--out FILE]

Four tables. *term*: the decorrelation term alone (forward and backward) through the smaller of its
two matrices and through the K×K covariance, which is how it is usually written. *steps*: the whole
step of ResNet-12 at 32 px, in a graph of plain kernels. *parts*: a batch of the largest size taken
in several parts (`training.micro_batches`). *compiled*: the recipe's own step in plain and in
compiled kernels. Memory is what torch has allocated at most, images and weights included; a step's
time is the mean of a few, in which every layer mixes views. Without a GPU only times are measured.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console

from eigenshot.configfile import load_config
from eigenshot.data.source import ArraySource
from eigenshot.errors import UserError
from eigenshot.files import write_json
from eigenshot.hardware import choose_device, device_time, environment
from eigenshot.methods.dle import decorrelation_loss
from eigenshot.reporter import ConsoleReporter
from eigenshot.training.choices import resolve_batch, resolve_size
from eigenshot.training.engine import compile_if_worthwhile, create_optimizer, create_step
from eigenshot.training.meter import Meter
from eigenshot.training.setup import build

MEBIBYTE = 2**20
BATCHES = (64, 128, 256, 512, 1024, 2048)
LENGTHS = (512, 2048, 8192)
PARTS = (1, 4, 16)
COMPILED_BATCH = 128

# Steps that mix views at every layer, each at least once.
_STEPS = 9


def start(device: str) -> None:
    """Forget what earlier cases have allocated."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def allocated(device: str, *, peak: bool) -> float | None:
    """MiB that torch has allocated, now or at most; None without a GPU."""
    if device != "cuda":
        return None
    counted = torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()
    return counted / MEBIBYTE


def of_the_term(
    device: str, batch: int, length: int, route: Literal["auto", "covariance"]
) -> float | None:
    """MiB that forward and backward of the decorrelation term add to the embeddings."""
    start(device)
    z = torch.randn(batch, length, device=device, requires_grad=True)
    before = allocated(device, peak=False)
    decorrelation_loss(z, route).backward()
    after = allocated(device, peak=True)
    return None if before is None or after is None else round(after - before, 2)


def of_a_step(device: str, batch: int, settings: dict[str, Any]) -> dict[str, Any]:
    """MiB and milliseconds that a whole step takes."""
    start(device)
    reporter = ConsoleReporter(Console())
    asked = {"training.batch_size": batch, "engine.compile": "off", **settings}
    pixels = torch.zeros(2 * batch, 3, 32, 32, dtype=torch.uint8)
    source = ArraySource(pixels, name="zeros")
    config = resolve_size(load_config("fc100", asked), source, device)
    parts = build(resolve_batch(config, source, device), source, device)
    optimizer = create_optimizer(parts.method, config.optimizer, parts.fabric.device)
    compile_if_worthwhile(parts, 0, reporter)
    step = create_step(parts, optimizer, Meter(), reporter)
    parts.method.train()
    seconds = 0.0
    for _ in range(2):  # the first time they are captured, and compiled for
        began = device_time(parts.fabric.device)
        for number in range(_STEPS):
            step(number, np.arange(batch), 0.01)
        seconds = device_time(parts.fabric.device) - began
    taken = allocated(device, peak=True)
    return {
        "mebibytes": None if taken is None else round(taken),
        "milliseconds_a_step": round(1000 * seconds / _STEPS, 3),
    }


def shown(value: float | None) -> str:
    """A number for a table, or a dash."""
    return f"{'-':>10}" if value is None else f"{value:10,.1f}"


def term_table(device: str, batches: Sequence[int], lengths: Sequence[int]) -> list[Any]:
    """The term by both routes."""
    print("decorrelation term, MiB: batch, K, smaller matrix, covariance")
    of_the_term(device, min(batches), min(lengths), "auto")  # libraries allocate once, for all
    rows = []
    for batch in batches:
        for length in lengths:
            ours, theirs = (of_the_term(device, batch, length, r) for r in ("auto", "covariance"))
            rows.append({"batch": batch, "K": length, "auto": ours, "covariance": theirs})
            print(f"{batch:6} {length:6} {shown(ours)} {shown(theirs)}", flush=True)
    return rows


def steps_table(device: str, batches: Sequence[int], lengths: Sequence[int]) -> list[Any]:
    """Whole steps by batch and K."""
    print("whole step of ResNet-12 at 32 px: batch, K, MiB, ms")
    rows = []
    for batch in batches:
        for length in lengths:
            found = of_a_step(device, batch, {"projector.width": length})
            rows.append({"batch": batch, "K": length, **found})
            print(f"{batch:6} {length:6} {_both(found)}", flush=True)
    return rows


def parts_table(device: str, batches: Sequence[int], lengths: Sequence[int]) -> list[Any]:
    """The largest batch in parts, with the loss of each part and with that of the whole batch."""
    batch = max(batches)
    print(f"batch of {batch} in parts: parts, loss of each part, MiB, ms, of the whole batch, same")
    rows = []
    for count in (count for count in PARTS if 2 * count <= batch):
        each, whole = (
            of_a_step(
                device,
                batch,
                {"training.micro_batches": count, "training.whole_batch_loss": exact},
            )
            for exact in (False, True)
        )
        rows.append(
            {
                "batch": batch,
                "parts": count,
                "each": each["mebibytes"],
                "whole": whole["mebibytes"],
                "each_milliseconds_a_step": each["milliseconds_a_step"],
                "whole_milliseconds_a_step": whole["milliseconds_a_step"],
            }
        )
        print(f"{count:6} {_both(each)} {_both(whole)}", flush=True)
    return rows


def compiled_table(device: str, batches: Sequence[int], lengths: Sequence[int]) -> list[Any]:
    """The recipe's own step with plain and with compiled kernels."""
    batch = min(COMPILED_BATCH, max(batches))
    print(f"kernels of a step of batch {batch}: compiled, MiB, ms")
    rows = []
    for compiled in ("off", "on"):
        found = of_a_step(device, batch, {"engine.compile": compiled})
        rows.append({"batch": batch, "compile": compiled, **found})
        print(f"{compiled:>6} {_both(found)}", flush=True)
    return rows


def _both(found: dict[str, Any]) -> str:
    return f"{shown(found['mebibytes'])} {shown(found['milliseconds_a_step'])}"


TABLES: dict[str, Callable[[str, Sequence[int], Sequence[int]], list[Any]]] = {
    "term": term_table,
    "steps": steps_table,
    "parts": parts_table,
    "compiled": compiled_table,
}


def main() -> None:
    """Measure, print a table after the other, keep the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = choose_device(options.device)
    record = {}
    for name in options.tables:
        record[name] = TABLES[name](device, options.batches, options.lengths)
        if options.out:  # after every table: the next one may take long
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_json(options.out, {**record, **environment(torch.device(device))})


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
