"""Small views: each stands in for the second view, and leaves no trace in the statistics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eigenshot.methods.dle import DeepLaplacianEigenmapsMethod, decorrelation_loss, trace_loss
from eigenshot.methods.mixing import Mix
from eigenshot.methods.pairs import PairMethod
from eigenshot.methods.shuffled_dbn import ShuffledDBN
from tests.methods import test_pairs
from tests.methods.tiny import mix_at, mix_with_a_fixed_point, networks, views

COUNT = 3


def dle(**options: float) -> DeepLaplacianEigenmapsMethod:
    return DeepLaplacianEigenmapsMethod(*networks(standardize=True), gamma=0.1, **options).double()


def shuffled() -> PairMethod:
    return ShuffledDBN(*networks(), group_size=3).double()


BUILDERS: dict[str, Callable[[], PairMethod]] = {
    "dle": dle,
    "shuffled-dbn": shuffled,
    **test_pairs.BUILDERS,
}
every_method = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)


def small_views(batch: int = 6) -> Tensor:
    """``(batch, COUNT, 1, 16, 16)``, as small as the network takes."""
    pairs = [views(batch, seed) for seed in (5, 6)]
    return torch.stack([*pairs[0], pairs[1][0]], dim=1)


@pytest.mark.parametrize("coefficient", [0.3, [0.1, 0.9, 0.5, 0.3, 1.0, 0.0]])
def test_rows_of_an_image_are_mixed_with_those_of_its_partner(
    coefficient: float | list[float],
) -> None:
    mix, local = mix_with_a_fixed_point(2, coefficient), small_views()
    rows = mix.of_each(COUNT)(local.flatten(0, 1)).unflatten(0, (6, COUNT))
    for place in range(COUNT):
        assert torch.equal(rows[:, place], mix(local[:, place]))
    assert mix.of_each(COUNT).layer == 2


@pytest.mark.parametrize("layer", [None, 0, 2, 4])
def test_the_loss_is_that_of_all_small_views_and_the_second(layer: int | None) -> None:
    """Eq. 12 with several neighbours of an image, each standardised with its kind; Eq. 9 once."""
    method = dle()
    mix = None if layer is None else mix_at(layer)
    (view_a, view_b), local = views(), small_views()
    found = method(view_a, view_b, mix, local=local)

    other = dle()
    z_a, z_b = other.embed_pair(view_a, view_b, mix)
    # By hand: mixed one small view at a time, normalised all together.
    hidden = [local[:, place] for place in range(COUNT)]
    for number, stage in enumerate(other.backbone.stages):
        if number == layer:
            hidden = [mix(x) for x in hidden]  # type: ignore[misc]
        hidden = list(stage(torch.cat(hidden)).chunk(COUNT))
    if layer == 4:
        hidden = [mix(x) for x in hidden]  # type: ignore[misc]
    small = other.projector(other.backbone.pool(torch.cat(hidden))).chunk(COUNT)
    target = z_a if mix is None else mix(z_a)
    trace = sum(trace_loss(target, z) for z in (z_b, *small)) / (1 + COUNT)
    torch.testing.assert_close(found["trace"], trace)
    torch.testing.assert_close(found["decorrelation"], decorrelation_loss(z_a))
    torch.testing.assert_close(found["loss"], trace + 0.1 * decorrelation_loss(z_a))


@every_method
@pytest.mark.parametrize("layer", [None, 1])
def test_a_small_view_that_is_the_second_one_changes_nothing(
    build: Callable[[], PairMethod], layer: int | None
) -> None:
    mix: Mix | None = None if layer is None else mix_at(layer)
    view_a, view_b = views()
    alone = build()(view_a, view_b, mix)
    with_itself = build()(view_a, view_b, mix, local=view_b[:, None])
    assert alone.keys() == with_itself.keys()
    for name, term in alone.items():
        torch.testing.assert_close(with_itself[name], term)


@every_method
@pytest.mark.parametrize("layer", [None, 0, 3])
def test_the_objective_of_rows_is_the_forward_pass(
    build: Callable[[], PairMethod], layer: int | None
) -> None:
    mix = None if layer is None else mix_with_a_fixed_point(layer)
    forward, split = build(), build()
    expected = forward(*views(), mix, local=small_views())
    rows_a, rows_b, local = split.represent(*views(), mix, local=small_views())
    assert local.shape == (6, COUNT, rows_a.shape[1])
    terms = split.objective(rows_a, rows_b, mix, local=local)
    for name, term in expected.items():
        torch.testing.assert_close(terms[name], term)


@every_method
def test_running_statistics_follow_the_two_views_only(build: Callable[[], PairMethod]) -> None:
    with_small, without = build(), build()
    with_small(*views(), local=small_views())
    without(*views())
    for name, buffer in without.named_buffers():
        assert torch.equal(with_small.get_buffer(name), buffer), name
    rows = with_small.represent(*views(), local=small_views())
    with_small.objective(*rows[:2], local=rows[2])
    without.objective(*without.represent(*views()))
    for name, buffer in without.named_buffers():
        assert torch.equal(with_small.get_buffer(name), buffer), name


def test_gradients_flow_through_small_views() -> None:
    local = small_views().requires_grad_()
    dle()(*views(), mix_at(2), local=local)["trace"].backward()
    assert local.grad is not None
    assert all(float(slope.norm()) > 0 for slope in local.grad.flatten(0, 1))
