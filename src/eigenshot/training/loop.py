"""The training loop, top to bottom."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from eigenshot.collective import any_rank, rank, world_size
from eigenshot.data.reading.order import epoch_batches
from eigenshot.errors import CorruptFileError, TrainingDiverged
from eigenshot.methods import Method
from eigenshot.networks.keeping import copied_buffers, put_back
from eigenshot.randomness import numpy_generator, torch_generator
from eigenshot.reporter import Reporter
from eigenshot.training.checkpoint import Progress, load_checkpoint
from eigenshot.training.diagnostics import Diagnostics, diagnose, relative_step
from eigenshot.training.engine import compile_if_worthwhile, create_optimizer, create_step
from eigenshot.training.interrupt import Interruption
from eigenshot.training.keeper import Keeper
from eigenshot.training.launch import all_or_none, require_agreement
from eigenshot.training.meter import Meter
from eigenshot.training.metrics import MetricsLog
from eigenshot.training.parts import Parts
from eigenshot.training.probe import Probe, probed_by
from eigenshot.training.runfolder import RunFolder

_DIAGNOSTIC_IMAGES = 512
_FINITE_CHECK_STEPS = 100
_VOTE_STEPS = 10  # between votes of several processes: to vote is to wait for the slowest


class Interrupted(Exception):
    """The run was asked to stop; its checkpoint is written. The message says how to go on."""

    def __init__(self, way_on: str = "the same command with --resume goes on from here") -> None:
        super().__init__(f"interrupted, and the state is saved; {way_on}")


class DeadlineReached(Interrupted):
    """The time that the run was given is over; its checkpoint is written."""


def train(
    parts: Parts,
    folder: RunFolder,
    probe: Probe | None,
    reporter: Reporter,
    *,
    going_on: bool,
    deadline: float | None = None,
) -> Progress:
    """Train ``parts.method`` to the end of its schedule, from the last checkpoint if ``going_on``.

    Everything random depends on the seed and the step alone, so where a run was interrupted
    leaves no trace in what it learns.

    Several processes run it together, in step: whatever they exchange they exchange in one order.
    Only the first writes files, looks through ``probe`` and has a reporter that speaks.

    Past ``deadline``, a moment of `time.monotonic`, it stops as if interrupted.
    """
    config, method, source = parts.config, parts.method, parts.source
    seed, batch = config.training.seed, int(config.training.batch_size)
    course = parts.course
    steps_an_epoch, total_steps, rate_at = (
        course.steps_an_epoch,
        course.total_steps,
        course.schedule,
    )
    optimizer = create_optimizer(method, config.optimizer, parts.fabric.device)
    meter, progress = Meter(), Progress()
    probing = config.probe.kind != "none"
    scored_by = probed_by(config.probe, parts.encoder.preprocessing.image_size)
    if going_on:
        with all_or_none(parts.fabric):
            progress = load_checkpoint(
                folder.last, method, optimizer, meter, parts.average, run=folder.mark
            )
            if progress.step > total_steps:
                raise CorruptFileError(
                    f"'{folder.last}' is a state after {progress.step} steps, where the run has "
                    f"{total_steps}; put the run's own back"
                )
        if progress.best_by == "probe":  # of before there was more to tell: by the same, as a rule
            progress.best_by = scored_by
        require_agreement(
            parts.fabric,
            progress.step,
            f"the processes see different checkpoints in '{folder.path}'; --out must be a folder "
            "that all machines share",
        )
        if rank() == 0:
            folder.drop_metrics_after(progress.step)
        reporter.note(f"going on from step {progress.step} of {total_steps}")
    compile_if_worthwhile(parts, progress.step, reporter)
    step = create_step(parts, optimizer, meter, reporter)
    keeper = Keeper(
        folder,
        method,
        optimizer,
        config.checkpoint,
        progress.step,
        parts.average,
        plateau_end=rate_at.same_until,
    )
    if going_on:
        keeper.restore_kept(progress)
    watch = _Stopwatch(progress, batch)
    health = _Health(parts, reporter)

    log = MetricsLog(folder, config.logging, progress.step)
    with Interruption() as interruption, log, keeper:
        pauses = _Pauses(interruption, keeper, parts.fabric.device, deadline)
        reporter.begin(total_steps, progress.step)
        while progress.step < total_steps:
            epoch, first = divmod(progress.step, steps_an_epoch)
            batches = epoch_batches(
                source,
                seed=seed,
                epoch=epoch,
                batch_size=batch,
                first=first,
                epochs=config.training.epochs,
                share=(rank(), world_size()),
            )
            method.train()
            for position, rows in enumerate(batches, first):
                rate = rate_at(progress.step)
                step(progress.step, rows, rate)
                progress.step += 1
                if parts.average is not None:
                    parts.average.follow(method.get_submodule("backbone"))
                if progress.step % _FINITE_CHECK_STEPS == 0:
                    meter.glance_at_finite()
                if reporter.due():
                    reporter.advance(progress.step, watch.images_per_second(), meter.glance())
                if position + 1 < steps_an_epoch:  # at the end of an epoch its metrics come first
                    save, stop = pauses(progress.step)
                    if save or stop:
                        watch.stop()
                        keeper.save(meter, progress)
                    if stop:
                        raise pauses.reason()
            meter.check_finite()
            record: dict[str, Any] = {
                "epoch": epoch + 1,
                "step": progress.step,
                "lr": rate,
                **meter.means(),
                **health().as_metrics(),
                **relative_step(optimizer),
                "images_per_second": round(watch.images_per_second(), 1),
            }
            probed = probing and (epoch + 1) % config.probe.every == 0
            if probe is not None and (probed or progress.step == total_steps):
                record.update(probe(parts.encoder, method, parts.fabric.device))
            watch.stop()
            log.write({**record, "seconds": round(progress.seconds, 3)})
            reporter.epoch(record)
            meter.reset()
            save, stop = pauses(progress.step, epoch_ends=True)
            if save or stop or probed or progress.step == total_steps:
                if "probe_accuracy" in record:
                    keeper.save(meter, progress, record["probe_accuracy"], by=scored_by)
                elif not probing:
                    keeper.save(meter, progress, -record["loss"], by="loss")
                else:
                    keeper.save(meter, progress)
            if stop and progress.step < total_steps:
                raise pauses.reason()
    return progress


class _Pauses:
    """When to save and when to stop, alike on all processes.

    A signal may reach one process only, and every one has a clock of its own. Several processes
    therefore vote, every ten steps and at the end of an epoch; a single one asks itself after every
    step.
    """

    def __init__(
        self,
        interruption: Interruption,
        keeper: Keeper,
        device: torch.device,
        deadline: float | None = None,
    ) -> None:
        self.interruption = interruption
        self.keeper = keeper
        self.device = device
        self.deadline = deadline

    def __call__(self, step: int, *, epoch_ends: bool = False) -> tuple[bool, bool]:
        """Whether a checkpoint is due after ``step`` steps, and whether the run is to stop."""
        self.keeper.check()
        by_steps = self.keeper.due_by_steps(step)
        if world_size() > 1 and step % _VOTE_STEPS and not epoch_ends:
            return by_steps, False
        by_minutes = any_rank(self.keeper.due_by_minutes(), self.device)
        stop = self.interruption.requested or self._late()
        return by_steps or by_minutes, any_rank(stop, self.device)

    def reason(self) -> Interrupted:
        """What a run that is to stop ends with, once its state is saved; all ask together.

        By now the clocks may disagree with the vote. If none was interrupted, it was the time.
        """
        self.keeper.wait()
        asked = any_rank(self.interruption.requested, self.device)
        return Interrupted() if asked else DeadlineReached()

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline


class _Stopwatch:
    """Seconds of the whole run, interruptions excluded, and images a second of this process."""

    def __init__(self, progress: Progress, batch: int) -> None:
        self.progress = progress
        self.batch = batch
        self._before = progress.seconds
        self._first_step = progress.step
        self._began = time.perf_counter()

    def stop(self) -> None:
        """Bring ``progress.seconds`` up to date."""
        self.progress.seconds = self._before + time.perf_counter() - self._began

    def images_per_second(self) -> float:
        """Mean since this process began to train, diagnostics and checkpoints included."""
        images = (self.progress.step - self._first_step) * self.batch
        return images / max(1e-9, time.perf_counter() - self._began)


class _Health:
    """Diagnoses the embedding of the same images in the same views each time it is called."""

    def __init__(self, parts: Parts, reporter: Reporter) -> None:
        self.parts = parts
        self.reporter = reporter
        seed = parts.config.training.seed
        order = numpy_generator(seed, "diagnostics").permutation(len(parts.source))
        rows = np.sort(order[:_DIAGNOSTIC_IMAGES])
        self.images = parts.source.images(rows).to(parts.fabric.device)
        self._warned = False

    @torch.no_grad()
    def __call__(self) -> Diagnostics:
        """Diagnose the network as the loss sees it, on batches; warn of a collapse once.

        In evaluation mode the first epochs would show how stale running statistics are. They are
        put back afterwards, so that a look changes nothing.
        """
        parts, method = self.parts, self.parts.method
        device, seed = parts.fabric.device, parts.config.training.seed
        views = parts.views(self.images, torch_generator(seed, "diagnostics", device=device))
        embed = getattr(method, "embed", parts.encoder.backbone)
        parts_of_view = -(-len(self.images) // int(parts.config.training.batch_size))
        kept = copied_buffers(method)
        embeddings = [
            torch.cat([embed(chunk) for chunk in view.tensor_split(parts_of_view)])
            for view in views
        ]
        put_back(method, kept)
        finite = all(bool(torch.isfinite(z).all()) for z in embeddings)
        if any_rank(not finite, device):
            raise TrainingDiverged("the embeddings are no longer finite")
        result = diagnose(*embeddings)
        collapse = result.collapse(standardised=getattr(method, "standardises", False))
        if collapse and not self._warned:
            remedy = getattr(method, "against_collapse", Method.against_collapse)
            self.reporter.warn(
                f"the embedding has collapsed: {collapse}. Every image looks alike to the "
                f"encoder; {remedy}"
            )
        self._warned = collapse is not None
        return result
