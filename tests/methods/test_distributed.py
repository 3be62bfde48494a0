"""Two processes with half the batch each learn what one process with the whole batch learns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from eigenshot.collective import mean_over_ranks, rank, world_size
from eigenshot.methods import DeepLaplacianEigenmapsMethod, create_method
from eigenshot.methods.mixing import Mix
from eigenshot.networks import Projector, create_backbone
from eigenshot.networks.synchronised import synchronise
from tests.test_collective import Results, on_two_ranks

DIMENSIONS = 12
RANKS = 2


@dataclass(frozen=True)
class Case:
    """A run of ``steps`` steps on ``batch`` images a step, ``batch / 2`` of them a process."""

    batch: int
    options: dict[str, Any] = field(default_factory=dict)
    backbone: str = "conv4"
    steps: int = 1
    synchronised: bool = True


CASES = {
    # The Gram matrix where the global batch is below K, else the covariance.
    "batch below K": Case(8, backbone="resnet12"),
    "batch above K, a process's share below": Case(16),
    "both above K": Case(26),
    "both branches, batch below K": Case(8, {"decorrelate": "both"}),
    "both branches, batch above K": Case(16, {"decorrelate": "both"}, "resnet12"),
    "trace alone": Case(8, {"decorrelate": "none"}),
    "unit-variance target, sum": Case(8, {"target": "unit-variance", "reduction": "sum"}),
    "mixed at the input": Case(8, {"mixup": "input", "layers": ()}),
    "mixed at the end": Case(16, {"layers": (4,)}),
    "not mixed": Case(16, {"mixup": "none"}),
    "steps": Case(16, {"decorrelate": "both"}, steps=4),
    "statistics of each process": Case(8, synchronised=False),
}
EXACT = [name for name in CASES if CASES[name].synchronised]


def build(case: Case) -> DeepLaplacianEigenmapsMethod:
    torch.manual_seed(0)
    backbone = create_backbone(case.backbone, widths=(4, 6, 8, 10), in_channels=1)
    projector = Projector(backbone.out_features, layers=2, width=10, out_features=DIMENSIONS)
    # A weight with which both terms have their say in the gradient.
    options = {"k_gamma": 1.0, **case.options}
    method = create_method("dle", backbone, projector, **options).double()
    assert isinstance(method, DeepLaplacianEigenmapsMethod)
    return method


def views(case: Case, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    shape = (case.batch, 1, 16, 16)
    view_a = torch.randn(shape, dtype=torch.float64, generator=generator)
    # Images of one process are brighter: its own statistics say little of the whole.
    view_a[: case.batch // 2] += 1
    noise = torch.randn(shape, dtype=torch.float64, generator=generator)
    return view_a, view_a + 0.5 * noise


def train(case: Case, module: nn.Module, method: nn.Module, rows: slice, device: str) -> Results:
    """Train for the case's steps; ``module`` is the method or what wraps it."""
    optimizer = torch.optim.SGD(method.parameters(), lr=0.05, momentum=0.9)
    for step in range(case.steps):
        view_a, view_b = (view[rows].to(device) for view in views(case, step))
        mix = draw(method, case, step)
        terms = module(view_a, view_b, mix if mix is None else mix.to(torch.device(device)))
        optimizer.zero_grad()
        terms["loss"].backward()
        optimizer.step()
    return {
        "own terms": {key: value.detach().cpu() for key, value in terms.items()},
        "terms": {key: mean_over_ranks(value).cpu() for key, value in terms.items()},
        "gradients": {key: gradient(value).cpu() for key, value in method.named_parameters()},
        "parameters": {key: value.detach().cpu() for key, value in method.named_parameters()},
        "buffers": {key: value.cpu() for key, value in method.named_buffers()},
    }


def gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def draw(method: nn.Module, case: Case, step: int) -> Mix | None:
    """The rank's mix; in a single process the mix of all ranks, a block-diagonal permutation."""
    assert isinstance(method, DeepLaplacianEigenmapsMethod)
    generator = np.random.default_rng(step)
    mix = method.draw(case.batch // RANKS, generator)
    if world_size() > 1 or mix is None:
        return mix
    others = [generator.permutation(case.batch // RANKS) for _ in range(1, RANKS)]
    blocks = [mix.permutation, *map(torch.from_numpy, others)]
    return Mix(
        mix.layer,
        mix.coefficient,
        torch.cat([number * case.batch // RANKS + block for number, block in enumerate(blocks)]),
    )


def on_rank(device: str) -> Results:
    found: Results = {}
    for name, case in CASES.items():
        method = build(case).to(device)
        if case.synchronised:
            synchronise(method)
        module = DistributedDataParallel(method, broadcast_buffers=False)
        half = case.batch // RANKS
        rows = slice(rank() * half, (rank() + 1) * half)
        found[name] = train(case, module, method, rows, device)
    drawn = build(CASES["steps"]).draw(6, np.random.default_rng(0))
    assert drawn is not None
    found["draw"] = (drawn.layer, float(drawn.coefficient), drawn.permutation)
    return found


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Results]:
    return on_two_ranks(on_rank, tmp_path_factory.mktemp("ranks"), request.param)


def whole(case: Case) -> Results:
    method = build(case)
    return train(case, method, method, slice(None), "cpu")


def difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest distance of two tensors of one name, as a share of the expected one's length."""
    assert list(found) == list(expected)
    return max(
        float((found[key] - value).double().norm() / value.double().norm())
        for key, value in expected.items()
    )


@pytest.mark.parametrize("name", EXACT)
def test_terms_gradients_and_statistics_are_those_of_the_whole_batch(
    results: list[Results], name: str
) -> None:
    expected = whole(CASES[name])
    assert all(float(slope.norm()) > 1e-6 for slope in expected["gradients"].values())
    for found in results:
        for kind in ("terms", "gradients", "parameters", "buffers"):
            assert difference(found[name][kind], expected[kind]) < 1e-9, kind


@pytest.mark.parametrize("name", EXACT)
def test_decorrelation_is_global_on_every_rank_and_the_trace_a_share(
    results: list[Results], name: str
) -> None:
    expected = whole(CASES[name])["terms"]
    own = [found[name]["own terms"] for found in results]
    for terms in own:
        torch.testing.assert_close(terms["decorrelation"], expected["decorrelation"])
    assert own[0]["trace"] != own[1]["trace"]
    torch.testing.assert_close((own[0]["trace"] + own[1]["trace"]) / 2, expected["trace"])


def test_with_the_statistics_of_each_process_the_gradient_is_another(
    results: list[Results],
) -> None:
    name = "statistics of each process"
    expected = whole(CASES[name])
    for found in results:
        assert difference(found[name]["gradients"], expected["gradients"]) > 0.1
        assert difference(found[name]["buffers"], expected["buffers"]) > 0.1


def test_ranks_draw_one_layer_and_coefficient_and_permutations_of_their_own(
    results: list[Results],
) -> None:
    (layer_a, coefficient_a, permutation_a), (layer_b, coefficient_b, permutation_b) = (
        found["draw"] for found in results
    )
    assert (layer_a, coefficient_a) == (layer_b, coefficient_b)
    assert permutation_a.tolist() != permutation_b.tolist()
    assert sorted(permutation_a.tolist()) == sorted(permutation_b.tolist()) == list(range(6))
    # The first rank draws what a single process draws, in the order that resumed runs rely on.
    alone = build(CASES["steps"]).draw(6, generator := np.random.default_rng(0))
    assert alone is not None
    assert (alone.layer, float(alone.coefficient)) == (layer_a, coefficient_a)
    assert torch.equal(alone.permutation, permutation_a)
    assert generator.permutation(6).tolist() == permutation_b.tolist()
    generator = np.random.default_rng(0)
    assert float(alone.coefficient) == generator.beta(1.0, 1.0)
    assert alone.layer == generator.choice(range(5))
    assert alone.permutation.tolist() == generator.permutation(6).tolist()
