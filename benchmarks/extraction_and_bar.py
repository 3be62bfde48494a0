"""What `throughput.py` measures beside training: turning images into features, drawing a bar."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console

from eigenshot.config import Config
from eigenshot.data.source import ArraySource
from eigenshot.encoder import Encoder
from eigenshot.evaluation.features import extract_features
from eigenshot.hardware import device_time, resolve_precision
from eigenshot.reporter import ConsoleReporter, Reporter
from eigenshot.training.pretrain import pretrain

# Epochs with the bar, and as many without, after a first one.
_BAR_EPOCHS = 12

BAR_SETTINGS: dict[str, Any] = {
    "training.epochs": 1 + 2 * _BAR_EPOCHS,
    "optimizer.lr": 0.01,  # noise teaches nothing, and a high rate might diverge on it
    "checkpoint.every_minutes": 0.0,
}

# Pixels of the images of such an epoch: enough for a second or two, in which a bar is drawn often.
_BAR_PIXELS = 80_000_000

_PEER_BATCH = 256


def extraction_rates(
    encoder: Encoder, source: ArraySource, device_name: str, rounds: int
) -> dict[str, Any]:
    """Images a second of `extract_features`, and of a loop as it is usually written.

    ``source`` is in the computer's memory, as it is for `evaluate`; the same images in the memory
    of the device show what their way there costs. The three take turns; the best of ``rounds``
    counts, after a first turn.
    """
    device = torch.empty(0, device=device_name).device  # with its number
    placed = source.to(device)
    turns: dict[str, Callable[[], np.ndarray]] = {
        "images_per_second": lambda: extract_features(encoder, source, device=device, cache=False),
        "images_per_second_from_device": lambda: extract_features(
            encoder, placed, device=device, cache=False
        ),
        "peer_images_per_second": _plain_loop(encoder, source, device),
    }
    found = {name: turn() for name, turn in turns.items()}
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            began = device_time(device)
            turn()
            times[name].append(device_time(device) - began)
    row: dict[str, Any] = {name: len(source) / min(seconds) for name, seconds in times.items()}
    ours, plain = found["images_per_second"], found["peer_images_per_second"]
    row |= {
        "ratio": row["images_per_second"] / row["peer_images_per_second"],
        "precision": resolve_precision("auto", device.type),
        "relative_difference": float(np.linalg.norm(ours - plain) / np.linalg.norm(plain)),
    }
    print(
        f"  extraction: {row['images_per_second']:,.0f} images/s in {row['precision']} "
        f"({row['images_per_second_from_device']:,.0f} from the device's memory); plain loop "
        f"{row['peer_images_per_second']:,.0f}: {row['ratio']:.2f} times",
        flush=True,
    )
    return row


def _plain_loop(
    encoder: Encoder, source: ArraySource, device: torch.device
) -> Callable[[], np.ndarray]:
    """The peer: batch by batch to the device, float32 with torch's own settings, and back."""
    network: Any = copy.deepcopy(encoder.backbone).to(device)
    network.to(memory_format=torch.contiguous_format).eval()
    mean, std = (
        torch.tensor(values, device=device).view(1, -1, 1, 1)
        for values in (encoder.preprocessing.mean, encoder.preprocessing.std)
    )

    @torch.inference_mode()
    def loop() -> np.ndarray:
        features = []
        for images in source.pixels.split(_PEER_BATCH):
            pictures = (images.to(device).float() / 255 - mean) / std
            features.append(network(pictures).cpu())
        result: np.ndarray = torch.cat(features).numpy()
        return result

    return loop


class Alternating(Reporter):
    """A run that has a progress bar in every other epoch, and the seconds of both kinds of epoch.

    One run, so that both kinds have the same graphs, compiled once. The first epoch captures and
    compiles; it has no bar and does not count. Nor do start and end of the bar, which a run has
    once; the line that stands for an epoch does. What is said goes to ``notes``, but for warnings:
    they would be about the noise.
    """

    def __init__(self, console: Console, notes: Reporter) -> None:
        self.bar = ConsoleReporter(console)
        self.notes = notes
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self._drawn = False
        self._total_steps = 0
        self._began: float | None = None

    def note(self, text: str) -> None:
        self.notes.note(text)

    def begin(self, total_steps: int, step: int) -> None:
        self._total_steps = total_steps

    def due(self) -> bool:
        return self.bar.due()

    def advance(self, step: int, images_per_second: float, terms: dict[str, float]) -> None:
        self.bar.advance(step, images_per_second, terms)

    def epoch(self, record: dict[str, float]) -> None:
        if self._drawn:
            self.bar.epoch(record)
        if self._began is not None:
            self.seconds[self._drawn].append(time.perf_counter() - self._began)
        self._drawn = not self._drawn
        if self._drawn:
            self.bar.begin(self._total_steps, int(record["step"]))
        else:
            self.bar.__exit__()
        self._began = time.perf_counter()

    def __exit__(self, *details: object) -> None:
        self.bar.__exit__(*details)


def bar_cost(source: ArraySource, config: Config, device: str) -> dict[str, Any]:
    """Images a second of `pretrain` with and without a progress bar on a terminal, in one run.

    ``config`` is settled (it knows its batch) and has `BAR_SETTINGS`.
    """
    images = min(len(source), _BAR_PIXELS // source.shape[1] ** 2)
    part = ArraySource(source.pixels[:images], name=source.name)
    with tempfile.TemporaryDirectory() as folder, _terminal() as (console, sizes):
        reporter = Alternating(console, ConsoleReporter(Console()))
        pretrain(part, config, Path(folder) / "run", device=device, reporter=reporter)
    batch = int(config.training.batch_size)
    drawn, silent = (
        [images // batch * batch / seconds for seconds in reporter.seconds[kind]]
        for kind in (True, False)
    )
    lost = 100 * (1 - median(drawn) / median(silent))
    print(
        f"  bar: {median(drawn):,.0f} images/s with, {median(silent):,.0f} without: {lost:.2f} % "
        f"lost; {sum(sizes):,} bytes drawn",
        flush=True,
    )
    return {
        "images_an_epoch": images // batch * batch,
        "with_bar": drawn,
        "without_bar": silent,
        "median_with_bar": median(drawn),
        "median_without_bar": median(silent),
        "percent_lost": lost,
        "bytes_drawn": sum(sizes),
    }


@contextlib.contextmanager
def _terminal() -> Iterator[tuple[Console, list[int]]]:
    """A console on a pseudo-terminal that is read, and how many bytes came at a time."""
    reading, writing = os.openpty()
    sizes: list[int] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # Linux's way to say that the other end is closed
            while piece := os.read(reading, 65536):
                sizes.append(len(piece))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        with open(writing, "w", encoding="utf-8") as screen:
            # Of a fixed kind, whatever terminal this program was started from.
            kind = {"TERM": "xterm-256color"}
            console = Console(file=screen, force_terminal=True, width=120, height=40, _environ=kind)
            yield console, sizes
    finally:
        reader.join()
        os.close(reading)
