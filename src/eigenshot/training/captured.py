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
from eigenshot.training.parts import Parts
from eigenshot.training.step import EagerStep, first_line, is_of_the_compiler

_MOST_GRAPHS = 16
_RARELY = 10  # steps for each time that weights may move: to capture takes as long as a few
_WARM_UP = 3  # runs before capture, in which libraries choose algorithms and allocate


class CaptureFailed(Exception):
    """A step cannot be captured; the message says why."""


@dataclass(frozen=True)
class _Graph:
    """A captured step and the tensors it reads: rows (batch,), and the draw's own by name."""

    graph: torch.cuda.CUDAGraph
    rows: Tensor
    inputs: dict[str, Tensor]


@dataclass(frozen=True)
class _Kept:
    """What a step may change: who holds which tensors, and the values of all by identity."""

    held: list[tuple[dict[str, Any], dict[str, Any]]]
    values: dict[int, tuple[Tensor, Tensor]]


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
        super().__init__(parts, optimizer, meter, reporter)
        assert isinstance(self.source, ArraySource)
        self.pixels = self.source.pixels
        self.pool = torch.cuda.graph_pool_handle()
        self.graphs: dict[Any, _Graph] = {}
        # Where modules hold parameters and buffers. To look there is quicker than to walk the tree.
        self.holders: list[dict[str, Any]] = [
            holder
            for module in self.method.modules()
            for holder in (module._parameters, module._buffers)
        ]
        self.addresses: tuple[int, ...] = ()
        self.replays, self.moves = 0, 0
        self.size = self.view_size(0)
        self.given_up = False

    def __call__(self, number: int, indices: np.ndarray, rate: float) -> None:
        """Step ``number`` on the images at ``indices`` with learning rate ``rate``."""
        if not self.given_up:
            try:
                return self._replay(number, torch.as_tensor(indices), rate)
            except CaptureFailed as error:
                self.given_up = True
                self._forget_graphs()
                self.reporter.note(f"steps run without a graph: {error}")
        return super().__call__(number, indices, rate)

    def _replay(self, number: int, indices: Tensor, rate: float) -> None:
        drawn = self.draw(number, indices)
        tensors, _ = split_draw(drawn)
        key = graph_key(drawn, len(indices))
        self._check_size(number)
        self._check_addresses()
        if key not in self.graphs:
            self.graphs[key] = self._capture_in_some_form(drawn, indices)
        known = self.graphs[key]
        self.prepare(number, rate)
        _fill(known.rows, indices)
        for name, tensor in known.inputs.items():
            _fill(tensor, tensors[name])
        known.graph.replay()
        self.replays += 1
        self.conclude(number)

    def _check_size(self, number: int) -> None:
        """Forget the graphs of another size of views: it does not come again."""
        size = self.view_size(number)
        if self.graphs and size != self.size:
            self._forget_graphs()
        self.size = size
        self.views.resize(size)

    def _check_addresses(self) -> None:
        """Forget the graphs if weights or buffers have moved: they would go on at the old place."""
        addresses = tuple(
            tensor.data_ptr()
            for holder in self.holders
            for tensor in holder.values()
            if tensor is not None
        )
        if self.graphs and addresses != self.addresses:
            self.moves += 1
            if self.moves * _RARELY > self.replays + _RARELY:
                raise CaptureFailed(
                    "weights or buffers are replaced again and again; change them in place"
                )
            self._forget_graphs()
        self.addresses = addresses

    def _forget_graphs(self) -> None:
        torch.cuda.synchronize(self.device)
        self.graphs.clear()
        self.pool = torch.cuda.graph_pool_handle()  # that of graphs that are gone goes with them

    def _capture_in_some_form(self, drawn: Any, indices: Tensor) -> _Graph:
        """A graph of the compiled step; of the plain one where the compilation fails."""
        if len(self.graphs) >= _MOST_GRAPHS:
            raise CaptureFailed("the method draws a new choice every step; make it a tensor")
        try:
            return self._capture(drawn, indices)
        except CaptureFailed:
            raise
        except Exception as error:
            self.do_without_programs(error)
            self._forget_graphs()  # those of compiled steps
        return self._capture(drawn, indices)

    def _capture(self, drawn: Any, indices: Tensor) -> _Graph:
        """A graph of the step and its inputs; weights and statistics stay as they are."""
        rows = indices.to(self.device)
        tensors, _ = split_draw(drawn)
        inputs = {name: tensor.to(self.device, copy=True) for name, tensor in tensors.items()}
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
        except Exception as error:
            self._release_generators()
            of_programs = bool(self.programs) and is_of_the_compiler(error)
            if of_programs or not isinstance(error, RuntimeError):
                raise
            raise CaptureFailed(first_line(error)) from error
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

    def _keep(self) -> _Kept:
        return _Kept(
            [(holder, dict(holder)) for holder in self.holders],
            {id(tensor): (tensor, tensor.detach().clone()) for tensor in self._state()},
        )

    @torch.no_grad()
    def _put_back(self, kept: _Kept) -> None:
        """Undo the trial steps; `CaptureFailed` where they have replaced a parameter or buffer."""
        replaced = set()
        for holder, held in kept.held:
            either = holder.keys() | held.keys()
            replaced |= {name for name in either if holder.get(name) is not held.get(name)}
            holder.clear()
            holder.update(held)
        for tensor in self._state():
            if id(tensor) in kept.values:
                tensor.copy_(kept.values[id(tensor)][1])
            else:  # a slot or sum that the trial steps have made: it starts from nothing
                tensor.zero_()
        if replaced:
            names = ", ".join(f"'{name}'" for name in sorted(replaced))
            raise CaptureFailed(f"the method replaces {names} in its forward; change it in place")


def graph_key(drawn: Any, batch_size: int) -> tuple[Any, ...]:
    """What two steps have in common if one graph serves both."""
    tensors, choices = split_draw(drawn)
    forms = tuple((name, tuple(value.shape), value.dtype) for name, value in tensors.items())
    # With its type, for True equals 1.
    chosen = tuple((name, type(value), value) for name, value in choices.items())
    return (batch_size, type(drawn), forms, chosen)


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
    place.copy_(value if value.is_cuda else value.pin_memory(), non_blocking=True)
