"""What holds for every method: one process or two, unbroken or resumed, in a graph or not."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from eigenshot.collective import mean_over_ranks, rank, world_size
from eigenshot.configfile import method_table
from eigenshot.methods import create_method, learns_from_labels, list_methods
from eigenshot.methods.mixing import Mix
from eigenshot.methods.pairs import PairMethod
from eigenshot.networks import Projector, create_backbone
from eigenshot.networks.apart import can_keep_halves_apart
from eigenshot.networks.synchronised import synchronise
from eigenshot.reporter import Reporter
from eigenshot.training.accumulation import accumulate_whole
from eigenshot.training.captured import CapturedStep
from eigenshot.training.checkpoint import Progress, load_checkpoint, take_checkpoint
from eigenshot.training.engine import compile_if_worthwhile, create_optimizer, says_capturable
from eigenshot.training.meter import Meter
from eigenshot.training.parts import Parts
from eigenshot.training.step import EagerStep
from tests.test_collective import Results, on_two_ranks
from tests.training.test_captured import parts_of, train
from tests.training.test_pretrain import Recorder

RANKS, BATCH, STEPS, CLASSES, DIMENSIONS = 2, 24, 4, 5, 6
# Sizes that a batch of 24 fills; the rest is each method's own. With a comma: a further case of it.
OPTIONS: dict[str, dict[str, Any]] = {
    "mocov2": {"queue_length": 40},
    "mocov2, whole batch": {"queue_length": 40, "groups": 1},
    "mocov2, normalised head": {"queue_length": 40},
    "shuffled-dbn": {"group_size": 3},
    "swav": {"prototypes": 7, "queue_size": 40, "queue_start": 0.0, "frozen_steps": 1},
    "w-mse": {"sub_batch": 12},
    "byol": {"predictor_width": 10},
    "simsiam": {"predictor_width": 5},
    "byol, one momentum": {"predictor_width": 10, "schedule": "constant"},
    "swav, a queue that waits": {"prototypes": 7, "queue_size": 40, "frozen_steps": 1},
    "dle, turned": {"rotation": 0.5},
    "simclr, turned": {"rotation": 0.5, "rotate_every": 3},
}
MIXUPS = ("none", "manifold")
CASES = [(name, mixup) for name in list_methods() for mixup in MIXUPS]
HEADS: dict[str, dict[str, Any]] = {"mocov2, normalised head": {"norm": True}}
DISTRIBUTED = [*CASES, *((name, "none") for name in OPTIONS if "," in name)]


def method_of(case: str) -> str:
    return case.partition(",")[0]


def head(name: str) -> dict[str, Any]:
    """The method's own projector but for its sizes."""
    own = method_table(method_of(name))["projector"]
    kept = {key: own[key] for key in ("layers", "norm", "standardize") if key in own}
    return kept | HEADS.get(name, {})


def build(name: str, mixup: str, coefficients: str = "batch") -> nn.Module:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=(4, 6, 8, 10), in_channels=1)
    projector = Projector(backbone.out_features, width=10, out_features=DIMENSIONS, **head(name))
    options = {**OPTIONS.get(name, {}), "mixup": mixup, "coefficients": coefficients}
    name = method_of(name)
    return create_method(name, backbone, projector, classes=CLASSES, **options).double().train()


def images(step: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    view_a = torch.randn((BATCH, 1, 16, 16), dtype=torch.float64, generator=generator)
    view_a[: BATCH // 2] += 1  # one process's own statistics say little of the whole
    noise = torch.randn(view_a.shape, dtype=torch.float64, generator=generator)
    return view_a, view_a + 0.5 * noise, torch.randint(CLASSES, (BATCH,), generator=generator)


def draw(method: Any, name: str, step: int, labels: Tensor) -> Any:
    """A rank's draw; in one process that of all ranks, whose permutation is block-diagonal."""
    generator, share = np.random.default_rng(step), BATCH // RANKS
    own = labels[rank() * share : (rank() + 1) * share]
    given = {"labels": own} if learns_from_labels(method_of(name)) else {}
    drawn = method.draw(share, generator, **given)
    if world_size() > 1:
        return drawn
    if isinstance(drawn, Mix):
        blocks = [drawn.permutation, torch.from_numpy(generator.permutation(share))]
        shifted = torch.cat([number * share + block for number, block in enumerate(blocks)])
        drawn = dataclasses.replace(drawn, permutation=shifted)
    return dataclasses.replace(drawn, labels=labels) if given else drawn


def trained(name: str, mixup: str, rows: slice = slice(None), length: int = STEPS) -> Results:
    """The first steps of a run of ``length`` steps."""
    method = build(name, mixup)
    module: nn.Module = method
    if world_size() > 1:
        synchronise(method)
        module = DistributedDataParallel(method, broadcast_buffers=False)
    learned = [parameter for parameter in method.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(learned, lr=0.02, momentum=0.9)
    losses = []
    for step in range(STEPS):
        view_a, view_b, labels = images(step)
        drawn = draw(method, name, step, labels)
        terms = module(view_a[rows], view_b[rows], *(() if drawn is None else (drawn,)))
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()
        method.after_step((step + 1) / length)  # type: ignore[operator]
        losses.append(mean_over_ranks(terms["loss"]))
    return {"losses": torch.stack(losses), "state": dict(method.state_dict())}


def on_rank() -> Results:
    half = BATCH // RANKS
    rows = slice(rank() * half, (rank() + 1) * half)
    return {f"{name} {mixup}": trained(name, mixup, rows) for name, mixup in DISTRIBUTED}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return on_two_ranks(on_rank, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("name", "mixup"), DISTRIBUTED)
def test_two_processes_learn_what_one_learns(results: list[Results], name: str, mixup: str) -> None:
    expected = trained(name, mixup)
    begun = build(name, mixup).state_dict()
    moved = sum(
        float((value - begun[key]).norm())
        for key, value in expected["state"].items()
        if value.is_floating_point()
    )
    assert moved > 1e-2, "something was learned"
    for found in results:
        case = found[f"{name} {mixup}"]
        torch.testing.assert_close(case["losses"], expected["losses"], rtol=1e-9, atol=1e-11)
        assert case["state"].keys() == expected["state"].keys()
        for key, value in expected["state"].items():
            torch.testing.assert_close(case["state"][key], value, rtol=1e-8, atol=1e-10, msg=key)


@pytest.mark.parametrize("name", [*list_methods(), *(name for name in OPTIONS if "," in name)])
def test_a_method_does_the_same_in_a_longer_run_unless_it_says_otherwise(name: str) -> None:
    short, long = (trained(name, "none", length=steps) for steps in (STEPS, 100 * STEPS))
    alike = all(torch.equal(value, long["state"][key]) for key, value in short["state"].items())
    says_otherwise = bool(build(name, "none").goes_by_length)
    depends = name in ("byol", "swav, a queue that waits")
    assert (alike, says_otherwise) == (not depends, depends)


@pytest.mark.parametrize(("name", "mixup"), [*CASES, ("dle, turned", "manifold")])
def test_both_views_in_one_pass_give_the_same(name: str, mixup: str) -> None:
    apart, joint = build(name, mixup), build(name, mixup)
    assert can_keep_halves_apart(joint)
    joint.joint = True  # type: ignore[assignment]
    view_a, view_b, labels = images(0)
    losses = []
    for method in (apart, joint):
        drawn = draw(method, name, 0, labels)
        torch.manual_seed(0)
        terms = method(view_a, view_b, *(() if drawn is None else (drawn,)))
        losses.append(terms["loss"])
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mixup", MIXUPS)
@pytest.mark.parametrize("coefficients", ["batch", "sample"])
@pytest.mark.parametrize(
    "name", [name for name in list_methods() if isinstance(build(name, "none"), PairMethod)]
)
def test_in_parts_the_loss_of_the_whole_batch_is_that_of_one_pass(
    name: str, coefficients: str, mixup: str
) -> None:
    """With no batch statistics inside the network, whose parts would have their own."""

    def make() -> Any:
        method = build(name, mixup, coefficients)
        for part in method.modules():
            for child, layer in part.named_children():
                if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
                    setattr(part, child, nn.Identity())
        return method

    view_a, view_b, _ = images(0)
    whole, parts = make(), make()
    drawn = whole.draw(BATCH, np.random.default_rng(0), 4)
    expected = whole(view_a, view_b, *(() if drawn is None else (drawn,)))
    expected["loss"].backward()
    found = accumulate_whole(parts, view_a, view_b, drawn, [1, 2, 3, 4])
    torch.testing.assert_close(found["loss"], expected["loss"].detach(), rtol=1e-10, atol=1e-12)
    slopes = {key: value.grad for key, value in whole.named_parameters()}
    largest = max(float(slope.norm()) for slope in slopes.values())
    assert largest > 1e-4
    for key, value in parts.named_parameters():
        close = {"rtol": 1e-9, "atol": 1e-11 * largest}
        torch.testing.assert_close(value.grad, slopes[key], **close, msg=key)


# In the loop


def small_parts(name: str, device: str, mixup: str = "manifold") -> Parts:
    options = {f"method__options__{key}": value for key, value in OPTIONS.get(name, {}).items()}
    labelled = learns_from_labels(method_of(name))
    return parts_of(
        device,
        labels=np.arange(256) % CLASSES if labelled else None,
        method__name=method_of(name),
        method__options__mixup=mixup,
        backbone__options__widths=[4, 6, 8, 10] if device == "cpu" else [16, 24, 32, 48],
        projector__width=16,
        projector__out=DIMENSIONS,
        **options,
    )


def step_of(parts: Parts, kind: type[EagerStep], reporter: Reporter | None = None) -> EagerStep:
    optimizer = create_optimizer(parts.method, parts.config.optimizer, parts.fabric.device)
    parts.method.train()
    extra = (reporter or Reporter(),) if kind is CapturedStep else ()
    return kind(parts, optimizer, Meter(), *extra)


def take(step: EagerStep, numbers: range) -> None:
    for number in numbers:
        rows = np.random.default_rng(number).permutation(256)[:32]
        step(number, rows, 0.02)


@pytest.mark.parametrize("name", [*list_methods(), "dle, turned"])
def test_a_checkpoint_holds_all_that_a_method_remembers(name: str, tmp_path: Path) -> None:
    unbroken = step_of(small_parts(name, "cpu"), EagerStep)
    take(unbroken, range(5))

    stopped = step_of(small_parts(name, "cpu"), EagerStep)
    take(stopped, range(3))
    file = tmp_path / "last.safetensors"
    taken = take_checkpoint(stopped.method, stopped.optimizer, stopped.meter, Progress(3))
    assert taken is not None
    take(stopped, range(3, 4))  # while it waits to be written, the training goes on
    taken.write(file)
    resumed = step_of(small_parts(name, "cpu"), EagerStep)
    load_checkpoint(file, resumed.method, resumed.optimizer, resumed.meter)
    take(resumed, range(3, 5))

    assert resumed.meter.means() == unbroken.meter.means()
    found = resumed.method.state_dict()
    for key, value in unbroken.method.state_dict().items():
        assert torch.equal(found[key], value), key


@pytest.mark.parametrize("name", list_methods())
def test_every_method_vouches_for_its_capture(name: str) -> None:
    assert says_capturable(type(build(name, "none")))


def moved_apart(one: nn.Module, other: nn.Module, begun: dict[str, Tensor]) -> dict[str, float]:
    """How far two methods differ in each tensor, as a share of how far the second has come."""
    found, expected = one.state_dict(), other.state_dict()
    shares = {}
    for key, value in expected.items():
        if not value.is_floating_point():
            assert torch.equal(found[key], value), key
            continue
        gap, way = (float((x - value).double().norm()) for x in (found[key], begun[key]))
        shares[key] = gap / max(way, 1e-3 * float(value.double().norm()), 1e-6)
    return shares


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "mixup"), [*CASES, ("dle, turned", "manifold")])
def test_captured_steps_learn_what_plain_ones_learn(name: str, mixup: str) -> None:
    captured, plain = (small_parts(name, "cuda", mixup) for _ in range(2))
    begun = {key: value.clone() for key, value in plain.method.state_dict().items()}
    recorder = Recorder()
    steps = step_of(captured, CapturedStep, recorder), step_of(plain, EagerStep)
    means = [train(step) for step in steps]
    assert recorder.notes == [], "nothing fell back"
    assert means[0]["loss"] == pytest.approx(means[1]["loss"], rel=0.02, abs=1e-3)
    apart = moved_apart(captured.method, plain.method, begun)
    worst = sorted(apart, key=lambda key: -apart[key])[:3]
    assert np.median(list(apart.values())) < 0.02, {key: apart[key] for key in worst}
    assert max(apart.values()) < 0.3, {key: apart[key] for key in worst}


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["mocov2", "byol", "swav", "baseline++", "shuffled-dbn", "w-mse", "dle, turned"]
)
def test_compiled_captured_steps_learn_what_plain_ones_learn(name: str) -> None:
    compiled, plain = (small_parts(name, "cuda") for _ in range(2))
    compiled.config = dataclasses.replace(
        compiled.config, engine=dataclasses.replace(compiled.config.engine, compile="on")
    )
    recorder = Recorder()
    compile_if_worthwhile(compiled, 0, recorder)
    steps = step_of(compiled, CapturedStep, recorder), step_of(plain, EagerStep)
    means = [train(step) for step in steps]
    assert len(recorder.notes) == 1, "nothing fell back"
    assert compiled.programs
    assert means[0]["loss"] == pytest.approx(means[1]["loss"], rel=0.05, abs=1e-2)


def test_a_target_that_does_not_follow_is_noticed() -> None:
    """The measure by which captured steps are judged sees what it is there to see."""
    followed, left = (step_of(small_parts("byol", "cpu"), EagerStep) for _ in range(2))
    begun = {key: value.clone() for key, value in followed.method.state_dict().items()}
    for step in (followed, left):
        take(step, range(4))
    with torch.no_grad():
        for key, value in left.method.state_dict().items():
            if key.startswith("target_backbone.") and value.is_floating_point():
                value.copy_(begun[key])
    assert max(moved_apart(left.method, followed.method, begun).values()) > 0.9
