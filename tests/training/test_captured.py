"""The step as a CUDA graph does what the plain step does."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eigenshot.configfile import load_config
from eigenshot.data.source import ArraySource
from eigenshot.methods.dle import DeepLaplacianEigenmapsMethod
from eigenshot.methods.mixing import Mix
from eigenshot.reporter import Reporter
from eigenshot.training.captured import CapturedStep, CaptureFailed, graph_key, split_draw
from eigenshot.training.choices import resolve_batch, resolve_size
from eigenshot.training.engine import compile_if_worthwhile, create_optimizer, create_step
from eigenshot.training.loop import Interrupted
from eigenshot.training.meter import Meter
from eigenshot.training.parts import Parts
from eigenshot.training.pretrain import pretrain
from eigenshot.training.setup import build
from eigenshot.training.step import EagerStep
from tests.training.test_pretrain import Recorder

SMALL: dict[str, Any] = {
    "backbone.name": "resnet12",
    "backbone.options.widths": [16, 24, 32, 48],
    "projector.width": 64,
    "training.batch_size": 32,
    "augment.options.solarise": 0.2,
    "augment.options.blur": 0.5,
}


def source(labels: np.ndarray | None = None) -> ArraySource:
    generator = torch.Generator().manual_seed(1)
    pixels = torch.randint(0, 256, (256, 3, 32, 32), dtype=torch.uint8, generator=generator)
    names = () if labels is None else tuple(map(str, np.unique(labels)))
    return ArraySource(pixels, labels, names)


def parts_of(device: str = "cuda", labels: np.ndarray | None = None, **changes: Any) -> Parts:
    settings = {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}
    config, images = load_config("fc100", settings), source(labels)
    config = resolve_batch(resolve_size(config, images, device), images, device)
    return build(config, images, device)


def train(step: EagerStep, steps: int = 12) -> dict[str, float]:
    order = np.random.default_rng(0).permutation(256)
    step.method.train()
    for number in range(steps):
        place = 32 * (number % 8)
        step(number, order[place : place + 32], 0.02)
    return step.meter.means()


def run(parts: Parts, kind: type[EagerStep], reporter: Reporter | None = None) -> dict[str, float]:
    optimizer = create_optimizer(parts.method, parts.config.optimizer, parts.fabric.device)
    extra = (reporter or Reporter(),) if kind is CapturedStep else ()
    return train(kind(parts, optimizer, Meter(), *extra))


def distance(one: Parts, other: Parts) -> float:
    """Relative difference of all weights and buffers."""
    pairs = zip(one.method.state_dict().values(), other.method.state_dict().values(), strict=True)
    gaps = [(float((a.double() - b.double()).norm()), float(b.double().norm())) for a, b in pairs]
    return sum(gap for gap, _ in gaps) / sum(norm for _, norm in gaps)


def test_a_draw_is_split_into_what_is_filled_and_what_is_chosen() -> None:
    mix = Mix(3, torch.tensor(0.5), torch.arange(4))
    tensors, choices = split_draw(mix)
    assert set(tensors) == {"coefficient", "permutation"}
    assert choices == {"layer": 3}
    assert split_draw(None) == ({}, {})
    with pytest.raises(CaptureFailed, match="no dataclass"):
        split_draw(torch.zeros(2))

    @dataclasses.dataclass
    class Unhashable:
        layers: list[int]

    with pytest.raises(CaptureFailed, match="cannot be told apart"):
        split_draw(Unhashable([1]))


def test_one_graph_serves_what_differs_in_values_of_tensors_only() -> None:
    mix = Mix(3, torch.tensor(0.5), torch.arange(4))
    assert graph_key(mix, 4) == graph_key(Mix(3, torch.tensor(0.7), torch.randperm(4)), 4)
    others = (
        Mix(2, mix.coefficient, mix.permutation),
        Mix(3, mix.coefficient.double(), mix.permutation),
        Mix(3, mix.coefficient.expand(4), mix.permutation),
    )
    keys = {graph_key(other, 4) for other in (mix, *others)} | {graph_key(mix, 8)}
    assert len(keys) == 5


@pytest.fixture
def idle_step(monkeypatch: pytest.MonkeyPatch) -> CapturedStep:
    """A step on a CPU, of which everything but a capture can be tried."""
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    parts = parts_of("cpu", backbone__options__widths=[4, 6, 8, 10], projector__width=16)
    optimizer = create_optimizer(parts.method, parts.config.optimizer, torch.device("cpu"))
    return CapturedStep(parts, optimizer, Meter(), Reporter())


def test_trial_steps_are_undone(idle_step: CapturedStep) -> None:
    before = {name: value.clone() for name, value in idle_step.method.state_dict().items()}
    kept = idle_step._keep()
    idle_step.prepare(0, 0.1)
    idle_step.advance(idle_step.pixels[:32], idle_step.draw(0, np.arange(32)))
    idle_step._put_back(kept)
    after = idle_step.method.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    slots = [slot["momentum_buffer"] for slot in idle_step.optimizer.state.values()]
    assert slots
    assert not any(slot.any() for slot in slots)


def test_a_replaced_buffer_cannot_be_captured_and_is_put_back(idle_step: CapturedStep) -> None:
    method = idle_step.method
    method.register_buffer("seen", torch.zeros(1))
    method.register_buffer("late", None)
    own = method.seen
    kept = idle_step._keep()
    own += 1
    method.seen = method.seen + 1
    method.late = torch.ones(1)
    with pytest.raises(CaptureFailed, match="replaces 'late', 'seen'"):
        idle_step._put_back(kept)
    assert method.seen is own
    assert own == 0
    assert method.late is None


def test_graphs_are_forgotten_when_a_weight_moves(idle_step: CapturedStep) -> None:
    idle_step._check_addresses()
    idle_step.graphs["any"] = None  # type: ignore[assignment]
    idle_step._check_addresses()
    assert idle_step.graphs, "nothing moved"
    weight = next(idle_step.method.parameters())
    weight.data = weight.data.clone()
    idle_step._check_addresses()
    assert not idle_step.graphs
    idle_step.graphs["any"] = None  # type: ignore[assignment]
    weight.data = weight.data.clone()
    with pytest.raises(CaptureFailed, match="again and again"):
        idle_step._check_addresses()


def test_choices_without_end_are_no_choices(idle_step: CapturedStep) -> None:
    for number in range(16):
        idle_step.graphs[number] = None  # type: ignore[assignment]
    with pytest.raises(CaptureFailed, match="make it a tensor"):
        idle_step._capture_in_some_form(None, torch.arange(32))


def test_on_a_cpu_steps_run_plainly_and_nothing_is_said() -> None:
    parts = parts_of("cpu")
    recorder = Recorder()
    optimizer = create_optimizer(parts.method, parts.config.optimizer, torch.device("cpu"))
    assert type(create_step(parts, optimizer, Meter(), recorder)) is EagerStep
    assert recorder.notes == []


@pytest.mark.gpu
def test_captured_and_plain_steps_agree() -> None:
    """In bf16, whose kernels repeat themselves exactly; in float32 even plain steps do not."""
    captured, plain = parts_of(), parts_of()
    assert distance(captured, plain) == 0
    recorder = Recorder()
    ours, theirs = run(captured, CapturedStep, recorder), run(plain, EagerStep)
    assert recorder.notes == [], "nothing fell back"
    assert distance(captured, plain) < 1e-3
    for name, value in theirs.items():
        assert ours[name] == pytest.approx(value, rel=1e-2)


@pytest.mark.gpu
def test_compiled_steps_agree_and_evaluation_is_not_compiled() -> None:
    compiled, plain = parts_of(engine__compile="on"), parts_of()
    recorder = Recorder()
    compile_if_worthwhile(compiled, 0, recorder)
    assert "as asked" in recorder.notes[0]
    assert compiled.method.joint
    ours, theirs = run(compiled, CapturedStep, recorder), run(plain, EagerStep)
    assert len(recorder.notes) == 1, "nothing fell back"
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.05)
    assert "forward" not in vars(compiled.encoder.backbone.stages[0])


@pytest.mark.gpu
def test_capturing_leaves_weights_statistics_and_momentum_alone() -> None:
    parts = parts_of()
    optimizer = create_optimizer(parts.method, parts.config.optimizer, parts.fabric.device)
    step = CapturedStep(parts, optimizer, Meter(), Reporter())
    before = {name: value.clone() for name, value in parts.method.state_dict().items()}
    rows = torch.arange(32)
    for number in range(6):
        drawn = step.draw(number, rows)
        step._capture(drawn, rows)
    assert all(
        torch.equal(value, before[name]) for name, value in parts.method.state_dict().items()
    )
    slots = [slot for state in optimizer.state.values() for slot in state.values()]
    assert slots
    assert all(float(slot.abs().max()) == 0 for slot in slots if isinstance(slot, Tensor))
    assert step.meter.sums is not None
    assert float(step.meter.sums.abs().max()) == 0


class Queueing(DeepLaplacianEigenmapsMethod):
    """A method with a pointer on the host and a queue that it fills by it."""

    steps = 0

    def after_step(self) -> None:
        self.queue[self.steps % len(self.queue)] = self.steps
        self.steps += 1


@pytest.mark.gpu
def test_after_step_runs_on_the_host_at_every_step() -> None:
    parts, recorder = parts_of(), Recorder()
    parts.method.__class__ = Queueing
    parts.method.register_buffer("queue", torch.zeros(5, device="cuda"))
    run(parts, CapturedStep, recorder)
    assert recorder.notes == [], "nothing fell back"
    assert parts.method.steps == 12
    assert parts.method.queue.tolist() == [10, 11, 7, 8, 9]


@pytest.mark.gpu
def test_a_moved_weight_is_trained_at_its_new_place() -> None:
    captured, plain, recorder = parts_of(), parts_of(), Recorder()
    for parts, kind in ((captured, CapturedStep), (plain, EagerStep)):
        optimizer = create_optimizer(parts.method, parts.config.optimizer, parts.fabric.device)
        extra = (recorder,) if kind is CapturedStep else ()
        step = kind(parts, optimizer, Meter(), *extra)
        train(step)
        for tensor in (*parts.method.parameters(), *parts.method.buffers()):
            tensor.data = tensor.data.clone()
        train(step)
    assert recorder.notes == [], "nothing fell back"
    assert distance(captured, plain) < 1e-3


class Peeking(DeepLaplacianEigenmapsMethod):
    """A method that waits for the device, which a capture does not allow."""

    def forward(self, view_a: Tensor, view_b: Tensor, mix: Mix | None = None) -> dict[str, Tensor]:
        terms = super().forward(view_a, view_b, mix)
        self.seen = terms["loss"].item()
        return terms


@pytest.mark.gpu
def test_what_cannot_be_captured_falls_back_and_says_why_once() -> None:
    parts, plain = parts_of(), parts_of()
    parts.method.__class__ = Peeking
    recorder = Recorder()
    run(parts, CapturedStep, recorder)
    assert len(recorder.notes) == 1
    assert "without a graph" in recorder.notes[0]
    run(plain, EagerStep)
    assert distance(parts, plain) < 2e-2


@pytest.mark.gpu
@pytest.mark.parametrize(("first", "second"), [("auto", "off"), ("off", "auto"), ("auto", "auto")])
def test_a_run_goes_on_in_either_way(tmp_path: Path, first: str, second: str) -> None:
    def settings(capture: str) -> Any:
        extra = {"training.epochs": 3, "engine.capture": capture}
        return load_config("fc100", {**SMALL, **extra})

    pretrain(source(), settings("off"), tmp_path / "whole", device="cuda")
    with pytest.raises(Interrupted):
        pretrain(
            source(),
            settings(first),
            tmp_path / "parts",
            device="cuda",
            reporter=Recorder(stop_at=11),
        )
    resumed = pretrain(source(), settings(second), tmp_path / "parts", device="cuda", resume=True)
    whole = pretrain(source(), settings("off"), tmp_path / "whole", device="cuda", resume=True)
    images = source().pixels.numpy()
    ours, theirs = resumed.encoder.transform(images), whole.encoder.transform(images)
    assert np.abs(ours - theirs).max() < 1e-2 * np.abs(theirs).max()
