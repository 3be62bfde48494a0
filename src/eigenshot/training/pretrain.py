"""A run from start to end: prepare, train, leave the encoder behind."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eigenshot.collective import rank
from eigenshot.config import Config
from eigenshot.data.opening import tell_unreadable
from eigenshot.data.source import Source
from eigenshot.encoder import Encoder, encoder_path
from eigenshot.errors import TrainingDiverged
from eigenshot.files import write_json
from eigenshot.hardware import environment
from eigenshot.reporter import Reporter
from eigenshot.training.announcement import announce
from eigenshot.training.checkpoint import Progress
from eigenshot.training.choices import resolve_batch
from eigenshot.training.initial import initialise_from
from eigenshot.training.launch import (
    all_or_none,
    launch,
    parting,
    require_agreement,
)
from eigenshot.training.loop import Interrupted, train
from eigenshot.training.memory import memory_explained
from eigenshot.training.parts import Parts
from eigenshot.training.plan import Plan, make_plan
from eigenshot.training.probe import Probe, open_probe
from eigenshot.training.runfolder import RunFolder
from eigenshot.training.setup import build, load_source
from eigenshot.training.starter import processes
from eigenshot.training.statistics import settle_statistics

# After what may have happened at any moment.
_WAY_ON = (
    "the same command with --resume (resume=True in Python) goes on from the last checkpoint, or "
    "starts anew where there is none"
)


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, what was learned, how it went, and which process this is."""

    folder: Path
    encoder: Encoder
    summary: dict[str, Any]
    rank: int = 0


def pretrain(
    data: Any,
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    initial: str | Path | None = None,
    lengthen: str | Path | None = None,
    backbone: nn.Module | None = None,
    device: str = "auto",
    devices: int = 1,
    nodes: int = 1,
    reporter: Reporter | None = None,
    deadline: float | None = None,
) -> Run:
    """Learn an encoder from unlabelled images and leave it in a run folder.

    Parameters
    ----------
    data : what `eigenshot.data.opening.open_source` takes; labels are looked at
        only by a method that learns from them.
    out : the run's folder; it must not hold a run, unless ``resume``.
    resume : go on from the last checkpoint in ``out``; from the start when there is none.
    initial : an encoder file or state dict to start from.
    lengthen : the folder of a run with fewer epochs, to go on from where its rate began to fall;
        ``config`` may have what `eigenshot.training.lengthen.lengthened_config` gives.
    backbone : a module of the caller's, instead of ``config.backbone``.
    devices, nodes : processes a machine, each with a device of its own, and machines. They train
        together, on equal blocks of every batch, and all return. Those of this machine are started
        by running the caller's script again; under torchrun and srun they are there already.
    deadline : a moment of `time.monotonic` past which the run stops at a checkpoint, with
        `eigenshot.training.loop.DeadlineReached`.
    """
    here, machines = processes(devices, nodes, os.environ)
    with reporter or Reporter() as shown:
        with torch.random.fork_rng([]):  # networks on trial
            plan = make_plan(
                data,
                config,
                RunFolder(out),
                resume=resume,
                initial=initial,
                lengthen=lengthen,
                backbone=backbone,
                device=device,
                processes=here * machines,
            )
        # From here on a process that fails alone would leave the others waiting for it.
        fabric = launch(plan.device, here, machines, reporter=shown, way_on=_WAY_ON)
        # Steps and trials seed torch's own generator; outside, the caller's stays as it was.
        own = [fabric.device.index] if fabric.device.type == "cuda" else []
        with (
            torch.random.fork_rng(own),
            parting(fabric, Interrupted),
            contextlib.ExitStack() as held,
        ):
            return _run(plan, fabric, shown if rank() == 0 else Reporter(), deadline, held)


def _run(
    plan: Plan,
    fabric: Any,
    reporter: Reporter,
    deadline: float | None,
    held: contextlib.ExitStack,
) -> Run:
    """Read the images, train, leave the encoder; every process does, and the first writes.

    What it ``held`` from others is given back when the caller leaves that.
    """
    folder, config = plan.folder, plan.config
    require_agreement(
        fabric,
        (plan.started, plan.going_on, plan.finished),
        f"the processes see different files in '{folder.path}'; --out must be a folder that all "
        "machines share",
    )
    with all_or_none(fabric):
        source = load_source(config, plan.data, plan.device, reporter)
    told = len(getattr(source, "unreadable", ()))
    try:
        _agree_on_images(source, fabric)
        with all_or_none(fabric):
            config = resolve_batch(config, source, plan.device, fabric.world_size)
            if plan.started:
                folder.check_settings(config)  # what is in memory or not may be another choice now
            if plan.shorter is not None:
                plan.shorter.check(config)
            parts = build(
                config,
                source,
                plan.device,
                backbone=plan.backbone,
                initial=plan.initial,
                fabric=fabric,
            )
            source = parts.source  # images that are on the device are needed in memory no longer
            probe = open_probe(parts, plan.data, reporter) if rank() == 0 else None
            identity = _identity(parts, plan.initial)
            if plan.started:
                folder.check_data(identity)
            if plan.shorter is not None:
                plan.shorter.check_images(identity)
        if plan.finished:
            reporter.note(f"'{folder.path}' is finished already")
            return _read_finished(folder, parts)
        with memory_explained(parts):
            if not plan.going_on:
                if plan.resume and plan.shorter is None:
                    reporter.note(f"no checkpoint in '{folder.path}' yet: starting afresh")
                announce(parts, reporter, first=plan.shorter.step if plan.shorter else 0)
            with all_or_none(fabric):
                # After the trial steps of the estimate: what they refuse leaves no folder behind.
                if rank() == 0:
                    _begin(plan, parts, identity, reporter, held)
            told = tell_unreadable(source, reporter, told)  # the measured mean has come upon some
            going_on = plan.going_on or plan.shorter is not None
            progress = _train(parts, folder, probe, reporter, going_on, deadline)
            settle_statistics(parts)
    finally:
        tell_unreadable(source, reporter, told)  # a stream has found them on its way
        if callable(close := getattr(source, "close", None)):  # and has workers
            close()
    summary = _finish(parts, folder, progress) if rank() == 0 else {}
    return Run(folder.path, parts.encoder, fabric.broadcast(summary), rank())


def _begin(
    plan: Plan,
    parts: Parts,
    identity: dict[str, Any],
    reporter: Reporter,
    held: contextlib.ExitStack,
) -> None:
    """Make the folder that of this run, and hold it until the caller leaves ``held``."""
    folder = plan.folder
    held.enter_context(folder.held())
    if folder.started and not plan.started:  # by another, in the meantime
        folder.check(resume=False)
    if plan.shorter is not None:
        plan.shorter.hand_over(folder, parts.config, identity, parts.method, reporter)
    elif not plan.going_on:
        folder.start(parts.config, identity)
    folder.begin_session(environment(parts.fabric.device))


def _agree_on_images(source: Source, fabric: Any) -> None:
    """See to it that all processes have the same images in the same order."""
    reader = getattr(source, "reader", "resident")
    require_agreement(
        fabric,
        (len(source), source.fingerprint, reader == "streamed"),
        f"the processes found different images in '{source.name}', or read them in different ways; "
        "all machines must see the same ones, and data.reader=streamed or mapped settles the way",
    )
    if reader == "streamed":  # each has measured its own machine's memory
        source.window = fabric.broadcast(source.window)  # type: ignore[attr-defined]


def _train(
    parts: Parts,
    folder: RunFolder,
    probe: Probe | None,
    reporter: Reporter,
    going_on: bool,
    deadline: float | None,
) -> Progress:
    try:
        return train(parts, folder, probe, reporter, going_on=going_on, deadline=deadline)
    except TrainingDiverged as error:
        kept = f"the last good checkpoint stands in '{folder.last.parent}'"
        kept = kept if folder.last.exists() else "no checkpoint had been written yet"
        advice = "start anew with another --out, as a rule with a lower optimizer.lr"
        raise TrainingDiverged(f"{error}; {kept}; {advice}") from error


def _identity(parts: Parts, initial: str | Path | None) -> dict[str, Any]:
    """What a resumed run must have in common with the one that was started, beside settings."""
    weights = None
    if initial is not None:
        content = encoder_path(initial).read_bytes()
        weights = hashlib.blake2b(content, digest_size=16).hexdigest()
    source = parts.source
    return {
        "name": source.name,
        "images": len(source),
        "shape": list(source.shape),
        "fingerprint": source.fingerprint,
        "unreadable": [list(entry) for entry in getattr(source, "unreadable", ())],
        "initial": weights,
        "processes": parts.fabric.world_size,
    }


def _finish(parts: Parts, folder: RunFolder, progress: Progress) -> dict[str, Any]:
    """Write the encoder, then the summary, whose presence says that the run is whole."""
    config = parts.config
    folder.remove_leftovers()
    parts.encoder.backbone.eval()
    with folder.written():
        parts.encoder.save(folder.encoder_file)
    known = folder.read_data()
    # Somebody may have damaged the file since.
    sessions = known.get("sessions") or [environment(parts.fabric.device)]
    images = progress.step * int(config.training.batch_size)
    records = folder.metrics()
    summary = {
        "method": config.method.name,
        "backbone": config.backbone.name,
        "epochs": config.training.epochs,
        "steps": progress.step,
        "seed": config.training.seed,
        "processes": parts.fabric.world_size,
        "seconds": round(progress.seconds, 3),
        "images_per_second": round(images / max(1e-9, progress.seconds), 1),
        "final": records[-1] if records else {},
        **{key: value for key, value in known.items() if key == "lengthened"},
        **sessions[-1],
        **({"sessions": sessions} if len(sessions) > 1 else {}),
    }
    with folder.written():
        write_json(folder.summary_file, summary)
    return summary


def _read_finished(folder: RunFolder, parts: Parts) -> Run:
    initialise_from(parts.encoder.backbone, folder.encoder_file)
    parts.encoder.backbone.eval()
    return Run(folder.path, parts.encoder, folder.read_summary(), rank())
