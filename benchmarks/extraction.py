"""Images in memory to features, as `evaluate`, `embed` and `classify` make them, and a plain loop.

    python benchmarks/extraction.py --out results/benchmarks/extraction-cpu.json

The peer is a loop over batches of 256 in float32, with torch's own settings. Both take turns, and
the best of the rounds counts. `throughput.py` measures the same on a GPU, beside training.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from eigenshot.files import write_json
from eigenshot.hardware import environment
from extraction_and_bar import extraction_rates
from linear_probe import images, untrained

_NARROW = {"widths": (32, 64, 128, 256)}  # what `pretrain` takes on a CPU
CASES: tuple[tuple[str, int, int, dict[str, Any]], ...] = (
    ("conv4", 28, 4096, _NARROW),
    ("conv4", 64, 2048, _NARROW),
    ("resnet12", 32, 1024, {}),
    ("resnet12", 84, 256, {}),
    ("resnet18", 32, 1024, {}),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for name, side, count, settings in CASES:
        print(f"{name}, {side} px", flush=True)
        encoder, source = untrained(name, side, **settings), images(count, side)
        rates = extraction_rates(encoder, source, options.device, options.rounds)
        rows.append({"backbone": name, "side": side, "images": count, **rates})
    if options.out:
        record = {"threads": torch.get_num_threads(), "rounds": options.rounds, "rows": rows}
        write_json(options.out, {**record, **environment(torch.device(options.device))})


if __name__ == "__main__":
    main()
