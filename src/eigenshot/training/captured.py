"""The whole step as one CUDA graph: gather, views, network, loss, backward, optimiser, metrics.

At 32 pixels a step is bound by the launching of its kernels, not by the kernels. A graph launches
them all at once. What differs from step to step (indices, what the method draws, learning rate,
the generators' seeds) lies in tensors of fixed place that are filled before a replay.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from eigenshot.data.source import ArraySource
from eigenshot.reporter import Reporter
from eigenshot.training.meter import Meter
from eigenshot.training.setup import Parts
from eigenshot.training.step import EagerStep

_WARM_UP = 3  # runs before capture, in which libraries choose algorithms and allocate


class CaptureFailed(Exception):
    """A step cannot be captured; the message says why."""


@dataclass(frozen=True)
class _Graph:
    """A captured step and the tensors it reads: rows (batch,), and the draw's own by name."""

    graph: torch.cuda.CUDAGraph
    rows: Tensor
    inputs: dict[str, Tensor]


class CapturedStep(EagerStep):
    """A step replayed from a graph, one graph for each choice that changes what is run.

    A method's draw is split into its tensors, which are inputs of the graph, and its other fields,
    such as the layer where views are mixed: each combination of those has a graph of its own. All
    graphs share one pool of memory, since they never run at the same time. Where a capture fails,
    the reason is said once and the steps run one operation after another.
    """

    def __init__(
        self, parts: Parts, optimizer: torch.optim.Optimizer, meter: Meter, reporter: Reporter
    ) -> None:
        super().__init__(parts, optimizer, meter)
        assert isinstance(self.source, ArraySource)
        self.pixels = self.source.pixels
        self.reporter = reporter
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[Any, _Graph] = {}
        self.given_up = False

    def __call__(self, number: int, indices: np.ndarray, rate: float) -> None:
        """Step ``number`` on the images at ``indices`` with learning rate ``rate``."""
        if not self.given_up:
            try:
                return self._replay(number, torch.as_tensor(indices), rate)
            except CaptureFailed as error:
                self.given_up = True
                self.graphs.clear()
                self.reporter.note(f"steps run without a graph: {error}")
        return super().__call__(number, indices, rate)

    def _replay(self, number: int, indices: Tensor, rate: float) -> None:
        drawn = self.draw(number, len(indices))
        tensors, choices = split_draw(drawn)
        key = (len(indices), *choices.items())
        if key not in self.graphs:
            self.graphs[key] = self._capture(drawn, indices)
        known = self.graphs[key]
        self.prepare(number, rate)
        _fill(known.rows, indices)
        for name, tensor in known.inputs.items():
            _fill(tensor, tensors[name])
        known.graph.replay()
        self.meter.count += 1

    def _capture(self, drawn: Any, indices: Tensor) -> _Graph:
        """A graph of the step and its inputs; weights and statistics stay as they are."""
        rows = indices.to(self.device)
        tensors, _ = split_draw(drawn)
        inputs = {name: tensor.to(self.device) for name, tensor in tensors.items()}
        on_device = dataclasses.replace(drawn, **inputs) if drawn is not None else None
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        kept = self._keep()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        measured = torch.backends.cudnn.benchmark
        torch.backends.cudnn.benchmark = True  # the fastest convolutions, found once for all steps
        try:
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UP):
                    self.advance(self.pixels.index_select(0, rows), on_device)
            torch.cuda.current_stream().wait_stream(stream)
            # The gradients are to live in the graph's own memory.
            self.optimizer.zero_grad(set_to_none=True)
            with torch.cuda.graph(graph, pool=self.pool):
                self.advance(self.pixels.index_select(0, rows), on_device)
        except RuntimeError as error:
            first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            self._release_generators()
            raise CaptureFailed(first_line) from error
        finally:
            torch.backends.cudnn.benchmark = measured
            torch.cuda.synchronize()
            self._put_back(kept)
        return _Graph(graph, rows, inputs)

    def _release_generators(self) -> None:
        """Give the generators states of their own again, which a failed capture holds on to."""
        for generator in (self.generator, torch.cuda.default_generators[self.device.index or 0]):
            fresh = torch.Generator(device=self.device)
            generator.graphsafe_set_state(fresh.graphsafe_get_state())

    def _state(self) -> list[Tensor]:
        """Every tensor that a step changes."""
        slots = [
            value
            for values in self.optimizer.state.values()
            for value in values.values()
            if isinstance(value, Tensor)
        ]
        sums = [] if self.meter.sums is None else [self.meter.sums]
        return [*self.method.parameters(), *self.method.buffers(), *slots, *sums]

    def _keep(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {id(tensor): (tensor, tensor.detach().clone()) for tensor in self._state()}

    @torch.no_grad()
    def _put_back(self, kept: dict[int, tuple[Tensor, Tensor]]) -> None:
        for tensor in self._state():
            if id(tensor) in kept:
                tensor.copy_(kept[id(tensor)][1])
            else:  # a slot or sum that the trial steps have made: it starts from nothing
                tensor.zero_()


def split_draw(drawn: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a draw by name, and its other fields, which must be hashable."""
    if drawn is None:
        return {}, {}
    if not dataclasses.is_dataclass(drawn):
        raise CaptureFailed(f"the method draws a {type(drawn).__name__}, which is no dataclass")
    fields = {field.name: getattr(drawn, field.name) for field in dataclasses.fields(drawn)}
    tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
    choices = {name: value for name, value in fields.items() if name not in tensors}
    try:
        hash(tuple(choices.items()))
    except TypeError as error:
        raise CaptureFailed(f"the method draws what cannot be told apart: {error}") from error
    return tensors, choices


def _fill(place: Tensor, value: Tensor) -> None:
    """Copy to the device without waiting for it."""
    place.copy_(value.pin_memory(), non_blocking=True)
