"""One optimiser step: images in, weights changed, loss terms added up."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenshot.collective import rank, world_size
from eigenshot.errors import UserError
from eigenshot.methods import Method
from eigenshot.methods.base import takes_progress
from eigenshot.networks.keeping import copied_buffers, put_back
from eigenshot.randomness import derive_seed, numpy_generator
from eigenshot.reporter import Reporter
from eigenshot.training.accumulation import (
    accumulate_parts,
    accumulate_whole,
    check_draw,
)
from eigenshot.training.meter import Meter
from eigenshot.training.parts import Parts, Programs

_COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch", "triton")
_COMPILED = "torch._inductor.runtime.compile_tasks"  # the modules of compiled programs
_PROGRAMS_A_FUNCTION = 64


@contextlib.contextmanager
def standing_in(programs: Programs) -> Iterator[None]:
    """Within the block each compiled function stands in for its owner's own.

    Outside, as in evaluation, where other batches would be compiled for, nothing is changed.
    """
    if not programs:
        yield
        return
    settings: Any = torch._dynamo.config
    # Stages of one class share one function, and the compiler counts its programs together.
    limit = max(settings.recompile_limit, _PROGRAMS_A_FUNCTION)
    replaced: Programs = []
    with settings.patch(recompile_limit=limit):
        try:
            for owner, name, compiled in programs:
                replaced.append((owner, name, vars(owner).get(name)))
                setattr(owner, name, compiled)
            yield
        finally:
            for owner, name, own in reversed(replaced):
                delattr(owner, name)
                if own is not None:
                    setattr(owner, name, own)


def is_of_the_compiler(error: BaseException) -> bool:
    """Whether ``error`` says that something could not be compiled."""
    if isinstance(error, torch.OutOfMemoryError):
        return False
    # By name: to import the compilers takes a second that most runs have no use for.
    origins = [base.__module__ for base in type(error).__mro__]
    frames = list(traceback.walk_tb(error.__traceback__))
    if isinstance(error, RuntimeError) and frames:
        raised_in = frames[-1][0].f_globals.get("__name__", "")
        if not raised_in.startswith(f"{_COMPILED}."):  # a program that runs has been compiled
            origins.append(raised_in)
    return any(f"{origin}.".startswith(f"{name}.") for origin in origins for name in _COMPILERS)


def first_line(error: BaseException) -> str:
    """The first line of what ``error`` says, or of the error that a compiler has wrapped in it."""
    error = getattr(error, "inner_exception", error)
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class EagerStep:
    """A step run operation by operation: the form that works on every device.

    A step depends on the weights, the indices, the learning rate and (seed, number) alone, so
    another way to run it can stand in its place: `eigenshot.training.captured.CapturedStep` does,
    and runs the very same `advance`.
    """

    def __init__(
        self,
        parts: Parts,
        optimizer: torch.optim.Optimizer,
        meter: Meter,
        reporter: Reporter | None = None,
    ) -> None:
        settings = parts.config.training
        self.fabric, self.method, self.views = parts.fabric, parts.method, parts.views
        self.source, self.seed = parts.source, settings.seed
        self.micro_batches, self.whole = settings.micro_batches, settings.whole_batch_loss
        self.optimizer = optimizer
        self.meter = meter
        self.reporter = reporter or Reporter()
        self.module, self.stepper = self.fabric.setup(self.method, optimizer)
        self.device: torch.device = self.fabric.device
        self.programs = parts.programs
        self.compile_asked = parts.config.engine.compile == "on"
        self.proven = False  # whether a compiled step has come to its end
        self.half = parts.config.engine.precision == "bf16"
        self.generator = torch.Generator(device=self.device)
        self.part_seeds = [0] * self.micro_batches
        self.labels = parts.labels
        self.total_steps = parts.course.total_steps
        self.view_size = parts.view_size
        # A method without eigenshot's base may want to know or not.
        self.tells_progress = takes_progress(self.method)

    def __call__(self, number: int, indices: np.ndarray, rate: float) -> None:
        """Step ``number`` on the images at ``indices`` with learning rate ``rate``."""
        self.views.resize(self.view_size(number))
        self.prepare(number, rate)
        images = self.source.images(indices).to(self.device)
        drawn = self.draw(number, indices)
        move = getattr(drawn, "to", None)
        drawn = move(self.device) if callable(move) else drawn
        # Programs that compile before one that does not have updated their statistics already.
        kept = {} if self.proven or not self.programs else copied_buffers(self.method)
        done = False
        try:
            self.advance(images, drawn)
            done = True
        except Exception as error:
            self.do_without_programs(error)
        if not done:  # out of the handler, in which the error holds the failed step's memory
            put_back(self.method, kept)
            self.prepare(number, rate)
            self.advance(images, drawn)
        self.proven = True
        self.conclude(number)

    def prepare(self, number: int, rate: float) -> None:
        """Set the learning rate, and every generator to where this step finds it."""
        for group in self.optimizer.param_groups:
            if group.get("constant"):
                continue
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        # Each process augments images of its own; one alone draws as it always did.
        place = (number, rank()) if world_size() > 1 else (number,)
        self.generator.manual_seed(derive_seed(self.seed, "augment", *place))
        # Dropout and its kin draw from torch's own generator.
        torch.manual_seed(derive_seed(self.seed, "module", *place))
        self.part_seeds = [
            derive_seed(self.seed, "module", *place, part) for part in range(self.micro_batches)
        ]

    def draw(self, number: int, indices: np.ndarray | Tensor) -> Any | None:
        """The method's own choices for this step, which its forward takes as third argument.

        A method that learns from labels has them in there: its ``draw`` takes ``labels``.
        """
        draw = getattr(self.method, "draw", None)
        if not callable(draw):
            return None
        generator = numpy_generator(self.seed, "method", number)
        given = {} if self.labels is None else {"labels": self.labels[torch.as_tensor(indices)]}
        if self.micro_batches == 1:
            return draw(len(indices), generator, **given)
        drawn = draw(len(indices), generator, blocks=self.micro_batches, **given)
        check_draw(self.method, drawn)
        return drawn

    def advance(self, images: Tensor, drawn: Any | None) -> None:
        """All that happens on the device, for uint8 ``images`` (batch, channels, height, width)."""
        if self.micro_batches > 1:
            terms = self._accumulated(images, drawn)
        else:
            with standing_in(self.programs):
                terms = self._terms(images, drawn)
            self.stepper.zero_grad()
            self.fabric.backward(terms["loss"])
        self.stepper.step()
        self.meter.add(terms)

    def conclude(self, number: int) -> None:
        """What the host does after `advance`: the method's own ``after_step``, and the count."""
        if callable(after_step := getattr(self.method, "after_step", None)):
            if self.tells_progress:
                after_step((number + 1) / self.total_steps)
            else:
                after_step()
        self.meter.count += 1

    def do_without_programs(self, error: Exception) -> None:
        """Go on uncompiled after a failed compilation; raise where that is no way on."""
        if not self.programs or not is_of_the_compiler(error):
            raise error
        if self.compile_asked:
            raise UserError(
                f"the network could not be compiled: {first_line(error)}; "
                "train without, with engine.compile=off"
            ) from error
        self.programs.clear()  # the run's own list, so that every step knows
        if isinstance(self.method, Method):
            self.method.joint = False  # two views in one pass pay with compiled kernels only
        self.reporter.note(f"the network is not compiled: {first_line(error)}")

    def _terms(self, images: Tensor, drawn: Any | None) -> dict[str, Tensor]:
        view_a, view_b = self._two_views(images)
        with self._autocast():
            terms: dict[str, Tensor] = self.module(
                view_a, view_b, *(() if drawn is None else (drawn,))
            )
        return terms

    def _accumulated(self, images: Tensor, drawn: Any | None) -> dict[str, Tensor]:
        """Terms and gradients of a batch that goes through the network in parts.

        The views are those of the whole batch, so how it is split does not change them.
        """
        self.stepper.zero_grad()
        with standing_in(self.programs):
            pair = self._two_views(images)
            if self.whole:
                return accumulate_whole(
                    self.method, *pair, drawn, self.part_seeds, autocast=self._autocast
                )
            return accumulate_parts(
                self.module,
                *pair,
                drawn,
                self.part_seeds,
                backward=self.fabric.backward,
                autocast=self._autocast,
                unsynchronised=partial(self.fabric.no_backward_sync, self.module),
            )

    def _two_views(self, images: Tensor) -> tuple[Tensor, Tensor]:
        view_a, view_b = (
            view.contiguous(memory_format=torch.channels_last)
            for view in self.views(images, self.generator)
        )
        return view_a, view_b

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)
