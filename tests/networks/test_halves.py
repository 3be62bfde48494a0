"""Two views in one pass give what two passes give."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from eigenshot.methods import create_method
from eigenshot.methods.mixing import Mix
from eigenshot.networks import Projector, create_backbone
from eigenshot.networks.halves import can_keep_halves_apart, halves_apart
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
