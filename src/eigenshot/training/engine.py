"""How steps are run: by which optimiser, in a graph or one by one, compiled or not."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from eigenshot.collective import mean_over_ranks, world_size
from eigenshot.config import OptimizerConfig
from eigenshot.data.source import ArraySource
from eigenshot.hardware import device_time
from eigenshot.methods import Method
from eigenshot.networks import Backbone
from eigenshot.networks.apart import can_keep_halves_apart
from eigenshot.reporter import Reporter
from eigenshot.training.captured import CapturedStep
from eigenshot.training.meter import Meter
from eigenshot.training.parts import Parts, Programs
from eigenshot.training.step import EagerStep

# Measured on an H200: compiled, with both views in one pass, a step takes 26 to 31 % less time, and
# compiling takes about 40 seconds (benchmarks/throughput.md).
_COMPILED_GAIN = 0.28
_COMPILE_SECONDS = 40.0

# What runs in a graph if a step does, or decides which graph runs.
_FORWARD_PASS = (
    "forward",
    "draw",
    "terms",
    "objective",
    "represent",
    "standardised",
    "embed",
    "embed_pair",
    "embed_target",
    "embed_target_pair",
)


def create_optimizer(
    method: nn.Module, settings: OptimizerConfig, device: torch.device
) -> torch.optim.Optimizer:
    """SGD; on CUDA in one kernel, with a learning rate that a captured step reads anew.

    The parameters of a method's ``constant_rate`` are a group that no schedule changes.
    """
    on_cuda = device.type == "cuda"

    def rate() -> Any:
        return torch.tensor(settings.lr, device=device) if on_cuda else settings.lr

    constant = method.constant_rate() if isinstance(method, Method) else []
    apart = {id(parameter) for parameter in constant}
    trained = [p for p in method.parameters() if p.requires_grad and id(p) not in apart]
    groups: list[dict[str, Any]] = [{"params": trained, "lr": rate()}]
    if constant:
        groups.append({"params": constant, "lr": rate(), "constant": True})
    return torch.optim.SGD(
        groups,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        fused=on_cuda,
    )


def create_step(
    parts: Parts, optimizer: torch.optim.Optimizer, meter: Meter, reporter: Reporter
) -> EagerStep:
    """The fastest way to run a step that is possible here; where it is not, why, is said."""
    reason = _why_not_captured(parts)
    if reason is None:
        return CapturedStep(parts, optimizer, meter, reporter)
    if parts.fabric.device.type == "cuda":
        reporter.note(f"steps run without a graph: {reason}")
    return EagerStep(parts, optimizer, meter, reporter)


def _why_not_captured(parts: Parts) -> str | None:
    """What keeps a step from being captured, or None."""
    if parts.config.engine.capture == "off":
        return "engine.capture is off"
    if parts.fabric.device.type != "cuda":
        return "graphs are CUDA's"
    if world_size() > 1:
        return "several processes train together"
    if parts.config.training.micro_batches > 1:
        # A graph knows one seed of torch's own generator, and every part has another.
        return "a batch goes through the network in parts"
    if not isinstance(parts.source, ArraySource) or not parts.source.pixels.is_cuda:
        return "the images are not on the device"
    if not says_capturable(type(parts.method)):
        return "the method does not say that its forward can be captured: capturable = True"
    return None


def says_capturable(method: type[nn.Module]) -> bool:
    """Whether a class of methods vouches for the forward pass that it has.

    A class that has inherited ``capturable`` and overrides what a forward pass runs has vouched for
    nothing yet.
    """
    owners = method.__mro__
    vouching = next((owner for owner in owners if "capturable" in vars(owner)), None)
    if vouching is None or not vars(vouching)["capturable"]:
        return False
    later = owners[: owners.index(vouching)]
    return not any(name in vars(owner) for owner in later for name in _FORWARD_PASS)


def compile_if_worthwhile(parts: Parts, first: int, reporter: Reporter) -> None:
    """Let training steps be compiled, if asked or if those from ``first`` on repay it."""
    asked = parts.config.engine.compile
    if asked == "off" or (asked == "auto" and not _gain_is_known(parts)):
        return
    because = "as asked"
    if asked == "auto":
        gain = seconds_left(parts, first=first) * _COMPILED_GAIN
        sizes = {side for _, _, side in parts.course.stretches(first=first)}
        price = _COMPILE_SECONDS * max(1, len(sizes))  # every size is compiled for by itself
        if gain < price:
            reporter.note(f"not compiled: it would save about {gain:.0f} s and take {price:.0f} s")
            return
        when = "now" if len(sizes) == 1 else f"over {len(sizes)} sizes of views"
        because = f"about {price:.0f} s {when} for {gain:.0f} s later"
    reporter.note(f"the first steps compile the network: {because}")
    parts.programs = compile_parts(parts.method, parts.views)
    # Two views in one pass pay with compiled kernels only: without, halves are copied about.
    if isinstance(parts.method, Method):
        parts.method.joint = can_keep_halves_apart(parts.method)


def _gain_is_known(parts: Parts) -> bool:
    """Whether what compiling saves has been measured for runs of this kind."""
    on_cuda = parts.fabric.device.type == "cuda"
    return on_cuda and world_size() == 1 and parts.config.training.micro_batches == 1


def compile_parts(method: nn.Module, views: nn.Module) -> Programs:
    """Compiled forms of the networks' stages, of projectors and predictors, and of the views.

    Stage by stage, because mixing happens between stages: one program serves every layer. A stage
    that stands in several places is compiled once. The views' random draws stay outside, what
    follows them is a pure function.
    """
    owners: list[tuple[Any, str]] = [(view, "transform") for view in views.children()]
    for part in method.children():
        stages = part.stages if isinstance(part, Backbone) else [part]
        owners += [(stage, "forward") for stage in stages]
    once = {(id(owner), name): (owner, name) for owner, name in owners}
    return [
        (owner, name, torch.compile(getattr(owner, name), dynamic=False))
        for owner, name in once.values()
    ]


def seconds_left(parts: Parts, *, first: int = 0) -> float:
    """Time of the run's steps from ``first`` on, by a few of them on a copy of the network.

    Where views grow, steps of every size that is left are tried, each size once. Several processes
    call it together and find the same.
    """
    stretches = [
        (begin, end - begin, parts.view_size(begin))
        for begin, end, _ in parts.course.stretches(first=first)
    ]
    unknown = {side: begin for begin, _, side in stretches if side not in parts.seconds}
    if unknown:
        parts.seconds.update(_measured(parts, unknown))
    return sum(steps * parts.seconds[side] for _, steps, side in stretches)


def _measured(parts: Parts, steps: Mapping[int, int]) -> dict[int, float]:
    """Seconds that ``steps`` take, which are given by the side of their views."""
    # Copies of all that a step changes: weights, and the size of the views.
    trial = dataclasses.replace(
        parts, method=copy.deepcopy(parts.method), views=copy.deepcopy(parts.views)
    )
    optimizer = create_optimizer(trial.method, parts.config.optimizer, parts.fabric.device)
    step = create_step(trial, optimizer, Meter(), Reporter())
    return {side: _seconds_at(step, number, parts) for side, number in steps.items()}


def _seconds_at(step: EagerStep, number: int, parts: Parts) -> float:
    """Seconds that step ``number`` takes once what is made for its size is there."""
    batch = int(parts.config.training.batch_size) // world_size()
    moments = []
    for _ in range(4):
        moments.append(device_time(parts.fabric.device))
        step(number, np.arange(batch), 0.0)  # the same step again, so that one graph serves
    moments.append(device_time(parts.fabric.device))
    seconds = torch.tensor(float(min(np.diff(moments)[1:])))  # the first step also allocates
    return float(mean_over_ranks(seconds.to(parts.fabric.device)))
