"""How long a run will take, told before it is begun."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch

from eigenshot.config import Config
from eigenshot.errors import UserError
from eigenshot.hardware import choose_device, environment
from eigenshot.reporter import Reporter
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.plan import PlannedRun
from eigenshot.reproduction.results import Result
from eigenshot.training.engine import seconds_a_step
from eigenshot.training.runfolder import RunFolder
from eigenshot.training.setup import build, load_source, resolve_batch, resolve_size


class Estimator:
    """Seconds of runs on this machine: from what they did so far, from results, or measured."""

    def __init__(self, results: Path, device: str) -> None:
        self.results = results
        self.device = choose_device(device)
        self.hardware: str = environment(torch.device(self.device))["hardware"]
        self._an_epoch: dict[tuple[Any, ...], float] = {}  # seconds, once they are measured

    def known(self, run: PlannedRun, folder: Path) -> float | None:
        """Seconds that a run still trains, from its own folder or from earlier results."""
        epochs = run.config.training.epochs
        begun = RunFolder(folder)
        if begun.finished:
            return 0.0
        records = begun.metrics()
        if records and records[-1].get("seconds") and records[-1].get("epoch"):
            done = float(records[-1]["epoch"])
            return float(records[-1]["seconds"]) / done * max(0.0, epochs - done)
        alike = self._alike(run)
        own = [result for result in alike if result.method == run.row.method]
        rates = [result.seconds / result.epochs for result in own or alike]
        return statistics.median(rates) * epochs if rates else None

    def evaluation(self, run: PlannedRun) -> float:
        """Seconds that the measurement takes as far as earlier results tell; else none."""
        known = [r.evaluation_seconds for r in self._here(run.part.benchmark)]
        return statistics.median(known) if known else 0.0

    def measured(self, run: PlannedRun, reporter: Reporter) -> float:
        """Seconds that a run trains, from a few steps of it. What compiling gains is not counted.

        A run like one that was measured before takes as long. One that cannot begin is a
        `UserError`.
        """
        kind = (run.part.data, run.row.method, *_sizes(run.config))
        if kind not in self._an_epoch:
            self._an_epoch[kind] = self._seconds_an_epoch(run, reporter)
        return self._an_epoch[kind] * run.config.training.epochs

    def _seconds_an_epoch(self, run: PlannedRun, reporter: Reporter) -> float:
        config = resolve_size(run.config, run.part.data, self.device)
        source = load_source(config, run.part.data, self.device, reporter)
        try:
            config = resolve_batch(config, source, self.device)
            with torch.random.fork_rng([]):
                parts = build(config, source, self.device)
                return seconds_a_step(parts) * parts.steps_an_epoch
        finally:
            if callable(close := getattr(source, "close", None)):  # a stream has workers
                close()

    def _here(self, benchmark: str) -> list[Result]:
        results = Library(self.results).of(benchmark)
        return [result for result in results if result.hardware == self.hardware]

    def _alike(self, run: PlannedRun) -> list[Result]:
        """Results of this hardware that were trained as the run is: network, sizes, data."""
        benchmarks = dict.fromkeys((run.part.benchmark, run.part.data))
        every = [result for benchmark in benchmarks for result in self._here(benchmark)]
        return [result for result in every if _sizes_then(result) == _sizes(run.config)]


def _sizes(config: Config) -> tuple[Any, ...]:
    """What decides how long a step takes, but for the method."""
    return (config.backbone.name, config.training.batch_size, config.data.image_size)


def _sizes_then(result: Result) -> tuple[Any, ...]:
    training, data = result.config.get("training", {}), result.config.get("data", {})
    return (result.backbone, training.get("batch_size"), data.get("image_size"))


def missing_data(run: PlannedRun) -> str | None:
    """The sentence that says which benchmark is not here and how to get it; None if all are."""
    from eigenshot.data.benchmarks.access import BENCHMARKS, locate, open_benchmark

    for data in dict.fromkeys((run.part.data, run.part.train, run.part.evaluate)):
        if data not in BENCHMARKS:
            continue
        try:
            if locate(data) is None:
                open_benchmark(data, BENCHMARKS[data].splits[0])
        except UserError as error:
            return str(error)
    return None
