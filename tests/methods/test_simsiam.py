"""SimSiam: the equations of its paper, the stop-gradient, and what mixing makes of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eigenshot.config import OptimizerConfig
from eigenshot.configfile import method_table
from eigenshot.errors import UserError
from eigenshot.methods.heads import spread, unit
from eigenshot.methods.simsiam import SimSiam, negative_cosine
from eigenshot.training.engine import create_optimizer
from tests.methods.tiny import mix_at, networks, views


def tiny_method(**options: object) -> SimSiam:
    return SimSiam(
        *networks(standardize=True),
        predictor_width=5,
        **options,  # type: ignore[arg-type]
    ).double()


def cosine(first: Tensor, second: Tensor) -> float:
    first, second = first.detach(), second.detach()
    return float(first @ second / (first @ first).sqrt() / (second @ second).sqrt())


def test_the_loss_is_the_mean_negative_cosine_of_both_views() -> None:
    method = tiny_method()
    view_a, view_b = views()
    z_a, z_b = method.embed(view_a), method.embed(view_b)
    p_a, p_b = method.predictor(z_a), method.predictor(z_b)
    expected = -sum(cosine(p_a[i], z_b[i]) / 2 + cosine(p_b[i], z_a[i]) / 2 for i in range(6)) / 6
    assert float(method(view_a, view_b)["loss"]) == pytest.approx(expected, rel=1e-12)


def test_in_both_terms_mixing_weighs_an_image_and_its_partner() -> None:
    method = tiny_method(mixup="manifold")
    view_a, view_b = views()
    mix = mix_at(1)
    z_a, z_b = method.embed_pair(view_a, view_b, mix)
    p_a, p_b = method.predictor(z_a), method.predictor(z_b)
    expected = 0.0
    for i in range(6):
        for weight, j in ((0.3, i), (0.7, i - 1)):
            expected -= weight * (cosine(p_a[j], z_b[i]) + cosine(p_b[i], z_a[j])) / 2
    assert float(method(view_a, view_b, mix)["loss"]) == pytest.approx(expected / 6, rel=1e-12)


@pytest.mark.parametrize("layer", range(5))
def test_a_coefficient_of_one_is_no_mixing(layer: int) -> None:
    method = tiny_method()
    mixed = method(*views(), mix_at(layer, coefficient=1.0))["loss"]
    torch.testing.assert_close(mixed, method(*views())["loss"])


@pytest.mark.parametrize("coefficient", [1.0, 0.3])
def test_gradients_are_those_with_embeddings_as_constants(coefficient: float) -> None:
    """Equation 4: what stands for the other view is a constant."""
    view_a, view_b = views()
    mix = mix_at(2, coefficient=coefficient)
    method, other = tiny_method(), tiny_method()
    method(view_a, view_b, mix)["loss"].backward()
    with torch.no_grad():
        fixed_a, fixed_b = (unit(z) for z in other.embed_pair(view_a, view_b, mix))
    z_a, z_b = other.embed_pair(view_a, view_b, mix)
    p_a, p_b = unit(other.predictor(z_a)), unit(other.predictor(z_b))
    loss = (negative_cosine(mix(p_a), fixed_b) + negative_cosine(p_b, mix(fixed_a))) / 2
    loss.backward()
    pairs = zip(method.named_parameters(), other.parameters(), strict=True)
    for (name, found), expected in pairs:
        torch.testing.assert_close(found.grad, expected.grad, msg=name)


def test_unit_vectors_of_one_direction_have_the_least_loss() -> None:
    z = unit(torch.randn(4, 3, dtype=torch.float64))
    assert float(negative_cosine(z, z)) == pytest.approx(-1)
    assert float(negative_cosine(z, -z)) == pytest.approx(1)


def test_the_spread_is_one_all_around_the_sphere_and_zero_at_a_point() -> None:
    """Section 4.1: a Gaussian's directions have a deviation of 1/√d in each dimension."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(20_000, 8, dtype=torch.float64, generator=generator)
    assert float(spread(unit(z))) == pytest.approx(1, abs=0.01)
    assert float(spread(unit(z[:1].expand(7, -1)))) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("constant", [True, False])
def test_the_predictors_rate_stays_if_asked(constant: bool) -> None:
    method = tiny_method(constant_predictor_rate=constant)
    groups = create_optimizer(method, OptimizerConfig(), torch.device("cpu")).param_groups
    assert len(groups) == 1 + constant
    if constant:
        assert groups[1]["constant"]
        assert set(groups[1]["params"]) == set(method.predictor.parameters())
    assert sum(len(group["params"]) for group in groups) == len(list(method.parameters()))


def test_half_precision_ends_before_the_loss() -> None:
    method = tiny_method().float()
    view_a, view_b = (view.float() for view in views())
    with torch.autocast("cpu", torch.bfloat16):
        terms = method(view_a, view_b, mix_at(1))
    assert {term.dtype for term in terms.values()} == {torch.float32}


def test_the_recipe_says_what_the_class_has_as_defaults() -> None:
    options = method_table("simsiam")["method"]["options"]
    given, plain = SimSiam(*networks(), **options), SimSiam(*networks())
    for name in ("constant_predictor_rate", "mixup"):
        assert getattr(given, name) == getattr(plain, name) == options[name]
    assert plain.predictor.layers[0].out_features == options["predictor_width"]


def test_a_predictor_without_units_is_refused() -> None:
    with pytest.raises(UserError, match="predictor_width must be at least 1, found -3"):
        SimSiam(*networks(), predictor_width=-3)
