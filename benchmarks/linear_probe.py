"""Linear evaluation by SGD: the frozen network on several batches at once, or on each alone.

    python benchmarks/linear_probe.py --device cuda --out results/benchmarks/linear-probe.json

Both ways take a step of the classifier for each batch; they differ in how many images go through
the network at once, which on a CPU are as many in both. They run in turns, after one turn that is
not counted, and the median counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from typing import Any

import torch

from eigenshot import Encoder, create_backbone
from eigenshot.data.source import ArraySource
from eigenshot.encoder import Preprocessing, busy_batch
from eigenshot.evaluation.linear import linear_probe, probe_view
from eigenshot.files import write_json
from eigenshot.hardware import device_time, environment

CLASSES = 10


def images(count: int, size: int) -> ArraySource:
    """Noise with a class each: what the network does takes as long as with pictures."""
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(0, 256, (count, 3, size, size), generator=generator, dtype=torch.uint8)
    labels = (torch.arange(count) % CLASSES).numpy()
    return ArraySource(pixels, labels, [str(k) for k in range(CLASSES)], "noise")


def untrained(backbone: str, size: int, **settings: Any) -> Encoder:
    """An encoder of random weights for images of ``size``."""
    torch.manual_seed(0)
    half = (0.5, 0.5, 0.5)
    architecture: dict[str, Any] = {"name": backbone, "options": settings}
    network = create_backbone(backbone, **settings)
    return Encoder(network, Preprocessing(size, 3, half, half), architecture)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--images", type=int, default=51_200)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    encoder = untrained(options.backbone, options.size)
    train, test = images(options.images, options.size), images(CLASSES, options.size)
    ways = {"together": busy_batch(device), "apart": options.batch_size}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.turns + 1):
        for name, together in ways.items():
            began = device_time(device)
            linear_probe(
                encoder,
                train,
                test,
                view=probe_view(encoder),
                epochs=options.epochs,
                batch_size=options.batch_size,
                device=device,
                together=together,
            )
            seconds[name].append(device_time(device) - began)
    rates = {
        name: round(options.images * options.epochs / median(times[1:]), 1)
        for name, times in seconds.items()
    }
    ratio = round(rates["together"] / rates["apart"], 2)
    print(f"{rates['together']:,.0f} images/s, {ratio} times {rates['apart']:,.0f}")
    if options.out:
        sizes = {name: value for name, value in vars(options).items() if name != "out"}
        record = {"sizes": sizes, "ways": ways, "images_per_second": rates, "times_faster": ratio}
        write_json(options.out, {**record, **environment(device)})


if __name__ == "__main__":
    main()
