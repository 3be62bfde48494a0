"""BYOL: the equations of its paper, the target network, and what mixing makes of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from eigenshot.configfile import method_table
from eigenshot.errors import UserError
from eigenshot.methods.byol import Byol, regression_loss
from tests.methods.tiny import mix_at, networks, views


def tiny_method(**options: object) -> Byol:
    method = Byol(*networks(), predictor_width=10, **options).double()  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # a target unlike the online network
        for parameter in method.target_backbone.parameters():
            noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            parameter.add_(0.3 * noise)
    return method


def squared_distance(prediction: Tensor, target: Tensor) -> float:
    """Equation 2, for one image."""
    first, second = prediction.detach().numpy(), target.detach().numpy()
    gap = first / np.sqrt((first**2).sum()) - second / np.sqrt((second**2).sum())
    return float((gap**2).sum())


def test_the_loss_is_the_sum_of_both_views_squared_distances() -> None:
    method = tiny_method()
    view_a, view_b = views()
    expected = 0.0
    for online, other in ((view_a, view_b), (view_b, view_a)):
        predictions = method.predictor(method.embed(online))
        targets = method.target_projector(method.target_backbone(other))
        expected += sum(map(squared_distance, predictions, targets)) / 6
    assert float(method(view_a, view_b)["loss"]) == pytest.approx(expected, rel=1e-12)


def test_a_mixed_view_predicts_the_mixture_of_targets_and_the_other_term_stays() -> None:
    method = tiny_method(mixup="manifold")
    view_a, view_b = views()
    mix = mix_at(2)
    z_a, z_b = method.embed_pair(view_a, view_b, mix)
    predicted_b, predicted_a = method.predictor(z_a), method.predictor(z_b)
    target_a, target_b = method.embed_target(view_a), method.embed_target(view_b)
    expected = 0.0
    for i in range(6):
        expected += squared_distance(predicted_b[i], target_b[i])
        expected += 0.3 * squared_distance(predicted_a[i], target_a[i])
        expected += 0.7 * squared_distance(predicted_a[i], target_a[i - 1])
    assert float(method(view_a, view_b, mix)["loss"]) == pytest.approx(expected / 6, rel=1e-12)


@pytest.mark.parametrize("layer", range(5))
def test_a_coefficient_of_one_is_no_mixing(layer: int) -> None:
    method = tiny_method()
    mixed = method(*views(), mix_at(layer, coefficient=1.0))["loss"]
    torch.testing.assert_close(mixed, method(*views())["loss"])


def test_the_loss_is_zero_for_one_direction_and_four_for_opposite_ones() -> None:
    z = torch.randn(5, 3, dtype=torch.float64)
    lengths = torch.rand(5, 1, dtype=torch.float64) + 0.1
    assert float(regression_loss(z, lengths * z)) == pytest.approx(0, abs=1e-12)
    assert float(regression_loss(z, -lengths * z)) == pytest.approx(4)


def test_no_gradient_reaches_the_target() -> None:
    method = tiny_method()
    method(*views())["loss"].backward()
    for name, parameter in method.named_parameters():
        assert (parameter.grad is None) == name.startswith("target_"), name
        if parameter.grad is not None:
            assert parameter.grad.abs().sum() > 0, name


def test_the_target_follows_with_the_momentum_of_the_papers_schedule() -> None:
    method = tiny_method(momentum=0.9)
    own = next(method.backbone.parameters()).detach().clone()
    before = next(method.target_backbone.parameters()).detach().clone()
    method.after_step(0.25)
    momentum = 1 - 0.1 * (math.cos(math.pi / 4) + 1) / 2
    after = next(method.target_backbone.parameters())
    torch.testing.assert_close(after, momentum * before + (1 - momentum) * own)
    kept = after.detach().clone()
    method.after_step(1.0)
    assert torch.equal(after, kept)


def test_the_predictor_has_no_target() -> None:
    names = [name for name, _ in tiny_method().named_parameters() if "predictor" in name]
    assert names
    assert all(name.startswith("predictor.") for name in names)


def test_the_spread_tells_a_collapsed_network() -> None:
    method = tiny_method()
    assert 0.2 < float(method(*views())["spread"]) < 1.5
    last = method.projector.layers[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(1)
    assert float(method(*views())["spread"]) == pytest.approx(0, abs=1e-9)


def test_half_precision_ends_before_the_loss() -> None:
    method = tiny_method().float()
    view_a, view_b = (view.float() for view in views())
    with torch.autocast("cpu", torch.bfloat16):
        terms = method(view_a, view_b, mix_at(1))
    assert {term.dtype for term in terms.values()} == {torch.float32}


def test_the_recipe_says_what_the_class_has_as_defaults() -> None:
    options = method_table("byol")["method"]["options"]
    given, plain = Byol(*networks(), **options), Byol(*networks())
    for name in ("momentum", "schedule", "mixup"):
        assert getattr(given, name) == getattr(plain, name) == options[name]
    assert plain.predictor.layers[0].out_features == options["predictor_width"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"predictor_width": 0}, "predictor_width must be at least 1, found 0"),
        ({"momentum": 1.5}, "momentum must lie between 0 and 1"),
        ({"alpha": 0.0}, "alpha must be positive"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Byol(*networks(), **options)  # type: ignore[arg-type]


def test_a_projector_that_does_not_say_its_length_is_refused() -> None:
    backbone, projector = networks()
    with pytest.raises(UserError, match="'out_features'; Sequential does not"):
        Byol(backbone, torch.nn.Sequential(projector))
