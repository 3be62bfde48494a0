"""How long a run will take, told before it is begun."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from eigenshot.config import TrainingConfig, flatten
from eigenshot.errors import UserError
from eigenshot.hardware import choose_device, hardware_name
from eigenshot.reporter import Reporter
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.names import place_name
from eigenshot.reproduction.plan import PlannedRun
from eigenshot.reproduction.results import Result
from eigenshot.training.choices import resolve_batch, resolve_size
from eigenshot.training.engine import seconds_left
from eigenshot.training.lengthen import Shorter
from eigenshot.training.runfolder import RunFolder
from eigenshot.training.setup import build, load_source

# What decides how long a step takes, but for the method.
_DECIDING = (
    "backbone.name",
    "data.image_size",
    "engine.precision",
    "projector.layers",
    "projector.out",
    "projector.width",
    "training.batch_size",
    "training.micro_batches",
    "training.resolution",
    "training.whole_batch_loss",
)
_OF_THE_BACKBONE = "backbone.options."


class Estimator:
    """Seconds of runs on this machine: from what they did so far, from results, or measured.

    Results are those of as many runs at a time, ``beside``, which take longer than one alone. Where
    none is known to be, the fastest tells what a run alone takes at most.
    """

    def __init__(self, results: Path, device: str, beside: int = 1) -> None:
        self.results = results
        self.beside = beside
        self.device = choose_device(device)
        self.hardware = hardware_name(self.device)
        self._an_epoch: dict[tuple[Any, ...], float] = {}  # seconds, once they are measured

    def known(self, run: PlannedRun, folder: Path, shorter: Shorter | None = None) -> float | None:
        """Seconds that a run still trains, from its own folder or from earlier results.

        One that goes on from a ``shorter`` run has done as much as that had by then.
        """
        if RunFolder(folder).finished:
            return 0.0
        records = _timed(folder, shorter)
        left = _left_at_own_pace(run.config.training, records)
        if left is not None:
            return left
        alike = self._alike(run)
        own = [result for result in alike if result.method == run.row.method]
        paces = [pace for pace in map(self._pace, (own, alike)) if pace is not None]
        return _left(run, paces[0], records) if paces else None

    def evaluation(self, run: PlannedRun) -> float | None:
        """Seconds that the measurement takes by earlier results; None where none tells."""
        known = [
            result.evaluation_seconds
            for result in Library(self.results).of(run.part.benchmark)
            if (result.evaluation_hardware or result.hardware) == self.hardware
        ]
        return statistics.median(known) if known else None

    def measured(
        self, run: PlannedRun, folder: Path, reporter: Reporter, shorter: Shorter | None = None
    ) -> float:
        """Seconds that a run still trains, from a few steps of it, uncompiled.

        A run like one that was measured before takes as long. One that cannot begin is a
        `UserError`.
        """
        kind = (run.part.data, run.row.method, _sizes(run.config.to_dict()))
        if kind not in self._an_epoch:
            self._an_epoch[kind] = self._seconds_an_epoch(run, reporter)
        return _left(run, self._an_epoch[kind], _timed(folder, shorter))

    def _seconds_an_epoch(self, run: PlannedRun, reporter: Reporter) -> float:
        config = resolve_size(run.config, run.part.data, self.device)
        source = load_source(config, run.part.data, self.device, reporter)
        try:
            config = resolve_batch(config, source, self.device)
            with torch.random.fork_rng([]):
                parts = build(config, source, self.device)
                return seconds_left(parts) / config.training.epochs
        finally:
            if callable(close := getattr(source, "close", None)):  # a stream has workers
                close()

    def _pace(self, results: Sequence[Result]) -> float | None:
        """Seconds an epoch by ``results`` like a run; None where they do not tell."""
        known, unknown = (
            [result.seconds / result.epochs for result in results if result.side_by_side == count]
            for count in (self.beside, 0)
        )
        if known:
            return statistics.median(known)
        # Some had others beside them, which made them slower, and none is faster than alone.
        return min(unknown) if unknown and self.beside == 1 else None

    def _alike(self, run: PlannedRun) -> list[Result]:
        """Results of this hardware that were trained as the run is: network, sizes, data."""
        try:
            config = resolve_size(run.config, run.part.data, self.device)
        except UserError:  # it cannot be run here, which is told when it is begun
            return []
        library, sizes = Library(self.results), _sizes(config.to_dict())
        return _trainings(
            result
            for benchmark in dict.fromkeys((run.part.benchmark, place_name(run.part.data)))
            for result in library.of(benchmark)
            if result.hardware == self.hardware and _sizes(result.config) == sizes
        )


def _trainings(results: Iterable[Result]) -> list[Result]:
    """One result of each training, however often that was measured.

    It is the one that tells how many ran beside it, where there is such a one.
    """
    found: dict[tuple[Any, ...], Result] = {}
    for result in sorted(results, key=lambda result: -result.side_by_side):
        training = (result.method, result.epochs, result.seed, result.seconds)
        found.setdefault(training, result)
    return list(found.values())


def _sizes(settings: Mapping[str, Any]) -> str:
    """What decides how long a step takes, but for the method, of nested ``settings``."""
    flat = flatten(settings)
    chosen = {key: flat.get(key) for key in _DECIDING}
    options = {key: value for key, value in flat.items() if key.startswith(_OF_THE_BACKBONE)}
    return json.dumps({**chosen, **options}, sort_keys=True)


def _timed(folder: Path, shorter: Shorter | None = None) -> list[tuple[int, float]]:
    """Epochs that a run has done, and the seconds that it had trained by then.

    Those of a ``shorter`` run that it goes on from are its own.
    """
    if shorter is not None:
        records = [r for r in shorter.folder.metrics() if r["step"] <= shorter.step]
    else:
        records = RunFolder(folder).metrics()
    whole = [record for record in records if record.get("epoch") and record.get("seconds")]
    return [(int(record["epoch"]), float(record["seconds"])) for record in whole]


def _left_at_own_pace(
    training: TrainingConfig, records: Sequence[tuple[int, float]]
) -> float | None:
    """Seconds that are left at the pace of the last size of views; None before it is known."""
    share = training.resolution[-1][0] if training.resolution else 0.0
    steady = math.ceil(share * training.epochs)  # from here on all epochs are alike
    moments = {0: 0.0, **dict(records)}
    done = max(moments)
    if steady not in moments or done <= steady:
        return None
    pace = (moments[done] - moments[steady]) / (done - steady)
    return pace * max(0, training.epochs - done)


def _left(run: PlannedRun, an_epoch: float, records: Sequence[tuple[int, float]]) -> float:
    """Seconds that are left of a run whose epochs take ``an_epoch`` seconds on average."""
    epochs = run.config.training.epochs
    done, spent = records[-1] if records else (0, 0.0)
    # Where views grow, what is left takes as much more as what is done took less.
    return max(an_epoch * epochs - spent, an_epoch * max(0, epochs - done))
