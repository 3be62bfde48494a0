"""Two views in one pass give what two passes give, and groups what passes of their own do."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

from eigenshot.methods import create_method
from eigenshot.methods.mixing import Mix
from eigenshot.networks import Projector, create_backbone
from eigenshot.networks.apart import (
    can_keep_halves_apart,
    groups_apart,
    halves_apart,
    make_ready,
)
from eigenshot.networks.synchronised import synchronise


def method() -> nn.Module:
    torch.manual_seed(0)
    backbone = create_backbone("resnet12", widths=(4, 6, 8, 10))
    return create_method("dle", backbone, Projector(10, width=24), gamma=0.1).double().train()


def outcome(module: nn.Module, mix: Mix | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Loss terms, and gradients and statistics by name."""
    generator = torch.Generator().manual_seed(3)
    views = [torch.randn(12, 3, 16, 16, dtype=torch.float64, generator=generator) for _ in range(2)]
    terms = module(*views, mix)
    terms["loss"].backward()
    state = {f"grad {name}": p.grad for name, p in module.named_parameters() if p.grad is not None}
    return terms, {**state, **dict(module.named_buffers())}


@pytest.mark.parametrize("layer", [None, 0, 2, 4])
def test_one_pass_equals_two(layer: int | None) -> None:
    mix = None
    if layer is not None:
        mix = Mix(layer, torch.tensor(0.3, dtype=torch.float64), torch.randperm(12))
    separate, joint = method(), method()
    assert can_keep_halves_apart(joint)
    joint.joint = True
    expected, wanted = outcome(separate, mix)
    terms, found = outcome(joint, mix)
    for name, value in expected.items():
        torch.testing.assert_close(terms[name], value, rtol=1e-10, atol=0)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-10)


def test_names_weights_and_evaluation_stay_as_they_were() -> None:
    plain = method()
    ready = copy.deepcopy(plain)
    assert can_keep_halves_apart(ready)
    assert can_keep_halves_apart(ready), "a second time too"
    assert list(ready.state_dict()) == list(plain.state_dict())
    images = torch.randn(5, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ready.embed(images), plain.embed(images), rtol=0, atol=0)
        with halves_apart(ready):
            mixed_up = ready.embed(images[:4])
        assert not torch.allclose(mixed_up, plain.embed(images[:4]))
        ready.eval()
        expected = ready.embed(images)
        with halves_apart(ready):
            torch.testing.assert_close(ready.embed(images), expected)


def test_layers_with_ways_of_their_own_are_left_alone() -> None:
    class Own(nn.BatchNorm2d):
        pass

    for module in (
        nn.Sequential(nn.BatchNorm2d(3), Own(3)),
        synchronise(nn.Sequential(nn.BatchNorm2d(3)), always=True),
    ):
        before = [type(part) for part in module]
        assert not can_keep_halves_apart(module)
        assert [type(part) for part in module] == before
    assert can_keep_halves_apart(nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3)))


def test_a_layer_of_unknown_origin_may_look_at_the_whole_batch() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(dim=0)

    network = nn.Sequential(nn.BatchNorm1d(3), Centred())
    assert not can_keep_halves_apart(network)
    assert type(network[0]) is nn.BatchNorm1d
    traced = torch.fx.symbolic_trace(network)
    assert not can_keep_halves_apart(nn.Sequential(traced)), "torch's class, someone's code"


class TestGroups:
    @pytest.mark.parametrize("halves", [False, True])
    @pytest.mark.parametrize("momentum", [0.1, None])
    def test_each_is_normalised_by_itself_and_the_running_statistics_follow_their_mean(
        self, momentum: float | None, halves: bool
    ) -> None:
        layer = nn.BatchNorm2d(3, momentum=momentum).double()
        plain = copy.deepcopy(layer)
        make_ready(layer)
        x = torch.randn(24, 3, 4, 4, dtype=torch.float64, generator=torch.manual_seed(0)) * 3 + 1
        with groups_apart(4, layer), halves_apart(layer) if halves else nullcontext():
            found = layer(x)
        views = x.chunk(2) if halves else [x]
        parts = [group for view in views for group in view.chunk(4)]
        torch.testing.assert_close(found, torch.cat([copy.deepcopy(plain)(part) for part in parts]))
        expected_mean, expected_variance = plain.running_mean, plain.running_var
        assert expected_mean is not None
        assert expected_variance is not None
        for number, view in enumerate(views, start=1):
            share = momentum or 1 / number
            groups = [group.transpose(0, 1).flatten(1) for group in view.chunk(4)]
            mean = torch.stack([group.mean(1) for group in groups]).mean(0)
            variance = torch.stack([group.var(1) for group in groups]).mean(0)
            expected_mean = (1 - share) * expected_mean + share * mean
            expected_variance = (1 - share) * expected_variance + share * variance
        torch.testing.assert_close(layer.running_mean, expected_mean)
        torch.testing.assert_close(layer.running_var, expected_variance)
        assert layer.num_batches_tracked == len(views)

    def test_the_gradient_is_that_of_the_groups(self) -> None:
        layer = nn.BatchNorm1d(3).double()
        make_ready(layer)
        x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
        with groups_apart(2, layer):
            assert torch.autograd.gradcheck(layer, (x,))

    def test_layers_without_running_statistics_or_weights(self) -> None:
        layer = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
        make_ready(layer)
        x = torch.randn(6, 3)
        with groups_apart(2, layer):
            found = layer(x)
        assert not torch.allclose(found, layer(x)), "outside the block a batch is one again"
        torch.testing.assert_close(found, torch.cat([layer(x[:3]), layer(x[3:])]))

    def test_one_program_serves_them(self) -> None:
        network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        make_ready(network)
        other = copy.deepcopy(network)
        program = torch.compile(network.forward, backend="aot_eager", fullgraph=True)
        x = torch.randn(8, 3, 8, 8)
        with groups_apart(4, network, other):
            torch.testing.assert_close(program(x), other(x))
        torch.testing.assert_close(network.state_dict(), other.state_dict())

    def test_half_precision_is_normalised_in_float32(self) -> None:
        layer = nn.BatchNorm1d(3)
        make_ready(layer)
        x = (torch.randn(64, 3, generator=torch.manual_seed(0)) + 30).half()
        with groups_apart(2, layer), torch.autocast("cpu", torch.bfloat16):
            found = layer(x)
        assert found.dtype == torch.float16
        expected = torch.cat([nn.BatchNorm1d(3)(part.float()) for part in x.chunk(2)])
        torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=2e-3)

    def test_after_an_error_a_batch_is_one_again_also_for_a_layer_in_two_networks(self) -> None:
        shared = nn.BatchNorm1d(3)
        networks = [nn.Sequential(shared), nn.Sequential(shared)]
        make_ready(networks[0])
        with groups_apart(2, *networks), pytest.raises(ValueError, match="2D or 3D"):
            shared(torch.zeros(4))
        with pytest.raises(KeyError), groups_apart(2, *networks), halves_apart(*networks):
            raise KeyError
        assert (shared.groups, shared.halves) == (1, False)

    def test_maps_of_another_depth_are_refused(self) -> None:
        layer = nn.BatchNorm2d(4)
        make_ready(layer)
        with groups_apart(2, layer), pytest.raises(RuntimeError):
            layer(torch.zeros(8, 1, 3, 3))
