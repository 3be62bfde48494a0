"""A run's whole state in one file that is never unpickled.

Random numbers are functions of seed and step (see `eigenshot.randomness`), so the step is all that
is kept of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eigenshot.collective import any_rank, rank
from eigenshot.errors import CorruptFileError, TrainingDiverged
from eigenshot.files import remove_leftovers
from eigenshot.tensorfile import Content, content_of, read_tensors
from eigenshot.training.meter import Meter

FORMAT = "eigenshot-checkpoint"


@dataclass
class Progress:
    """How far a run is: optimiser steps done, seconds spent, the best score and its step.

    ``best_by`` says what was scored, and how: scores of different ones do not compare.
    """

    step: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = -1
    best_by: str = ""


def take_checkpoint(
    method: nn.Module,
    optimizer: torch.optim.Optimizer,
    meter: Meter,
    progress: Progress,
    average: nn.Module | None = None,
    *,
    run: str | None = None,
) -> Content | None:
    """Everything a run needs to go on, as it is now. Weights that are not finite are refused.

    Several processes call it together, and the first gets it; the others None. ``run`` marks whose
    state it is, as `RunFolder.mark` has it.
    """
    weights = method.state_dict()
    broken = [
        name
        for name, value in weights.items()
        if value.is_floating_point() and not bool(torch.isfinite(value).all())
    ]
    if any_rank(bool(broken), next(method.parameters()).device):
        named = ", ".join(broken[:3]) or "of another process"
        raise TrainingDiverged(f"the weights {named} are no longer finite")
    sums, count = meter.state()
    if rank() != 0:
        return None
    slots, plain = _flatten_optimizer(optimizer.state_dict())
    tensors = {
        **{f"method.{name}": value for name, value in weights.items()},
        **{f"optimizer.{name}": value for name, value in slots.items()},
        **{f"meter.{name}": value for name, value in sums.items()},
        **{f"average.{name}": value for name, value in _state_of(average).items()},
    }
    header = {
        "step": progress.step,
        "seconds": progress.seconds,
        "best": [progress.best, progress.best_step, progress.best_by],
        "meter_count": count,
        "meter_names": list(sums),
        "optimizer": plain,
        "run": run,
    }
    return content_of(tensors, header, kind=FORMAT)


def shrunk(content: Content) -> Content:
    """A checkpoint of about a quarter of the size: no momentum, matrices in half precision.

    A run goes on from it, but not exactly. Its header says ``"shrunk"``.
    """
    tensors = {
        name: _halved(value)
        for name, value in content.tensors.items()
        if not name.startswith("optimizer.")
    }
    return Content(content.kind, tensors, {**content.header, "optimizer": {}, "shrunk": True})


def _halved(value: Tensor) -> Tensor:
    """A matrix or kernel in half precision, where that can hold it; all else as it is."""
    if value.dtype != torch.float32 or value.ndim < 2 or not value.numel():
        return value
    fits = float(value.abs().max()) <= torch.finfo(torch.float16).max
    return value.half() if fits else value


def load_checkpoint(
    path: Path,
    method: nn.Module,
    optimizer: torch.optim.Optimizer,
    meter: Meter,
    average: nn.Module | None = None,
    *,
    run: str | None = None,
) -> Progress:
    """Restore what `take_checkpoint` took, from its file, in place; that of no other ``run``."""
    remove_leftovers(path.parent, path.name)
    try:
        tensors, header = read_tensors(path, kind=FORMAT)
    except CorruptFileError as error:
        raise CorruptFileError(f"{error}. Deleting the file starts the run afresh") from error
    check_owner(path, header, run)
    device = next(method.parameters()).device
    try:
        method.load_state_dict(_with_prefix(tensors, "method."))
        if average is not None:
            average.load_state_dict(_with_prefix(tensors, "average."))
        slots = _unflatten_optimizer(_with_prefix(tensors, "optimizer."), header["optimizer"])
        # Rates and kernels are this run's own; what was learned is in the slots.
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": slots, "param_groups": groups})
        sums = _with_prefix(tensors, "meter.")
        names = header.get("meter_names", list(sums))  # in their own order, which tensors lose
        meter.restore({name: sums[name] for name in names}, int(header["meter_count"]), device)
        _match_layout(optimizer)
        return Progress(int(header["step"]), float(header["seconds"]), *header["best"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        first_line = str(error).strip().splitlines()[0]
        raise CorruptFileError(
            f"checkpoint '{path}' does not fit this run: {first_line}"
        ) from error


def check_owner(path: Path, header: Mapping[str, Any], run: str | None) -> None:
    """Refuse the state of another run than ``run``, where both are marked."""
    found = header.get("run")
    if run is not None and found is not None and found != run:
        raise CorruptFileError(f"'{path}' is the state of another run; put the run's own back")


def _match_layout(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimiser's tensors the memory layout of their parameters, as in an unbroken run."""
    for parameter, slots in optimizer.state.items():
        for name, value in slots.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                slots[name] = torch.empty_like(parameter).copy_(value)


def link_or_copy(source: Path, target: Path) -> None:
    """Let ``target`` be the same file as ``source`` is now, atomically."""
    temporary = target.with_name(f".{target.name}.new")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, temporary)
    os.replace(temporary, target)


def _state_of(module: nn.Module | None) -> dict[str, Tensor]:
    return {} if module is None else module.state_dict()


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }


def _flatten_optimizer(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by ``parameter.slot``, and everything else as plain values."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for parameter, slots in state["state"].items():
        for slot, value in slots.items():
            if isinstance(value, Tensor):
                tensors[f"{parameter}.{slot}"] = value
            else:
                plain.setdefault(str(parameter), {})[slot] = value
    return tensors, plain


def _unflatten_optimizer(
    tensors: dict[str, Tensor], plain: dict[str, dict[str, Any]]
) -> dict[int, dict[str, Any]]:
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        parameter, _, slot = name.partition(".")
        state.setdefault(int(parameter), {})[slot] = value
    for parameter, slots in plain.items():
        state.setdefault(int(parameter), {}).update(slots)
    return state
