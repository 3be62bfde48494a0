"""What holds for every loss that is a function of two views' embeddings alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from eigenshot.methods.pairs import PairMethod
from tests.methods import (
    test_barlow_twins,
    test_simclr,
    test_spectral_contrastive,
    test_vicreg,
    test_wmse,
)
from tests.methods.tiny import mix_at, mix_with_a_fixed_point, views

BUILDERS: dict[str, Callable[[], PairMethod]] = {
    "barlow-twins": test_barlow_twins.tiny_method,
    "simclr": test_simclr.tiny_method,
    "spectral-contrastive": test_spectral_contrastive.tiny_method,
    "spectral-contrastive, not standardised": lambda: test_spectral_contrastive.tiny_method(False),
    "vicreg": test_vicreg.tiny_method,
    "w-mse": test_wmse.tiny_method,
}
every_method = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)


@every_method
@pytest.mark.parametrize("layer", range(5))
def test_a_coefficient_of_one_is_no_mixing(build: Callable[[], PairMethod], layer: int) -> None:
    method = build()
    for mix in (mix_at(layer, coefficient=1.0), mix_with_a_fixed_point(layer, 1.0)):
        torch.testing.assert_close(method(*views(), mix), method(*views()))


@every_method
def test_gradients_flow_through_both_branches(build: Callable[[], PairMethod]) -> None:
    view_a, view_b = (view.requires_grad_() for view in views())
    build()(view_a, view_b, mix_at(2))["loss"].backward()
    for view in (view_a, view_b):
        assert view.grad is not None
        assert view.grad.abs().sum() > 0


@every_method
@pytest.mark.parametrize("layer", [None, 0, 1, 3])
def test_the_objective_of_rows_is_the_forward_pass(
    build: Callable[[], PairMethod], layer: int | None
) -> None:
    mix = None if layer is None else mix_with_a_fixed_point(layer)
    forward, split = build(), build()
    expected = forward(*views(), mix)
    terms = split.objective(*split.represent(*views(), mix), mix)
    assert {name: term.item() for name, term in terms.items()} == {
        name: term.item() for name, term in expected.items()
    }
