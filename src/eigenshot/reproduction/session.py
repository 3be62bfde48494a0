"""The runs of a table one after the other: what is there is kept, what fits is run."""

from __future__ import annotations

import contextlib
import gc
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from eigenshot.data.benchmarks.access import BENCHMARKS, locate, open_benchmark
from eigenshot.data.naming import require_place
from eigenshot.errors import Busy, TrainingDiverged, UserError
from eigenshot.reporter import Reporter, duration
from eigenshot.reproduction.estimate import Estimator
from eigenshot.reproduction.execute import Places, execute
from eigenshot.reproduction.library import Library
from eigenshot.reproduction.plan import PlannedRun
from eigenshot.reproduction.preflight import check_measurable, in_words_of_reproduce
from eigenshot.reproduction.results import Result, differences
from eigenshot.training.loop import DeadlineReached, Interrupted


@dataclass
class Session:
    """What became of the runs: a sentence for each that left no result, by row and part."""

    remarks: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    finished: int = 0
    failed: bool = False
    interrupted: bool = False

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        return not (self.finished or self.failed or self.interrupted or self.remarks)

    def add(self, other: Session) -> None:
        """Take over what became of other runs."""
        for place, texts in other.remarks.items():
            self.remarks.setdefault(place, []).extend(texts)
        self.finished += other.finished
        self.failed |= other.failed
        self.interrupted |= other.interrupted

    def remark(self, run: PlannedRun, text: str) -> None:
        """Keep a sentence for the run's row; of another seed than 0, with its number."""
        text = f"seed {run.seed}: {text}" if run.seed_is_told else text
        texts = self.remarks.setdefault((run.row.name, run.part.title), [])
        if text not in texts:
            texts.append(text)


def obstacle(run: PlannedRun, places: Places) -> str | None:
    """Why a run without a result cannot be begun, or None."""
    return _fault(run, places) or _missing_benchmarks(run)


def _fault(run: PlannedRun, places: Places) -> str | None:
    """A sentence on what has to be mended: a damaged file, data that are nowhere or will not do."""
    file = places.result(run)
    if file.exists():
        return f"'{file}' holds no result that can be read; remove it to run this again"
    try:
        for data in _data(run):
            require_place(data)
        check_measurable(run)
    except UserError as error:
        return _sentence(error)
    return None


def _missing_benchmarks(run: PlannedRun) -> str | None:
    """A sentence for each benchmark that is not here, and how to get it; None if all are."""
    missing = []
    for data in _data(run):
        if data not in BENCHMARKS:
            continue
        try:
            if locate(data) is None:
                open_benchmark(data, BENCHMARKS[data].splits[0])
        except UserError as error:
            missing.append(str(error))
    return "; ".join(missing) or None


def _data(run: PlannedRun) -> list[str]:
    """What a run learns from and is measured on, each once."""
    return list(dict.fromkeys((run.part.data, run.part.train, run.part.evaluate)))


def result_of(run: PlannedRun, library: Library) -> Result | None:
    """The result of this run, made with the settings that it has now; None if there is none."""
    epochs = run.config.training.epochs
    for result in library.find(run.part.benchmark, run.row.method, run.variant, epochs):
        if result.seed == run.seed and not differences(result, run.config, run.part):
            return result
    return None


def check_budget(minutes: float | None) -> None:
    """Refuse a budget in which nothing can be run."""
    if minutes is not None and not minutes > 0:
        raise UserError(f"--budget must be above 0 minutes, found {minutes:g}")


def check_count(count: int) -> None:
    """Refuse a number of runs at a time with which nothing can be run."""
    if count < 1:
        raise UserError(f"--side-by-side is at least 1, found {count}")


def run_all(
    runs: Sequence[PlannedRun],
    places: Places,
    *,
    device: str = "auto",
    minutes: float | None = None,
    reporter: Callable[[PlannedRun], Reporter] = lambda run: Reporter(),
    beside: int = 1,
    debug: bool = False,
) -> Session:
    """Run what has no result yet, in the order given, as far as ``minutes`` reach.

    A run that would not fit is passed over. One that does not end in time after all, or is
    interrupted, stops at a checkpoint and is gone on with the next time. One that fails is told,
    for whatever reason, with its traceback where ``debug``, and the next begins. ``beside`` is how
    many processes share the device.
    """
    check_budget(minutes)
    end = None if minutes is None else time.monotonic() + 60 * minutes
    estimator = None if end is None else Estimator(places.results, device, beside)
    session = Session()
    for run in runs:
        if result_of(run, Library(places.results)) is not None:  # another row may have made it
            continue
        shown = reporter(run)
        try:
            reason, deadline = _fault(run, places), end
            session.failed |= reason is not None
            reason = reason or _missing_benchmarks(run)
            if reason is None and end is not None and estimator is not None:
                reason, deadline = _fits(run, places, estimator, end, shown)
            if reason is not None:
                session.remark(run, reason)
                shown.note(f"{run.name}: {reason}")
                continue
            shown.note(f"{run.row.label}, seed {run.seed}: {places.folder(run)}")
            if places.variant(run) != run.variant:
                shown.note(f"the result '{run.name}' was made otherwise, and is kept")
            execute(run, places, device=device, reporter=shown, deadline=deadline, beside=beside)
            session.finished += 1
        except DeadlineReached:
            session.remark(run, "begun, and stopped at the end of the budget; its state is saved")
        except (Interrupted, KeyboardInterrupt):
            session.remark(run, "interrupted; the same command goes on from here")
            session.interrupted = True
            break
        except Busy as error:  # it goes well, but elsewhere
            session.remark(run, _sentence(error))
            shown.note(f"{run.name}: {_sentence(error)}")
        except Exception as error:  # whatever it is of, the next run may go well
            session.failed = True
            session.remark(run, _sentence(error))
            shown.warn(f"{run.name}: {_sentence(error)}")
            if debug:
                traceback.print_exception(error)
        finally:
            _clear_device()
    return session


def _clear_device() -> None:
    """Let nothing of one run burden the next: programs that were compiled for it, memory."""
    if torch.cuda.is_available():
        torch.compiler.reset()
        gc.collect()
        # A device that an error has left unusable says so again; the next run tells of it.
        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, TrainingDiverged):
        text = f"training diverged: {text}"
    elif not isinstance(error, UserError):
        text = f"{type(error).__name__}: {text} (--debug shows where)"
    return in_words_of_reproduce(text)


def _fits(
    run: PlannedRun, places: Places, estimator: Estimator, end: float, reporter: Reporter
) -> tuple[str | None, float]:
    """Why a run is not begun for lack of time, or None, and until when it may train."""
    if end <= time.monotonic():
        return "not begun: the budget is spent", end
    folder, shorter = places.folder(run), places.shorter(run, estimator.device)
    needed = estimator.known(run, folder, shorter)
    if needed is None:
        needed = estimator.measured(run, folder, reporter, shorter)
    evaluation = estimator.evaluation(run) or 0.0
    needed, left = needed + evaluation, end - time.monotonic()
    if needed > left:
        text = f"not begun: it takes about {duration(needed)}, {duration(max(0, left))} are left"
        return text, end
    return None, end - evaluation
