"""Batch statistics of two processes equal those of one process with both their batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenshot.collective import rank
from eigenshot.errors import UserError
from eigenshot.networks import Projector, Standardize, create_backbone
from eigenshot.networks.synchronised import SynchronisedBatchNorm, synchronise
from tests.test_collective import Results, on_two_ranks

CHANNELS = 5
# The layer, what it is made with, and the shape of each process's block.
CASES: dict[str, tuple[type[nn.Module], dict[str, Any], tuple[int, ...]]] = {
    "maps": (nn.BatchNorm2d, {}, (4, CHANNELS, 3, 2)),
    "vectors": (nn.BatchNorm1d, {}, (6, CHANNELS)),
    "sequences": (nn.BatchNorm1d, {"eps": 1e-3}, (4, CHANNELS, 7)),
    "one sample a process": (nn.BatchNorm1d, {}, (1, CHANNELS)),
    "a plain mean": (nn.BatchNorm2d, {"momentum": None}, (4, CHANNELS, 3, 2)),
    "not affine": (nn.BatchNorm2d, {"affine": False}, (4, CHANNELS, 3, 2)),
    "not tracked": (nn.BatchNorm2d, {"track_running_stats": False}, (4, CHANNELS, 3, 2)),
    "nothing": (
        nn.BatchNorm1d,
        {"affine": False, "track_running_stats": False},
        (6, CHANNELS),
    ),
    "standardised": (Standardize, {}, (6, CHANNELS)),
    "standardised, one sample a process": (Standardize, {}, (1, CHANNELS)),
}

TRACKED = [case for case in CASES if CASES[case][1].get("track_running_stats", True)]


def layer(case: str) -> nn.Module:
    kind, options, _ = CASES[case]
    made = kind(CHANNELS, **options).double()
    with torch.no_grad():
        for number, parameter in enumerate(made.parameters(), 1):
            parameter.copy_(torch.linspace(0.5, 1 + number, CHANNELS))
    return made


def batches(case: str) -> list[list[Tensor]]:
    """Two batches of two blocks, one block a process, of different mean and spread."""
    generator = torch.Generator().manual_seed(0)
    shape = CASES[case][2]
    return [
        [
            spread * torch.randn(shape, dtype=torch.float64, generator=generator) + spread
            for spread in (1.0, 3.0)
        ]
        for _ in range(2)
    ]


def outcome(made: nn.Module, inputs: list[Tensor]) -> Results:
    """Outputs and gradients of a forward pass a batch and of one backward pass through both."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    outputs = [made(x) for x in inputs]
    sum(y.pow(3).sum() for y in outputs).backward()
    evaluated = made.eval()(inputs[0])
    return {
        "outputs": [y.detach() for y in outputs],
        "gradients": [x.grad for x in inputs],
        "evaluated": evaluated.detach(),
        "parameters": {key: value.grad for key, value in made.named_parameters()},
        "buffers": dict(made.named_buffers()),
    }


def on_rank(device: str) -> Results:
    found: Results = {}
    for case in CASES:
        inputs = [blocks[rank()].to(device) for blocks in batches(case)]
        found[case] = outcome(synchronise(layer(case).to(device)), inputs)
    maps = [blocks[rank()].to(device) for blocks in batches("maps")]
    found["alone"] = outcome(layer("maps").to(device), maps)
    made = synchronise(layer("maps").float().to(device))
    laid_out = maps[0].float().contiguous(memory_format=torch.channels_last)
    output = made(laid_out)
    found["keeps its layout"] = output.is_contiguous(memory_format=torch.channels_last)
    found["half precision"] = made(laid_out.bfloat16()).cpu()
    found["refusals"] = [
        refusal(SynchronisedBatchNorm(CHANNELS).to(device), maps[0][:0]),
        refusal(Standardize(CHANNELS).to(device), maps[0][:0, :, 0, 0]),
    ]
    return found


def refusal(made: nn.Module, x: Tensor) -> str:
    try:
        made(x)
    except UserError as error:
        return str(error)
    return "none"


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> list[Results]:
    return on_two_ranks(on_rank, tmp_path_factory.mktemp("ranks"), request.param)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-10, atol=1e-11)


class TestTwoProcesses:
    @pytest.mark.parametrize("case", CASES)
    def test_equal_one_process_with_both_blocks(self, results: list[Results], case: str) -> None:
        expected = outcome(layer(case), [torch.cat(blocks) for blocks in batches(case)])
        ranks = [found[case] for found in results]
        for number in range(2):
            for kind in ("outputs", "gradients"):
                together = torch.cat([found[kind][number].cpu() for found in ranks])
                close(together, expected[kind][number])
        for key, gradient in expected["parameters"].items():
            close(sum(found["parameters"][key].cpu() for found in ranks), gradient)
        for found in ranks:
            assert list(found["buffers"]) == list(expected["buffers"])
            for key, buffer in expected["buffers"].items():
                close(found["buffers"][key], buffer)
        for key in expected["buffers"]:
            assert torch.equal(*(found["buffers"][key].cpu() for found in ranks)), key

    @pytest.mark.parametrize("case", TRACKED)
    def test_eval_mode_uses_the_running_statistics(self, results: list[Results], case: str) -> None:
        expected = outcome(layer(case), [torch.cat(blocks) for blocks in batches(case)])
        close(
            torch.cat([found[case]["evaluated"].cpu() for found in results]), expected["evaluated"]
        )

    def test_left_alone_the_processes_differ(self, results: list[Results]) -> None:
        expected = outcome(layer("maps"), [torch.cat(blocks) for blocks in batches("maps")])
        together = torch.cat([found["alone"]["outputs"][0].cpu() for found in results])
        assert (together - expected["outputs"][0]).abs().max() > 0.5
        means = [found["alone"]["buffers"]["running_mean"].cpu() for found in results]
        assert (means[0] - means[1]).abs().max() > 0.1

    def test_layout_and_precision_are_those_of_the_input(self, results: list[Results]) -> None:
        whole = torch.cat(batches("maps")[0])
        output = torch.cat([found["half precision"] for found in results])
        assert output.dtype == torch.bfloat16
        expected = layer("maps")(whole.bfloat16().double())
        torch.testing.assert_close(output.double(), expected, rtol=1e-2, atol=1e-2)
        assert all(found["keeps its layout"] for found in results)

    def test_empty_blocks_are_refused(self, results: list[Results]) -> None:
        for found in results:
            normalised, standardised = found["refusals"]
            assert "cannot normalise a training batch with 0 values a channel" in normalised
            assert "cannot standardise a training batch of 0" in standardised


class OwnBatchNorm(nn.BatchNorm2d):
    """A layer with a way of its own, as a user may bring it."""


class TestSynchronise:
    def test_a_single_process_is_left_as_it_is(self) -> None:
        network = nn.Sequential(nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5))
        assert synchronise(network) is network
        assert type(network[1]) is nn.BatchNorm2d

    def test_layers_keep_their_identity_weights_names_and_hooks(self) -> None:
        backbone = create_backbone("resnet12", widths=(4, 6, 8, 10))
        network = nn.ModuleDict({"backbone": backbone, "projector": Projector(10, width=12)})
        before = network.state_dict(keep_vars=True)
        modules = dict(network.named_modules())
        network.eval()
        calls: list[str] = []
        norm = next(part for part in network.modules() if isinstance(part, nn.BatchNorm2d))
        norm.register_forward_hook(lambda *_: calls.append("called"))

        assert synchronise(network, always=True) is network
        after = network.state_dict(keep_vars=True)
        assert list(after) == list(before)
        assert all(after[key] is before[key] for key in before)
        assert all(modules[name] is part for name, part in network.named_modules())
        kinds = [type(part) for part in network.modules()]
        assert kinds.count(SynchronisedBatchNorm) == 16 + 2  # four a block, two in the projector
        assert nn.BatchNorm1d not in kinds
        assert nn.BatchNorm2d not in kinds
        assert not any(part.training for part in network.modules())
        backbone(torch.randn(2, 3, 16, 16))
        assert calls == ["called"]

    def test_a_layer_by_itself_and_a_layer_used_twice(self) -> None:
        norm = nn.BatchNorm1d(4)
        assert synchronise(norm, always=True) is norm
        assert type(norm) is SynchronisedBatchNorm
        shared = nn.BatchNorm1d(4)
        twice = nn.Sequential(shared, nn.ReLU(), shared)
        synchronise(twice, always=True)
        assert twice[0] is twice[2]
        assert type(twice[0]) is SynchronisedBatchNorm

    @pytest.mark.parametrize(
        "other", [nn.InstanceNorm2d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4), OwnBatchNorm(4)]
    )
    def test_other_layers_are_left_alone(self, other: nn.Module) -> None:
        kind = type(other)
        assert type(synchronise(nn.Sequential(other), always=True)[0]) is kind  # type: ignore[index]

    def test_in_a_single_process_the_numbers_are_those_of_batch_norm(self) -> None:
        inputs = [torch.cat(blocks) for blocks in batches("maps")]
        plain = outcome(layer("maps"), inputs)
        found = outcome(synchronise(layer("maps"), always=True), inputs)
        for kind in ("outputs", "gradients"):
            assert all(map(torch.equal, found[kind], plain[kind]))
        assert all(
            torch.equal(found["buffers"][key], plain["buffers"][key]) for key in plain["buffers"]
        )

    def test_weights_pass_to_and_from_batch_norm(self, tmp_path: Path) -> None:
        made = synchronise(layer("maps"), always=True)
        outcome(made, [torch.cat(blocks) for blocks in batches("maps")])
        torch.save(made.state_dict(), tmp_path / "weights.pt")
        plain = nn.BatchNorm2d(CHANNELS).double()
        plain.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
        x = batches("maps")[0][0]
        assert torch.equal(plain.eval()(x), made.eval()(x))
        made.load_state_dict(plain.state_dict())

    @pytest.mark.parametrize("shape", [(4,), (4, 6), (4, 1, 3, 3)])
    def test_other_shapes_are_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(UserError, match=r"expected \(batch, 5, …\), found \(4"):
            SynchronisedBatchNorm(5)(torch.zeros(shape))
