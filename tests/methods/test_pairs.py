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
from tests.methods.tiny import mix_at, views

BUILDERS: dict[str, Callable[[], PairMethod]] = {
    "barlow-twins": test_barlow_twins.tiny_method,
    "simclr": test_simclr.tiny_method,
    "spectral-contrastive": test_spectral_contrastive.tiny_method,
    "vicreg": test_vicreg.tiny_method,
    "w-mse": test_wmse.tiny_method,
}
every_method = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)


@every_method
def test_a_coefficient_of_one_is_no_mixing(build: Callable[[], PairMethod]) -> None:
    method = build()
    torch.testing.assert_close(method(*views(), mix_at(2, coefficient=1.0)), method(*views()))


@every_method
def test_gradients_flow_through_both_branches(build: Callable[[], PairMethod]) -> None:
    view_a, view_b = (view.requires_grad_() for view in views())
    build()(view_a, view_b, mix_at(2))["loss"].backward()
    for view in (view_a, view_b):
        assert view.grad is not None
        assert view.grad.abs().sum() > 0


@every_method
def test_the_objective_of_rows_is_the_forward_pass(build: Callable[[], PairMethod]) -> None:
    method, mix = build(), mix_at(1)
    terms = method.objective(*method.represent(*views(), mix), mix)
    torch.testing.assert_close(terms, method(*views(), mix))
