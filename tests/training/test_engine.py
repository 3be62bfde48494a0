"""How steps are run is decided and undone without a GPU."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from eigenshot.errors import UserError
from eigenshot.methods.base import Method
from eigenshot.methods.dle import DeepLaplacianEigenmapsMethod
from eigenshot.methods.mixing import Mix
from eigenshot.training import engine, meter
from eigenshot.training.engine import (
    compile_if_worthwhile,
    compile_parts,
    create_optimizer,
    create_step,
    says_capturable,
)
from eigenshot.training.meter import Meter
from eigenshot.training.parts import Parts
from eigenshot.training.step import EagerStep, first_line, is_of_the_compiler, standing_in
from tests.training.test_captured import parts_of
from tests.training.test_pretrain import Recorder

SMALL: dict[str, Any] = {
    "backbone__name": "conv4",
    "backbone__options__widths": [4, 6, 8, 10],
    "projector__width": 16,
    "engine__precision": "float32",
}


def small_parts(**changes: Any) -> Parts:
    return parts_of("cpu", **{**SMALL, **changes})


def as_if_on_cuda(parts: Parts, seconds: float) -> Parts:
    """Parts of which a decision sees the device and the time of a step, and no step is run."""
    fabric = SimpleNamespace(device=torch.device("cuda"), world_size=1)
    sides = {parts.view_size(begin) for begin, _, _ in parts.course.stretches()}
    return dataclasses.replace(parts, fabric=fabric, seconds=dict.fromkeys(sides, seconds))


def step_of(parts: Parts, recorder: Recorder) -> EagerStep:
    optimizer = create_optimizer(parts.method, parts.config.optimizer, torch.device("cpu"))
    parts.method.train()
    return create_step(parts, optimizer, Meter(), recorder)


def take(step: EagerStep, steps: int = 2) -> None:
    for number in range(steps):
        step(number, np.arange(32), 0.02)


def fail_to_compile(*_: Any) -> Tensor:
    import torch._dynamo.exc

    raise torch._dynamo.exc.Unsupported("no such instruction\nand much more", "none")


def test_a_long_run_is_compiled_and_a_short_one_is_told_why_not() -> None:
    parts, recorder = as_if_on_cuda(small_parts(), seconds=0.1), Recorder()
    total = parts.course.total_steps
    compile_if_worthwhile(parts, total - 100, recorder)
    assert recorder.notes == ["not compiled: it would save about 3 s and take 40 s"]
    assert parts.programs == []
    compile_if_worthwhile(parts, total - 2000, recorder)
    assert recorder.notes[1:] == [
        "the first steps compile the network: about 40 s now for 56 s later"
    ]
    assert parts.programs
    assert parts.method.joint


def test_where_the_gain_is_not_known_only_a_request_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def programs(parts: Parts) -> int:
        compile_if_worthwhile(parts, 0, Recorder())
        return len(parts.programs)

    in_parts = {"training__micro_batches": 2}
    assert programs(small_parts()) == 0, "on a CPU"
    assert programs(as_if_on_cuda(small_parts(**in_parts), 1.0)) == 0
    assert programs(as_if_on_cuda(small_parts(**in_parts, engine__compile="on"), 1.0)) > 0
    assert programs(as_if_on_cuda(small_parts(engine__compile="off"), 1.0)) == 0
    monkeypatch.setattr(engine, "world_size", lambda: 2)
    assert programs(as_if_on_cuda(small_parts(), 1.0)) == 0


def test_compiled_parts_give_what_the_plain_ones_give(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_with = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda function, **options: compile_with(function, backend="eager")
    )
    plain, compiled = small_parts(), small_parts(engine__compile="on")
    limit = torch._dynamo.config.recompile_limit
    compile_if_worthwhile(compiled, 0, Recorder())
    assert {name for _, name, _ in compiled.programs} == {"transform", "forward"}
    for parts in (plain, compiled):
        take(step_of(parts, Recorder()))
    assert compiled.programs, "nothing fell back"
    assert torch._dynamo.config.recompile_limit == limit
    found = compiled.method.state_dict()
    for name, value in plain.method.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


def test_a_stage_in_two_places_is_compiled_once() -> None:
    parts = small_parts()
    stages = parts.method.backbone.stages
    before = len(compile_parts(parts.method, parts.views))
    stages.append(stages[-1])
    assert len(compile_parts(parts.method, parts.views)) == before


def test_standing_in_leaves_owners_as_they_were() -> None:
    plain, patched = nn.Identity(), nn.Identity()
    patched.forward = own = lambda x: x + 1  # type: ignore[assignment]
    programs = [(owner, "forward", lambda x: x * 10) for owner in (plain, patched, patched)]
    one = torch.ones(1)
    with standing_in(programs):
        assert plain(one) == patched(one) == 10
    assert "forward" not in vars(plain)
    assert vars(patched)["forward"] is own


def test_a_failed_compilation_leaves_no_trace_but_a_note() -> None:
    plain, failing, recorder = small_parts(), small_parts(), Recorder()
    failing.programs = [(failing.method.projector, "forward", fail_to_compile)]
    programs = failing.programs
    failing.method.joint = True
    take(step_of(plain, Recorder()))
    take(step_of(failing, recorder))
    assert recorder.notes == ["the network is not compiled: no such instruction"]
    assert programs == []
    assert not failing.method.joint
    found = failing.method.state_dict()
    assert all(torch.equal(found[name], value) for name, value in plain.method.state_dict().items())


def test_a_compilation_that_was_asked_for_must_not_fail() -> None:
    parts = small_parts(engine__compile="on")
    parts.programs = [(parts.method.projector, "forward", fail_to_compile)]
    with pytest.raises(UserError, match=r"compiled: no such instruction; .*engine\.compile=off"):
        take(step_of(parts, Recorder()))


def test_other_errors_are_not_taken_for_the_compilers() -> None:
    def fail(*_: Any) -> Tensor:
        raise RuntimeError("shapes differ")

    parts = small_parts()
    parts.programs = [(parts.method.projector, "forward", fail)]
    with pytest.raises(RuntimeError, match="shapes differ"):
        take(step_of(parts, Recorder()))
    assert parts.programs
    assert not is_of_the_compiler(torch.OutOfMemoryError("full"))


def test_what_a_backend_raises_is_of_the_compiler() -> None:
    def backend(*_: Any) -> Any:
        raise OSError("no C compiler\nanywhere")

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    with pytest.raises(RuntimeError) as caught:
        compiled(torch.ones(1))
    assert is_of_the_compiler(caught.value)
    assert first_line(caught.value) == "no C compiler"


def test_a_class_vouches_for_its_own_forward_only() -> None:
    class Renamed(DeepLaplacianEigenmapsMethod):
        def after_step(self, progress: float) -> None:
            """Runs on the host."""

    class Changed(DeepLaplacianEigenmapsMethod):
        def forward(
            self, view_a: Tensor, view_b: Tensor, mix: Mix | None = None
        ) -> dict[str, Tensor]:
            return super().forward(view_a, view_b, mix)

    class Vouched(Changed):
        capturable = True

    class Mixin:
        def draw(self, *_: Any) -> None:
            return None

    class Mixed(Mixin, DeepLaplacianEigenmapsMethod):  # type: ignore[misc]
        pass

    class Withdrawn(DeepLaplacianEigenmapsMethod):
        capturable = False

    assert says_capturable(DeepLaplacianEigenmapsMethod)
    assert says_capturable(Renamed)
    assert says_capturable(Vouched)
    for silent in (Changed, Mixed, Withdrawn, Method, nn.Identity):
        assert not says_capturable(silent)


def test_after_step_follows_every_step() -> None:
    class Counting(DeepLaplacianEigenmapsMethod):
        steps = 0

        def after_step(self) -> None:
            self.steps += 1

    parts = small_parts()
    parts.method.__class__ = Counting
    take(step_of(parts, Recorder()), steps=3)
    assert parts.method.steps == 3


def test_after_step_is_told_how_much_of_the_run_is_done() -> None:
    class Told(DeepLaplacianEigenmapsMethod):
        def after_step(self, progress: float) -> None:
            self.told.append(progress)

    parts = small_parts()
    parts.method.__class__ = Told
    parts.method.told = []
    total = parts.course.total_steps
    take(step_of(parts, Recorder()), steps=2)
    assert parts.method.told == [1 / total, 2 / total]


def test_a_constant_rate_stays_where_it_starts() -> None:
    class Half(DeepLaplacianEigenmapsMethod):
        def constant_rate(self) -> list[nn.Parameter]:
            return list(self.projector.parameters())

    parts = small_parts()
    parts.method.__class__ = Half
    optimizer = create_optimizer(parts.method, parts.config.optimizer, torch.device("cpu"))
    step = create_step(parts, optimizer, Meter(), Recorder())
    step(0, np.arange(32), 0.0)
    step(1, np.arange(32), 0.0)
    rates = [float(group["lr"]) for group in optimizer.param_groups]
    assert rates == [0.0, parts.config.optimizer.lr]
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in parts.method.parameters()}


class Narrow(TorchDispatchMode):
    """A device without float64: no operation may give one."""

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        found = function(*arguments, **(keywords or {}))
        assert not (isinstance(found, Tensor) and found.dtype == torch.float64), function
        return found


def test_what_a_step_does_on_the_device_needs_no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "widest_float", lambda device: torch.float32)
    parts = small_parts(method__options__target="unit-variance")
    step = step_of(parts, Recorder())
    rows = np.arange(32)
    drawn = step.draw(0, rows)
    assert drawn is not None
    drawn = dataclasses.replace(drawn, coefficient=drawn.coefficient.float())
    step.prepare(0, 0.02)
    with Narrow():
        step.advance(parts.source.images(rows), drawn)
    assert step.meter.sums is not None
    assert step.meter.sums.dtype == torch.float32
