"""A batch in parts: the loss of the whole exactly where asked, the mean of the parts' otherwise."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from eigenshot.collective import average_gradients, mean_over_ranks, rank, world_size
from eigenshot.configfile import load_config
from eigenshot.errors import UserError
from eigenshot.methods import DeepLaplacianEigenmapsMethod, Method
from eigenshot.methods.dle import decorrelation_loss
from eigenshot.methods.mixing import Mix
from eigenshot.networks import Backbone, Projector, as_backbone
from eigenshot.networks.apart import can_keep_halves_apart
from eigenshot.networks.synchronised import synchronise
from eigenshot.randomness import derive_seed
from eigenshot.training.accumulation import accumulate_parts, accumulate_whole, check_method
from eigenshot.training.engine import create_optimizer, create_step
from eigenshot.training.loop import Interrupted
from eigenshot.training.meter import Meter
from eigenshot.training.pretrain import pretrain
from eigenshot.training.step import EagerStep
from tests.test_collective import Results, on_two_ranks
from tests.training.test_captured import distance, parts_of
from tests.training.test_captured import run as run_steps
from tests.training.test_captured import train as train_steps
from tests.training.test_pretrain import Recorder

Outcome = dict[str, dict[str, Tensor]]


class Stages(nn.Module):
    """Two stages, with batch normalisation and dropout if asked."""

    def __init__(self, *, norm: bool = False, dropout: float = 0.0, in_channels: int = 1) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        for inputs, outputs in ((in_channels, 4), (4, 6)):
            layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, stride=2), nn.GELU()]
            layers[1:1] = [nn.BatchNorm2d(outputs)] if norm else []
            self.stages.append(nn.Sequential(*layers, nn.Dropout(dropout)))


def build(
    dimensions: int = 5, *, norm: bool = False, dropout: float = 0.0, **options: Any
) -> DeepLaplacianEigenmapsMethod:
    torch.manual_seed(0)
    backbone = as_backbone(Stages(norm=norm, dropout=dropout), in_channels=1, image_size=12)
    projector = Projector(6, layers=2 if norm else 1, width=dimensions)
    # A weight with which both terms have their say in the gradient.
    return DeepLaplacianEigenmapsMethod(backbone, projector, **{"k_gamma": 1.0, **options}).double()


def views(batch: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    view = torch.randn(batch, 1, 12, 12, dtype=torch.float64, generator=generator)
    # Images of the first half are brighter: the statistics of a part say little of the whole.
    view[: batch // 2] += 1
    return view, view + 0.5 * torch.randn(view.shape, dtype=torch.float64, generator=generator)


def mix_at(layer: int, batch: int, count: int) -> Mix:
    """Partners within each of ``count`` parts."""
    size, generator = batch // count, torch.Generator().manual_seed(2)
    blocks = [start + torch.randperm(size, generator=generator) for start in range(0, batch, size)]
    return Mix(layer, torch.tensor(0.3, dtype=torch.float64), torch.cat(blocks))


def outcome(module: nn.Module, terms: dict[str, Tensor]) -> Outcome:
    return {
        "terms": {name: term.detach() for name, term in terms.items()},
        "gradients": {
            name: parameter.grad.clone()
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        },
        "buffers": {name: buffer.clone() for name, buffer in module.named_buffers()},
    }


def at_once(method: nn.Module, view_a: Tensor, view_b: Tensor, mix: Mix | None) -> Outcome:
    """The single pass over the whole batch."""
    terms = method(view_a, view_b, mix)
    terms["loss"].backward()
    return outcome(method, terms)


def assert_same(found: Outcome, expected: Outcome, tolerance: float = 1e-10) -> None:
    for kind in expected:
        assert found[kind].keys() == expected[kind].keys()
        for name, value in expected[kind].items():
            torch.testing.assert_close(
                found[kind][name],
                value,
                rtol=tolerance,
                atol=tolerance / 100,
                msg=f"{kind}: {name}",
            )


def with_all_parts_in_one_graph(
    method: Any, pair: tuple[Tensor, Tensor], mix: Mix, seeds: Sequence[int], autocast: Any = None
) -> Outcome:
    """What the two passes stand for: every part's rows kept with their graph."""
    rows = []
    for index, seed in enumerate(seeds):
        chunks = [view.chunk(len(seeds))[index] for view in pair]
        torch.manual_seed(seed)
        with autocast() if autocast else torch.enable_grad():
            rows.append(method.represent(*chunks, mix.part(index, len(seeds))))
    terms = method.objective(*map(torch.cat, zip(*rows, strict=True)), mix)
    terms["loss"].backward()
    return outcome(method, terms)


class TestWhole:
    @pytest.mark.parametrize("target", ["paper", "unit-variance"])
    @pytest.mark.parametrize("layer", [None, 0, 1, 2])
    @pytest.mark.parametrize(("batch", "dimensions"), [(8, 12), (24, 5)])
    @pytest.mark.parametrize("joint", [False, True])
    def test_it_is_the_single_pass_over_the_whole_batch(
        self, batch: int, dimensions: int, layer: int | None, target: str, joint: bool
    ) -> None:
        """Without batch statistics inside the network; with fewer images than K and with more."""
        method = build(dimensions, target=target, decorrelate="both" if joint else "one")
        mix = None if layer is None else mix_at(layer, batch, 4)
        expected = at_once(copy.deepcopy(method), *views(batch), mix)
        assert all(float(slope.norm()) > 1e-6 for slope in expected["gradients"].values())
        method.joint = joint and can_keep_halves_apart(method)
        terms = accumulate_whole(method, *views(batch), mix, [1, 2, 3, 4])
        assert_same(outcome(method, terms), expected)
        assert not any(term.requires_grad for term in terms.values())

    def test_the_number_of_parts_does_not_matter(self) -> None:
        mix = mix_at(1, 24, 12)
        for count in (2, 3, 12):
            method = build()
            terms = accumulate_whole(method, *views(24), mix, list(range(count)))
            assert_same(outcome(method, terms), at_once(build(), *views(24), mix))

    def test_gradients_are_added_to_those_that_are_there(self) -> None:
        method, pair = build(), views(8)
        accumulate_whole(method, *pair, None, [1, 2])
        once = outcome(method, {})["gradients"]
        accumulate_whole(method, *pair, None, [1, 2])
        twice = outcome(method, {})["gradients"]
        for name, slope in once.items():
            torch.testing.assert_close(twice[name], 2 * slope)

    def test_with_batch_normalisation_the_loss_is_that_of_the_rows_together(self) -> None:
        method, (view_a, view_b), mix = build(norm=True), views(24), mix_at(1, 24, 3)
        other = copy.deepcopy(method)
        with torch.no_grad():
            rows = [
                other.represent(a, b, mix.part(index, 3))[0]
                for index, (a, b) in enumerate(zip(view_a.chunk(3), view_b.chunk(3), strict=True))
            ]
        z = torch.cat(rows)
        z = (z - z.mean(0)) / z.std(0, unbiased=False)
        terms = accumulate_whole(method, view_a, view_b, mix, [1, 2, 3])
        torch.testing.assert_close(
            terms["decorrelation"], decorrelation_loss(z), rtol=1e-10, atol=0
        )
        plain = accumulate_parts(build(norm=True), view_a, view_b, mix, [1, 2, 3])
        assert not torch.isclose(terms["decorrelation"], plain["decorrelation"], rtol=0.1)

    @pytest.mark.parametrize("joint", [False, True])
    @pytest.mark.parametrize("norm", [False, True])
    @pytest.mark.parametrize("rotation", [0.0, 0.5])
    def test_dropout_is_the_same_in_both_passes(
        self, norm: bool, joint: bool, rotation: float
    ) -> None:
        mix, seeds = mix_at(1, 24, 3), [5, 6, 7]
        method, other = (build(norm=norm, dropout=0.5, rotation=rotation) for _ in range(2))
        method.joint = other.joint = joint and all(map(can_keep_halves_apart, (method, other)))
        terms = accumulate_whole(method, *views(24), mix, seeds)
        expected = with_all_parts_in_one_graph(other, views(24), mix, seeds)
        assert_same(outcome(method, terms), expected)
        redrawn = accumulate_whole(method, *views(24), mix, [8, 9, 10])
        assert redrawn["loss"] != terms["loss"]

    @pytest.mark.parametrize("rotation", [0.0, 0.5])
    def test_under_autocast_every_weight_has_its_gradient(self, rotation: float) -> None:
        """Weights that autocast keeps from a pass without gradients have none in the next."""
        autocast = partial(torch.autocast, "cpu", torch.bfloat16)
        method, other = (build(norm=True, rotation=rotation).float() for _ in range(2))
        view_a, view_b = (view.float() for view in views(16))
        mix, seeds = mix_at(1, 16, 2), [5, 6]
        terms = accumulate_whole(method, view_a, view_b, mix, seeds, autocast=autocast)
        found = outcome(method, terms)
        assert found["gradients"].keys() == dict(method.named_parameters()).keys()
        expected = with_all_parts_in_one_graph(other, (view_a, view_b), mix, seeds, autocast)
        assert_same(found, expected, 1e-4)  # sums of float32 in another order

    def test_a_loss_with_weights_of_its_own_and_a_branch_without_gradient(self) -> None:
        def predicting() -> Predicting:
            torch.manual_seed(0)
            backbone = as_backbone(Stages(), in_channels=1, image_size=12)
            return Predicting(backbone, Projector(6, layers=1, width=5)).double()

        expected = at_once(predicting(), *views(8), None)
        assert "predictor.weight" in expected["gradients"]
        method = predicting()
        check_method(method, micro_batches=4, whole_batch_loss=True)
        terms = accumulate_whole(method, *views(8), None, [1, 2, 3, 4])
        assert_same(outcome(method, terms), expected)


class Predicting(Method):
    """One view's rows are predicted from the other's, which have no gradient."""

    def __init__(self, backbone: Backbone, projector: nn.Module) -> None:
        super().__init__(backbone, projector)
        self.predictor = nn.Linear(5, 5)

    def objective(self, rows_a: Tensor, rows_b: Tensor, drawn: object = None) -> dict[str, Tensor]:
        predicted = self.predictor(self.standardised(rows_a))
        return {"loss": (predicted - self.standardised(rows_b.detach())).square().mean()}

    def forward(self, view_a: Tensor, view_b: Tensor, drawn: object = None) -> dict[str, Tensor]:
        return self.objective(*self.represent(view_a, view_b, drawn), drawn)


class TestParts:
    @pytest.mark.parametrize("norm", [False, True])
    def test_it_is_the_mean_of_the_parts(self, norm: bool) -> None:
        method, mix = build(norm=norm), mix_at(1, 24, 3)
        other = copy.deepcopy(method)
        pairs = zip(*(view.chunk(3) for view in views(24)), strict=True)
        each = [other(*pair, mix.part(index, 3)) for index, pair in enumerate(pairs)]
        mean = {name: sum(terms[name] for terms in each) / 3 for name in each[0]}
        mean["loss"].backward()
        terms = accumulate_parts(method, *views(24), mix, [1, 2, 3])
        assert_same(outcome(method, terms), outcome(other, mean))

    def test_each_part_draws_from_a_seed_of_its_own(self) -> None:
        method = build(dropout=0.5, mixup="none")
        pair = tuple(view[:4].repeat(2, 1, 1, 1) for view in views(8))
        losses = [
            float(accumulate_parts(method, *pair, None, seeds)["loss"])
            for seeds in ([1, 1], [1, 2], [2, 2], [1, 2])
        ]
        assert losses[1] == losses[3]
        assert losses[1] == pytest.approx((losses[0] + losses[2]) / 2)
        assert losses[0] != losses[2]


@pytest.mark.parametrize("accumulate", [accumulate_parts, accumulate_whole])
def test_statistics_are_updated_once_a_part_and_the_network_sees_no_more_than_one(
    accumulate: Callable[..., dict[str, Tensor]],
) -> None:
    method, mix = build(norm=True, dropout=0.2), mix_at(2, 12, 3)
    sizes: list[int] = []
    method.backbone.stages[1].register_forward_hook(
        lambda _, inputs, __: sizes.append(len(inputs[0]))
    )
    accumulate(method, *views(12), mix, [1, 2, 3])
    assert set(sizes) == {4}
    other = build(norm=True, dropout=0.2)
    for index, pair in enumerate(zip(*(view.chunk(3) for view in views(12)), strict=True)):
        torch.manual_seed(index + 1)
        other(*pair, mix.part(index, 3))
    found, expected = dict(method.named_buffers()), dict(other.named_buffers())
    normalised = [name for name in expected if "layers.4" not in name]
    last = sorted(set(expected) - set(normalised))
    assert int(found["backbone.stages.0.1.num_batches_tracked"]) == 6  # two views of each part
    for name in normalised if accumulate is accumulate_whole else expected:
        torch.testing.assert_close(found[name], expected[name])
    # The last standardisation sees the two views of the batch, or of each part.
    assert last[0] == "projector.layers.4.batches_seen"
    assert int(found[last[0]]) == (2 if accumulate is accumulate_whole else 6)


def test_a_buffer_that_changes_the_output_is_as_it_was_in_the_first_pass() -> None:
    """Spectral normalisation turns its vectors a little with every training pass."""

    def build_normed() -> DeepLaplacianEigenmapsMethod:
        method = build()
        nn.utils.parametrizations.spectral_norm(method.backbone.stages[0][0])
        return method.double()

    torch.manual_seed(0)
    method, mix = build_normed(), mix_at(2, 8, 2)
    other = copy.deepcopy(method)
    terms = accumulate_whole(method, *views(8), mix, [1, 2])
    expected = with_all_parts_in_one_graph(other, views(8), mix, [1, 2])
    assert_same(outcome(method, terms), expected)


# Several processes


@dataclass(frozen=True)
class Case:
    """Two processes with two parts each, of which each has four images."""

    whole: bool
    norm: bool = False
    mixup: str = "manifold"


CASES = {
    "whole": Case(whole=True),
    "whole, normalised": Case(whole=True, norm=True, mixup="none"),
    "plain, normalised": Case(whole=False, norm=True, mixup="none"),
}


def on_rank() -> Results:
    found: Results = {}
    for name, case in CASES.items():
        method = build(norm=case.norm, mixup=case.mixup)
        synchronise(method)
        module = DistributedDataParallel(method, broadcast_buffers=False)
        pair = [view.chunk(2)[rank()] for view in views(16)]
        mix = method.draw(8, np.random.default_rng(0), blocks=2)
        if case.whole:
            terms = accumulate_whole(method, *pair, mix, [1, 2])
        else:
            terms = accumulate_parts(module, *pair, mix, [1, 2], unsynchronised=module.no_sync)
        found[name] = outcome(method, {key: mean_over_ranks(v) for key, v in terms.items()})
    found["averaged"] = averaged()
    return found


def averaged() -> list[Tensor | None]:
    """Means of gradients of several dtypes and layouts, one of them absent, on rank r from r."""
    own = float(rank() + 1)
    parameters = [
        nn.Parameter(torch.zeros(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)),
        nn.Parameter(torch.zeros(3, dtype=torch.float64)),
        nn.Parameter(torch.zeros(2)),
        nn.Parameter(torch.zeros(())),
    ]
    for place in (0, 1, 3):
        grid = torch.arange(parameters[place].numel(), dtype=parameters[place].dtype)
        slope = own * grid.view(parameters[place].shape) + own
        parameters[place].grad = torch.empty_like(parameters[place]).copy_(slope).detach()
    average_gradients(parameters)
    return [parameter.grad for parameter in parameters]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return on_two_ranks(on_rank, tmp_path_factory.mktemp("ranks"))


class TestTwoProcesses:
    def test_two_parts_on_each_are_four_parts_of_one(self, results: list[Results]) -> None:
        method = build()
        mix = method.draw(16, np.random.default_rng(0), blocks=4)
        terms = accumulate_whole(method, *views(16), mix, [1, 2, 3, 4])
        for found in results:
            assert_same(found["whole"], outcome(method, terms))

    @pytest.mark.parametrize("name", ["whole, normalised", "plain, normalised"])
    def test_a_part_of_all_processes_is_normalised_as_one(
        self, results: list[Results], name: str
    ) -> None:
        method = build(norm=True, mixup="none")
        # Part p of the first process stands beside part p of the second.
        order = torch.arange(16).view(2, 2, 4).transpose(0, 1).reshape(16)
        pair = [view[order] for view in views(16)]
        accumulate = accumulate_whole if CASES[name].whole else accumulate_parts
        expected = outcome(method, accumulate(method, *pair, None, [1, 2]))  # type: ignore[operator]
        for found in results:
            assert_same(found[name], expected)

    def test_gradients_of_any_dtype_and_layout_are_averaged(self, results: list[Results]) -> None:
        for found in results:
            image, vector, absent, scalar = found["averaged"]
            torch.testing.assert_close(image.flatten(), 1.5 * torch.arange(24.0) + 1.5)
            assert image.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(vector, 1.5 * torch.arange(3.0).double() + 1.5)
            assert absent is None
            assert float(scalar) == 1.5


def test_alone_no_gradient_is_touched() -> None:
    parameter = nn.Parameter(torch.zeros(2))
    parameter.grad = slope = torch.ones(2)
    average_gradients([parameter])
    assert world_size() == 1
    assert parameter.grad is slope


# Runs

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 12, 12, 3), dtype=np.uint8)


def settings(**changes: Any) -> Any:
    small = {"training.epochs": 2, "training.batch_size": 16, "projector.width": 8}
    return load_config("folder", {**small, **{k.replace("__", "."): v for k, v in changes.items()}})


def run(folder: Path, *, dropout: float = 0.0, norm: bool = True, **changes: Any) -> nn.Module:
    torch.manual_seed(3)
    backbone = Stages(norm=norm, dropout=dropout, in_channels=3)
    extra = {key: changes.pop(key) for key in ("reporter", "resume") if key in changes}
    return pretrain(
        IMAGES, settings(**changes), folder, backbone=backbone, device="cpu", **extra
    ).encoder.backbone


@pytest.mark.parametrize("whole", [False, True])
def test_a_resumed_run_is_the_unbroken_one(tmp_path: Path, whole: bool) -> None:
    options = {"training__micro_batches": 4, "training__whole_batch_loss": whole, "dropout": 0.3}
    run(tmp_path / "unbroken", **options)
    with pytest.raises(Interrupted):
        run(tmp_path / "parts", **options, reporter=Recorder(stop_at=3))
    run(tmp_path / "parts", **options, resume=True)
    content = [
        (tmp_path / name / "encoder.safetensors").read_bytes() for name in ("unbroken", "parts")
    ]
    assert content[0] == content[1]


def test_with_the_loss_of_the_whole_batch_a_run_learns_what_it_learns_unsplit(
    tmp_path: Path,
) -> None:
    """Where nothing else looks at a part: no batch normalisation, no partner to mix with."""
    options = {"norm": False, "projector__layers": 1, "method__options__mixup": "none"}
    unsplit = run(tmp_path / "unsplit", **options)
    split = {"training__micro_batches": 4, "training__whole_batch_loss": True}
    learned = run(tmp_path / "whole", **options, **split).state_dict()
    other = run(tmp_path / "plain", **options, training__micro_batches=4).state_dict()
    torch.manual_seed(3)
    initial = as_backbone(Stages(in_channels=3), image_size=12).state_dict()
    for name, value in unsplit.state_dict().items():
        moved = float((value - initial[name]).norm())
        assert float((learned[name] - value).norm()) < 1e-3 * moved
        assert float((other[name] - value).norm()) > 1e-2 * moved


@pytest.mark.parametrize("whole", [False, True])
def test_torch_s_generator_has_a_seed_for_each_part_of_a_step(whole: bool) -> None:
    """Pinned: resuming an old run with a new version must draw the same."""
    parts = parts_of("cpu", training__micro_batches=4, training__whole_batch_loss=whole)
    optimizer = create_optimizer(parts.method, parts.config.optimizer, torch.device("cpu"))
    step, seen = EagerStep(parts, optimizer, Meter()), []
    last = parts.encoder.backbone.stages[-1]
    last.register_forward_hook(lambda *_: seen.append(torch.initial_seed()))
    step(7, np.arange(32), 0.1)
    once = [derive_seed(0, "module", 7, part) for part in range(4) for _ in ("a", "b")]
    assert seen == (2 * once if whole else once)


@pytest.mark.gpu
@pytest.mark.parametrize("whole", [False, True])
def test_parts_are_not_captured_and_learn_the_same(whole: bool) -> None:
    options = {"training__micro_batches": 2, "training__whole_batch_loss": whole}
    captured, plain, recorder = parts_of(**options), parts_of(**options), Recorder()
    optimizer = create_optimizer(captured.method, captured.config.optimizer, torch.device("cuda"))
    train_steps(create_step(captured, optimizer, Meter(), recorder))
    assert recorder.notes == [
        "steps run without a graph: a batch goes through the network in parts"
    ]
    run_steps(plain, EagerStep)
    assert distance(captured, plain) < 2e-2


# What is refused


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"training__micro_batches": 0}, "training.micro_batches must be at least 1, found 0"),
        ({"training__micro_batches": 3}, "a batch of 16 does not split into 3 equal parts"),
        ({"training__micro_batches": 16}, "16 equal parts of two or more images; choose a"),
        ({"training__micro_batches": 2.5}, "training.micro_batches"),
        ({"training__whole_batch_loss": "yes"}, "training.whole_batch_loss"),
    ],
)
def test_bad_values_are_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        settings(**changes)


def test_an_automatic_batch_size_is_one_that_splits(tmp_path: Path) -> None:
    run(tmp_path / "run", training__batch_size="auto", training__micro_batches=5)
    settings = (tmp_path / "run" / "config.toml").read_text()
    assert "batch_size = 30" in settings, "the nearest below 32"


@pytest.mark.parametrize("accumulate", [accumulate_parts, accumulate_whole])
def test_a_batch_that_does_not_divide_is_refused(
    accumulate: Callable[..., dict[str, Tensor]],
) -> None:
    with pytest.raises(UserError, match="7 images do not split into 2 equal parts"):
        accumulate(build(), *views(7), None, [1, 2])


@pytest.mark.parametrize("accumulate", [accumulate_parts, accumulate_whole])
def test_parts_too_small_for_every_quarter_turn_to_occur_are_refused(
    accumulate: Callable[..., dict[str, Tensor]],
) -> None:
    method, mix = build(rotation=0.5), mix_at(1, 24, 4)
    with pytest.raises(UserError, match=r"leaves 3 of 6 images.*fewer training.micro_batches"):
        accumulate(method, *views(24), mix, [1, 2, 3, 4])
    assert "rotation" in accumulate(method, *views(24), mix_at(1, 24, 3), [1, 2, 3])


class Contrast(Method):
    """A method of a user's, with a forward and nothing else."""

    def forward(self, view_a: Tensor, view_b: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.embed(view_a) - self.embed(view_b)).square().mean()}


class OldDraw(Contrast):
    def draw(self, batch_size: int, generator: np.random.Generator) -> None:  # type: ignore[override]
        return None


class WholeDraw(Contrast):
    def draw(self, batch_size: int, generator: np.random.Generator, blocks: int = 1) -> Tensor:
        return torch.arange(batch_size)


class OtherForward(DeepLaplacianEigenmapsMethod):
    def forward(self, view_a: Tensor, view_b: Tensor, mix: Mix | None = None) -> dict[str, Tensor]:
        terms = super().forward(view_a, view_b, mix)
        return {**terms, "loss": 2 * terms["loss"]}


class OtherTarget(DeepLaplacianEigenmapsMethod):
    def _target(self, z: Tensor, mix: Mix | None) -> Tensor:
        return z


def made(kind: type[Method]) -> Method:
    return kind(as_backbone(Stages(), in_channels=1, image_size=12), Projector(6, width=4))


class TestMethodsOfUsers:
    @pytest.mark.parametrize("kind", [Contrast, OtherForward])
    def test_a_forward_alone_has_no_loss_of_the_whole(self, kind: type[Method]) -> None:
        method = made(kind)
        check_method(method, micro_batches=1, whole_batch_loss=True)
        check_method(method, micro_batches=2, whole_batch_loss=False)
        with pytest.raises(UserError, match=f"{kind.__name__} has a forward alone; leave it off"):
            check_method(method, micro_batches=2, whole_batch_loss=True)

    def test_a_part_of_the_method_may_be_changed(self) -> None:
        check_method(made(OtherTarget), micro_batches=2, whole_batch_loss=True)

    def test_a_module_that_is_no_method(self) -> None:
        check_method(nn.Identity(), micro_batches=2, whole_batch_loss=False)
        with pytest.raises(UserError, match="Identity has a forward alone"):
            check_method(nn.Identity(), micro_batches=2, whole_batch_loss=True)

    def test_a_draw_without_blocks(self) -> None:
        check_method(made(OldDraw), micro_batches=1, whole_batch_loss=False)
        with pytest.raises(UserError, match="the draw of OldDraw takes no 'blocks'; use training"):
            check_method(made(OldDraw), micro_batches=2, whole_batch_loss=False)

    def test_runs(self, tmp_path: Path) -> None:
        here, parts = "tests.training.test_accumulation", {"training__micro_batches": 2}
        run(tmp_path / "contrast", method__name=f"{here}:Contrast", **parts)
        for name, sentence in (
            ("OldDraw", "takes no 'blocks'"),
            ("WholeDraw", r"what WholeDraw draws, Tensor, has no 'part\(index, count\)'"),
        ):
            with pytest.raises(UserError, match=sentence):
                run(tmp_path / name, method__name=f"{here}:{name}", **parts)
