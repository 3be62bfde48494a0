"""One run of a table: train, measure, leave the result files."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eigenshot.config import Config
from eigenshot.data.naming import choose_split
from eigenshot.errors import CorruptFileError, UserError
from eigenshot.evaluation.bench import Bench
from eigenshot.evaluation.fewshot import FewShotResult
from eigenshot.evaluation.protocol import fewshot_of_run, linear_of_run
from eigenshot.hardware import choose_device, hardware_name
from eigenshot.reporter import Reporter
from eigenshot.reproduction.collapse import collapse
from eigenshot.reproduction.curves import write_curve
from eigenshot.reproduction.episodes import EpisodeCounts, counts_of, write_episodes
from eigenshot.reproduction.images import digest_of_tested
from eigenshot.reproduction.names import place_name, short_name
from eigenshot.reproduction.plan import PlannedRun
from eigenshot.reproduction.results import (
    Result,
    beside_settings,
    curve_file,
    differences,
    episodes_file,
    read_result,
    result_file,
    write_result,
)
from eigenshot.reproduction.versions import other_settings, version_of
from eigenshot.training.choices import adopt_choices, resolve_size
from eigenshot.training.lengthen import Shorter
from eigenshot.training.pretrain import pretrain
from eigenshot.training.runfolder import RunFolder
from eigenshot.training.setup import method_on_trial


@dataclass(frozen=True)
class Places:
    """Where result files and run folders are kept.

    What was made otherwise than a run would be now keeps its name; the run takes another. With
    ``lengthen`` runs go on from shorter ones also where that does not quite come to the same.
    """

    results: Path
    runs: Path
    lengthen: bool = False

    def folder(self, run: PlannedRun) -> Path:
        """A run's folder. Tables and rows that want the same training share it."""
        plain = self.runs / place_name(run.part.data) / run.named(run.trained)
        begun = RunFolder(plain)
        try:
            stored = begun.read_config().to_dict() if begun.started else {}
        except CorruptFileError:  # which is told when the run goes on there
            return plain
        if not other_settings(stored, run.config, evaluation=False):
            return plain
        return plain.with_name(run.named(version_of(run.trained, run.config, evaluation=False)))

    def shorter(self, run: PlannedRun, device: str) -> Shorter | None:
        """The longest run that this one can go on from; None without one, and once it has begun."""
        own = RunFolder(self.folder(run))
        needless = own.last.exists() or own.finished
        if needless or run.config.optimizer.schedule != "trapezoid":
            return None
        alike = []
        for place in own.path.parent.glob("*ep-seed*"):
            if run.is_named_alike(place.name):
                with contextlib.suppress(UserError):  # such as one that has not come so far
                    alike.append(Shorter.at(place))
        # The longest first, so that no state is read of those that are not needed.
        alike.sort(key=lambda shorter: shorter.step, reverse=True)
        return next((shorter for shorter in alike if self._can_go_on(run, shorter, device)), None)

    def _can_go_on(self, run: PlannedRun, shorter: Shorter, device: str) -> bool:
        try:
            # What is automatic means what it does here: another device may have chosen otherwise.
            config = resolve_size(run.config, run.part.data, choose_device(device))
            config = adopt_choices(config, shorter.config, run.part.data)
            method = method_on_trial(config)
            if shorter.obstacles(config) or method is None:
                return False
            otherwise = shorter.otherwise(config, method)
        except UserError:  # such as a state that is not whole
            return False
        return self.lengthen or not otherwise

    def variant(self, run: PlannedRun) -> str:
        """The variant that a run's result is kept as."""
        plain = result_file(self.results, run.part.benchmark, run.name)
        try:
            stored = read_result(plain) if plain.exists() else None
        except CorruptFileError:
            return run.variant
        if stored is None or not differences(stored, run.config, run.part):
            return run.variant
        return version_of(run.variant, run.config, beside=beside_settings(run.part))

    def result(self, run: PlannedRun) -> Path:
        """A run's result file."""
        return result_file(self.results, run.part.benchmark, run.named(self.variant(run)))


def execute(
    run: PlannedRun,
    places: Places,
    *,
    device: str = "auto",
    reporter: Reporter | None = None,
    deadline: float | None = None,
    beside: int = 1,
) -> Result:
    """Train, or go on with what was begun, then measure; the result file is written last.

    ``deadline`` is of the training, as `eigenshot.training.pretrain.pretrain` takes it. ``beside``
    is how many runs share the device.
    """
    reporter = reporter or Reporter()
    folder = places.folder(run)
    shorter = places.shorter(run, device)
    begun = RunFolder(folder).last.exists() or RunFolder(folder).finished or shorter is not None
    if shorter is not None:
        reporter.note(f"goes on from '{shorter.folder.path}', where its rate began to fall")
    trained = pretrain(
        run.part.data,
        run.config,
        folder,
        resume=folder.exists(),
        lengthen=None if shorter is None else shorter.folder.path,
        device=device,
        reporter=reporter,
        deadline=deadline,
    )
    config = RunFolder(folder).read_config()
    began = time.perf_counter()
    with reporter:
        measured = _measure(run, folder, device, reporter)
    seconds = time.perf_counter() - began
    summary = trained.summary
    rank = float(summary["final"]["effective_rank"])
    ways = run.config.evaluation.ways
    result = Result(
        benchmark=run.part.benchmark,
        method=run.row.method,
        backbone=config.backbone.name,
        epochs=config.training.epochs,
        seed=run.seed,
        commit=summary["commit"],
        hardware=summary["hardware"],
        seconds=summary["seconds"],
        split=choose_split(run.part.evaluate, "test") or "all",
        classifier=measured.classifier,
        transductive=measured.transductive,
        config=_settings(config, run.config),
        recipe=config.recipe,
        variant=places.variant(run),
        row=f"{run.table}/{run.row.name}",
        effective_rank=round(rank, 3),
        collapsed=collapse(rank, measured.fewshot, ways) is not None,
        images_per_second=summary["images_per_second"],
        evaluation_seconds=round(seconds, 3),
        command=run.command,
        versions=summary["versions"],
        fewshot=measured.fewshot,
        linear=measured.linear,
        selected=measured.selected,
        images=run.part.images,
        evaluation_hardware=hardware_name(choose_device(device)),
        side_by_side=0 if begun else beside,  # nobody knows how many there were before
        lengthened=summary.get("lengthened", []),
        sessions=summary.get("sessions", []),
    )
    _write(places.results, result, RunFolder(folder).metrics(), measured.counts)
    return result


@dataclass(frozen=True)
class _Measured:
    """What a measurement found, in the form of a result file."""

    classifier: str
    transductive: bool
    fewshot: dict[str, Any]
    linear: dict[str, Any]
    selected: dict[str, Any]
    counts: EpisodeCounts | None


def _measure(run: PlannedRun, folder: Path, device: str, reporter: Reporter) -> _Measured:
    settings = run.config.evaluation
    own = run.config.backbone.name
    bench = Bench(
        folder,
        device,
        own if ":" in own else None,
        settings.normalise,
        reporter,
        crops=settings.crops,
    )
    if run.part.measure == "fewshot":
        return _measure_fewshot(run, bench)
    result = linear_of_run(
        bench,
        run.part.train,
        run.part.evaluate,
        epochs=settings.linear_epochs,
        lr=settings.linear_lr,
        momentum=settings.linear_momentum,
        seed=settings.seed,
    )
    return _Measured("linear", False, {}, result.summary(), {}, None)


def _measure_fewshot(run: PlannedRun, bench: Bench) -> _Measured:
    part, settings = run.part, run.config.evaluation
    centring = settings.transform == "centre" or settings.select
    found = fewshot_of_run(
        bench,
        part.evaluate,
        ways=settings.ways,
        shots=part.shots,
        queries=settings.queries,
        episodes=settings.episodes,
        C=settings.C,
        seed=settings.seed,
        classifier=settings.classifier,
        transform=settings.transform,
        base=part.data if centring else None,
        support_views=settings.support_views,
        select_on=part.data if settings.select else None,
    )
    results = [result for result, _ in found]
    return _Measured(
        settings.classifier,
        results[0].transductive,
        {str(result.shots): result.summary() for result in results},
        {},
        {str(result.shots): chosen.summary() for result, chosen in found if chosen},
        counts_of(results, _tasks(run, results[0]), digest_of_tested(part.evaluate)),
    )


def _tasks(run: PlannedRun, result: FewShotResult) -> str:
    """All that decides which tasks are drawn, but for the images that are there."""
    settings = run.config.evaluation
    return (
        f"{short_name(run.part.evaluate)} test: {result.ways} ways, {result.queries} queries, "
        f"{settings.episodes} episodes, seed {settings.seed}"
    )


def _settings(trained: Config, asked: Config) -> dict[str, Any]:
    """All settings: of training as it was, of the evaluation as it is now."""
    table = {**trained.to_dict(), "evaluation": asked.to_dict()["evaluation"]}
    plain: dict[str, Any] = json.loads(json.dumps(table))  # no tuples, as in the file
    return plain


def _write(
    folder: Path, result: Result, records: list[dict[str, Any]], counts: EpisodeCounts | None
) -> None:
    """Write the files of a result; that of the result itself says that all are there."""
    curve = curve_file(folder, result.benchmark, result.name)
    episodes = episodes_file(folder, result.benchmark, result.name)
    try:
        curve.parent.mkdir(parents=True, exist_ok=True)
        write_curve(curve, records)
        if counts is not None:
            episodes.parent.mkdir(parents=True, exist_ok=True)
            write_episodes(episodes, counts)
        write_result(folder, result)
    except OSError as error:
        raise UserError(
            f"cannot write the result to '{folder}': {error.strerror}; the run itself is finished, "
            "and the same command measures it again"
        ) from error
