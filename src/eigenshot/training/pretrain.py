"""A run from start to end: prepare, train, leave the encoder behind."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eigenshot.config import Config
from eigenshot.data.naming import choose_split, is_benchmark
from eigenshot.data.opening import open_source, tell_passed_over
from eigenshot.data.reader import Reading
from eigenshot.encoder import Encoder, encoder_path, initialise_from
from eigenshot.errors import TrainingDiverged, UserError
from eigenshot.files import write_json
from eigenshot.hardware import choose_device, environment
from eigenshot.reporter import Reporter
from eigenshot.training.checkpoint import Progress
from eigenshot.training.engine import seconds_a_step
from eigenshot.training.loop import train
from eigenshot.training.metrics import check_tensorboard
from eigenshot.training.probe import Probe
from eigenshot.training.runfolder import RunFolder
from eigenshot.training.setup import (
    Parts,
    adopt_choices,
    build,
    check_parts,
    load_source,
    resolve_batch,
    resolve_size,
)


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, what was learned, and how it went."""

    folder: Path
    encoder: Encoder
    summary: dict[str, Any]


def pretrain(
    data: Any,
    config: Config,
    out: str | Path,
    *,
    resume: bool = False,
    initial: str | Path | None = None,
    backbone: nn.Module | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
) -> Run:
    """Learn an encoder from unlabelled images and leave it in a run folder.

    Parameters
    ----------
    data : what `eigenshot.data.opening.open_source` takes; labels are never looked at.
    out : the run's folder; it must not hold a run, unless ``resume``.
    resume : go on from the last checkpoint in ``out``; from the start when there is none.
    initial : an encoder file or state dict to start from.
    backbone : a module of the caller's, instead of ``config.backbone``.
    """
    # Steps and trials seed torch's own generator; outside, the caller's stays as it was.
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices), reporter or Reporter() as shown:
        return _pretrain(data, config, RunFolder(out), resume, initial, backbone, device, shown)


def _pretrain(
    data: Any,
    config: Config,
    folder: RunFolder,
    resume: bool,
    initial: str | Path | None,
    backbone: nn.Module | None,
    device: str,
    reporter: Reporter,
) -> Run:
    folder.check(resume)
    started = resume and folder.started
    chosen = choose_device(device)
    check_tensorboard(config.logging)
    if started:
        config = adopt_choices(config, folder.read_config())
    config = resolve_size(config, data, chosen)
    # What can be known to be wrong is said before thousands of images are read.
    check_parts(config, own_backbone=backbone is not None)
    if initial is not None:
        encoder_path(initial)
    if started:
        folder.check_settings(config)
    source = load_source(config, data, chosen, reporter)
    config = resolve_batch(config, source, chosen)
    if started:
        folder.check_settings(config)  # what is in memory or not may be another choice now
    parts = build(config, source, chosen, backbone=backbone, initial=initial)
    probe = _open_probe(config, data, reporter)
    identity = _identity(parts, initial)
    if started:
        folder.check_data(identity)
        if folder.finished:
            reporter.note(f"'{folder.path}' is finished already")
            return _read_finished(folder, parts)
    going_on = started and folder.last.exists()
    if not going_on:
        if resume:
            reporter.note(f"no checkpoint in '{folder.path}' yet: starting afresh")
        folder.start(config, identity)
        _announce(parts, reporter)
    try:
        progress = train(parts, folder, probe, reporter, going_on=going_on)
    except TrainingDiverged as error:
        kept = f"the last good checkpoint stands in '{folder.last.parent}'"
        kept = kept if folder.last.exists() else "no checkpoint had been written yet"
        raise TrainingDiverged(f"{error}; {kept}") from error
    finally:
        if callable(close := getattr(source, "close", None)):  # a stream has workers
            close()
    return _finish(parts, folder, progress)


def _open_probe(config: Config, data: Any, reporter: Reporter) -> Probe | None:
    if config.probe.kind == "none":
        return None
    if not config.probe.data and not is_benchmark(data):
        raise UserError(
            "the probe needs labelled images: --set probe.data=FOLDER with a sub-folder a class"
        )
    probed = config.probe.data or data
    source = open_source(
        probed,
        image_size=int(config.data.image_size),
        channels=config.data.channels,
        split=choose_split(probed, "validation"),
        seed=config.data.seed,
        reading=Reading(
            max_unreadable=config.data.max_unreadable,
            progress=reporter.counting("reading the probe's images"),
        ),
        reporter=reporter,
    )
    tell_passed_over(source, reporter)
    return Probe(config.probe, source, config.training.seed)


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
    }


def _announce(parts: Parts, reporter: Reporter) -> None:
    """Say what is about to happen and how long it will take."""
    config, source = parts.config, parts.source
    batch, epochs = int(config.training.batch_size), config.training.epochs
    seconds = seconds_a_step(parts) * epochs * (len(source) // batch)
    channels, height, width = source.shape
    size = sum(parameter.numel() for parameter in parts.encoder.backbone.parameters())
    reporter.note(
        f"{len(source):,} images of {height}×{width}×{channels} from {source.name}; "
        f"{config.backbone.name} of {size / 1e6:.2f} M parameters, {epochs} epochs "
        f"in batches of {batch} on {parts.fabric.device.type}: about {duration(seconds)}"
    )


def duration(seconds: float) -> str:
    """Seconds in words a person reads: ``"2 h 10 min"``."""
    if seconds < 100:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours / 24:.1f} days"


def _finish(parts: Parts, folder: RunFolder, progress: Progress) -> Run:
    """Write the encoder, then the summary, whose presence says that the run is whole."""
    config = parts.config
    folder.remove_leftovers()
    parts.encoder.backbone.eval()
    parts.encoder.save(folder.encoder_file)
    images = progress.step * int(config.training.batch_size)
    records = folder.metrics()
    summary = {
        "method": config.method.name,
        "backbone": config.backbone.name,
        "epochs": config.training.epochs,
        "steps": progress.step,
        "seed": config.training.seed,
        "seconds": round(progress.seconds, 3),
        "images_per_second": round(images / max(1e-9, progress.seconds), 1),
        "final": records[-1] if records else {},
        **environment(parts.fabric.device),
    }
    write_json(folder.summary_file, summary)
    return Run(folder.path, parts.encoder, summary)


def _read_finished(folder: RunFolder, parts: Parts) -> Run:
    initialise_from(parts.encoder.backbone, folder.encoder_file)
    parts.encoder.backbone.eval()
    summary = json.loads(folder.summary_file.read_text(encoding="utf-8"))
    return Run(folder.path, parts.encoder, summary)
