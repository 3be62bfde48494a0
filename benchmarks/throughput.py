"""Images a second of pretraining and of features, each beside a peer, and a progress bar's cost.

    python benchmarks/throughput.py [--cases resnet12-32 …] [--peer FOLDER] [--parts …] [--out FILE]

*training*: epochs of resident data. Ours is the training loop's own step with every part of it:
gathering, two augmented views, network with mixing, loss, backward pass, optimiser, metrics. The
peer, where it can be imported (``--peer`` names a folder with it), is LightlySSL: its own SimCLR
transform in one worker a core, its Barlow Twins head and loss, on the same backbone, batch,
precision and images. Beside each rate stands the share of the device's measured bf16 matrix rate
that the network's operations make up.

*extraction*: images in memory to features as `evaluate` makes them, beside a plain loop in float32
that fetches the features of every batch.

*bar*: a run of the first case that draws its progress bar on a terminal in every other epoch, and
the share of its images a second that this costs.

Images are noise of the data sets' sizes and numbers: only their shape matters for speed.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch.utils.data import DataLoader, Dataset
from torch.utils.flop_counter import FlopCounterMode

from eigenshot.config import Config
from eigenshot.configfile import load_config, parse_override
from eigenshot.data.reading.order import epoch_batches
from eigenshot.data.source import ArraySource
from eigenshot.errors import UserError
from eigenshot.files import write_json
from eigenshot.hardware import choose_device, device_time, environment
from eigenshot.machine import cores
from eigenshot.networks import create_backbone
from eigenshot.reporter import ConsoleReporter
from eigenshot.training.choices import resolve_batch, resolve_size
from eigenshot.training.engine import compile_if_worthwhile, create_optimizer, create_step
from eigenshot.training.meter import Meter
from eigenshot.training.parts import Parts
from eigenshot.training.setup import build
from extraction_and_bar import BAR_SETTINGS, bar_cost, extraction_rates


@dataclass(frozen=True)
class Case:
    """A recipe as it stands, on as many images of that size as its data set has."""

    recipe: str
    images: int
    size: int


CASES = {
    "resnet12-32": Case("fc100", 36_000, 32),
    "resnet18-32": Case("cifar10", 50_000, 32),
    "resnet12-84": Case("miniimagenet", 38_400, 84),
}

PARTS = ("training", "extraction", "bar")


def noise(case: Case) -> ArraySource:
    """Random images of a case's shape and number."""
    generator = torch.Generator().manual_seed(0)
    shape = (case.images, 3, case.size, case.size)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return ArraySource(pixels, name="noise")


def settle(case: Case, source: ArraySource, device: str, settings: dict[str, Any]) -> Config:
    """The case's recipe with some settings changed, and with all that ``source`` decides."""
    config = load_config(case.recipe, settings)
    return resolve_batch(resolve_size(config, source, device), source, device)


def our_rate(parts: Parts, epochs: int) -> dict[str, float]:
    """Images a second over whole epochs, after one that captures and compiles."""
    method, source, device = parts.method, parts.source, parts.fabric.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    batch, meter = int(parts.config.training.batch_size), Meter()
    optimizer = create_optimizer(method, parts.config.optimizer, device)
    notes = ConsoleReporter(Console())
    compile_if_worthwhile(parts, 0, notes)
    step = create_step(parts, optimizer, meter, notes)
    method.train()
    number, times = 0, []
    for epoch in range(epochs + 1):
        began = device_time(device)
        for rows in epoch_batches(source, seed=0, epoch=epoch, batch_size=batch):
            step(number, rows, 0.01)
            number += 1
        meter.check_finite()
        times.append(device_time(device) - began)
    images = len(source) // batch * batch
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else 0.0
    return {
        "first_epoch_seconds": times[0],
        "images_per_second": images / min(times[1:]),
        "milliseconds_a_step": 1000 * min(times[1:]) / (images // batch),
        "peak_mebibytes": peak,
    }


def operations_a_step(parts: Parts) -> float:
    """Floating-point operations of one step's network and loss, forward and backward."""
    device, batch = parts.fabric.device, int(parts.config.training.batch_size)
    size = parts.source.shape[1]
    views = [torch.randn(batch, 3, size, size, device=device) for _ in range(2)]
    with FlopCounterMode(display=False) as counter:
        parts.method(*views)["loss"].backward()
    parts.method.zero_grad()
    return float(counter.get_total_flops())


def matrix_rate(device: torch.device) -> float:
    """Operations a second of a large bf16 matrix product on random numbers."""
    side = 8192 if device.type == "cuda" else 1024
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(side, side, device=device, dtype=kind) for _ in range(2))
    times = []
    for _ in range(8):
        began = device_time(device)
        for _ in range(5):
            a @ b
        times.append(device_time(device) - began)
    return 5 * 2 * side**3 / min(times)


class Pictures(Dataset[Any]):
    """Pillow pictures through the peer's transform, as its documentation feeds it."""

    def __init__(self, source: ArraySource, transform: Any) -> None:
        self.pixels = source.pixels.permute(0, 2, 3, 1).contiguous().numpy()
        self.transform = transform

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, row: int) -> Any:
        return self.transform(Image.fromarray(self.pixels[row]))


def peer_rate(
    source: ArraySource, device: str, batch: int, backbone_name: str, epochs: int
) -> float:
    """Images a second of LightlySSL's Barlow Twins, the best of ``epochs`` after a first one."""
    from lightly.loss import BarlowTwinsLoss
    from lightly.models.modules import BarlowTwinsProjectionHead
    from lightly.transforms import SimCLRTransform

    transform = SimCLRTransform(input_size=source.shape[1], cj_strength=0.5, gaussian_blur=0.0)
    loader = DataLoader(
        Pictures(source, transform),
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=cores(),
        pin_memory=device == "cuda",
        persistent_workers=True,
    )
    backbone: Any = create_backbone(backbone_name)
    head = BarlowTwinsProjectionHead(backbone.out_features, 2048, 2048)
    model = torch.nn.Sequential(backbone, head).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    loss_of, half, times = BarlowTwinsLoss(), device == "cuda", []
    for _ in range(epochs + 1):
        began, images = time.perf_counter(), 0
        for views in loader:
            one, other = (
                view.to(device, non_blocking=True, memory_format=torch.channels_last)
                for view in views
            )
            with torch.autocast(device, torch.bfloat16, enabled=half):
                loss = loss_of(model(one), model(other))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            images += len(one)
        float(loss)
        times.append(time.perf_counter() - began)
    return images / min(times[1:])


def training_row(
    parts: Parts, source: ArraySource, options: argparse.Namespace, matrix: float, with_peer: bool
) -> dict[str, Any]:
    """Rate, share of the ``matrix`` rate and, where it is there, the peer's rate."""
    batch, device = int(parts.config.training.batch_size), parts.fabric.device.type
    operations = operations_a_step(parts)
    row: dict[str, Any] = {"batch": batch, **our_rate(parts, options.epochs)}
    share = operations * row["images_per_second"] / batch / matrix
    row |= {"share_of_matrix_rate": share, "operations_a_step": operations}
    shown = ""
    if with_peer:
        peer = peer_rate(source, device, batch, parts.config.backbone.name, options.epochs)
        row |= {"peer_images_per_second": peer, "ratio": row["images_per_second"] / peer}
        shown = f"; LightlySSL {peer:,.0f}: {row['ratio']:.2f} times"
    print(
        f"  training: {row['images_per_second']:,.0f} images/s, "
        f"{row['milliseconds_a_step']:.2f} ms a step, {share:.1%} of the matrix rate, "
        f"first epoch {row['first_epoch_seconds']:.0f} s{shown}",
        flush=True,
    )
    return row


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, help="fewer, for a quick look")
    parser.add_argument("--set", nargs="*", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--compile", default="off", choices=["on", "off"])
    parser.add_argument("--peer", type=Path, help="folder with LightlySSL and what it needs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error(f"expected at least 1 epoch, found {options.epochs}")
    if options.peer:
        sys.path.insert(0, str(options.peer))
        if importlib.util.find_spec("lightly") is None:
            parser.error(f"there is no package 'lightly' in {options.peer}")
    return options


def main() -> None:
    """Measure every case asked for, print a line a part, keep the record."""
    options = parse()
    device = choose_device(options.device)
    with_peer = importlib.util.find_spec("lightly") is not None
    record: dict[str, Any] = {"compile": options.compile, "cores": cores(), "rows": []}
    if "training" in options.parts:
        record["matrix_rate"] = matrix_rate(torch.device(device))
        print(f"matrix products: {record['matrix_rate'] / 1e12:.0f} TFLOP/s", flush=True)
    settings: dict[str, Any] = {"engine.compile": options.compile}
    settings |= dict(parse_override(text) for text in options.settings)
    fewer = {"images": options.images} if options.images else {}
    cases = {name: replace(CASES[name], **fewer) for name in options.cases}
    for name, case in cases.items():
        if options.parts == ["bar"]:
            break
        print(name, flush=True)
        source = noise(case)
        parts = build(settle(case, source, device, settings), source, device)
        row: dict[str, Any] = {"case": name}
        if "training" in options.parts:
            row |= training_row(parts, source, options, record["matrix_rate"], with_peer)
        if "extraction" in options.parts:
            rates = extraction_rates(parts.encoder, source, device, options.epochs)
            row |= {f"extraction_{key}": value for key, value in rates.items()}
        record["rows"].append(row)
        del parts
        _write(options.out, record, device)  # after every case: the next one may take long
    if "bar" in options.parts:
        name, case = next(iter(cases.items()))
        source = noise(case)
        config = settle(case, source, device, {**settings, **BAR_SETTINGS})
        print(name, flush=True)
        record["bar"] = {"case": name, **bar_cost(source, config, device)}
        _write(options.out, record, device)


def _write(out: Path | None, record: dict[str, Any], device: str) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_json(out, {**_rounded(record), **environment(torch.device(device))})


def _rounded(value: Any) -> Any:
    """The value, or all values in it, with five digits."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return float(np.format_float_positional(value, 5, fractional=False))
    return value


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
