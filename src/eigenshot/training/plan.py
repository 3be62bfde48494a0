"""What is decided, and what is refused, before processes start and images are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from eigenshot.config import Config
from eigenshot.data.naming import is_benchmark, require_place
from eigenshot.encoder import encoder_path
from eigenshot.errors import UserError
from eigenshot.hardware import choose_device
from eigenshot.training.choices import adopt_choices, check_blocks, resolve_size
from eigenshot.training.lengthen import Shorter
from eigenshot.training.metrics import check_tensorboard
from eigenshot.training.runfolder import RunFolder
from eigenshot.training.setup import check_parts


@dataclass(frozen=True)
class Plan:
    """A run that is possible as far as can be told without its images.

    ``config`` is settled but for what the images decide; ``started`` says that the folder holds
    the run already, ``going_on`` that it has a checkpoint, ``finished`` that nothing is left to do.
    ``shorter`` is the run whose state it starts from, if it has not been handed over yet.
    """

    data: Any
    config: Config
    folder: RunFolder
    resume: bool
    initial: str | Path | None
    backbone: nn.Module | None
    device: str
    started: bool
    going_on: bool
    finished: bool
    shorter: Shorter | None = None


def make_plan(
    data: Any,
    config: Config,
    folder: RunFolder,
    *,
    resume: bool,
    initial: str | Path | None,
    lengthen: str | Path | None,
    backbone: nn.Module | None,
    device: str,
    processes: int,
) -> Plan:
    """Settle what can be settled; what can be known to be wrong is a `UserError`.

    The parameters are those of `eigenshot.training.pretrain.pretrain`; ``processes`` counts those
    of all machines.
    """
    folder.check(resume)
    started = resume and folder.started
    finished = started and folder.finished
    chosen = choose_device(device)
    check_tensorboard(config.logging)
    going_on = started and folder.last.exists()
    shorter = None
    if lengthen is not None and initial is not None:
        raise UserError("a run that is lengthened has weights of its own: leave out --init")
    if lengthen is not None and not (going_on or finished):
        shorter = Shorter.at(lengthen)
    elif started and not (going_on or finished) and folder.read_data().get("lengthened"):
        raise UserError(
            f"'{folder.path}' was to go on from the state of another run, and was stopped before "
            "it had it; name that run again with --lengthen"
        )
    if started:
        config = adopt_choices(config, folder.read_config(), data)
    elif shorter is not None:
        config = adopt_choices(config, shorter.config, data)
    if not finished:  # else all is settled, and the device need not be able to compute so
        config = resolve_size(config, data, chosen)
    check_parts(config, own_backbone=backbone is not None)
    check_blocks(config, processes)
    if config.probe.kind != "none":
        _check_probed(config.probe.data, data)
    if initial is not None:
        encoder_path(initial)
    if shorter is not None:
        shorter.check(config)
        _check_processes(shorter.folder, processes, "or start anew without --lengthen")
    if started:
        folder.check_settings(config)
        _check_processes(folder, processes)
    return Plan(
        data,
        config,
        folder,
        resume,
        initial,
        backbone,
        chosen,
        started,
        going_on=going_on,
        finished=finished,
        shorter=shorter,
    )


def _check_probed(probed: str, data: Any) -> None:
    """Refuse a probe whose images, or those of the training in their place, cannot serve."""
    if probed:
        require_place(probed)
    elif not is_benchmark(data):
        raise UserError(
            "the probe needs labelled images: --set probe.data=FOLDER with a sub-folder a class"
        )


def _check_processes(
    folder: RunFolder, processes: int, way_out: str = "or choose another --out"
) -> None:
    """Refuse to go on with fewer or more processes; ``way_out`` says what else can be done."""
    stored = folder.read_data().get("processes", 1)
    if stored != processes:
        raise UserError(
            f"'{folder.path}' was started with {_counted(stored)}, found {_counted(processes)}; "
            f"their number decides which images are mixed: go on with as many, {way_out}"
        )


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"
