"""Shuffled-DBN: dimensions white within random groups, and views aligned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from eigenshot.configfile import method_table
from eigenshot.errors import UserError
from eigenshot.methods.mixing import Mix
from eigenshot.methods.shuffled_dbn import (
    Shuffle,
    ShuffledDBN,
    ShuffledMix,
    automatic_group,
    decorrelated,
)
from eigenshot.networks import Projector, create_backbone
from eigenshot.spectral import laplacian_eigenmaps
from tests.methods.tiny import mix_at, views

DIMENSIONS = 12


def tiny_method(**options: float | str) -> ShuffledDBN:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
    projector = Projector(8, layers=2, width=12, out_features=DIMENSIONS, standardize=False)
    options = {"group_size": 3, "ridge": 1e-9, "scale": 1.0, **options}
    return ShuffledDBN(backbone, projector, **options).double()  # type: ignore[arg-type]


def normal(samples: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(samples, DIMENSIONS, dtype=torch.float64, generator=generator)


def orders() -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.stack([torch.randperm(DIMENSIONS, generator=generator) for _ in range(2)])


def whitened(z: Tensor, order: Tensor, group_size: int) -> np.ndarray:
    """ZCA of each group by NumPy's eigendecomposition."""
    x = z.detach().numpy()
    x = x - x.mean(axis=0)
    outcome = np.empty_like(x)
    for start in range(0, x.shape[1], group_size):
        group = order[start : start + group_size].numpy()
        values, vectors = np.linalg.eigh(x[:, group].T @ x[:, group] / len(x))
        outcome[:, group] = x[:, group] @ vectors @ np.diag(values**-0.5) @ vectors.T
    return outcome


class TestDecorrelated:
    @pytest.mark.parametrize("group_size", [1, 3, 12])
    def test_it_is_zca_of_each_group(self, group_size: int) -> None:
        z = 2 + normal(40).cumsum(dim=1)
        found = decorrelated(z, orders()[0], group_size, 1e-9)
        expected = whitened(z, orders()[0], group_size)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)

    def test_dimensions_of_one_group_are_uncorrelated_and_others_need_not_be(self) -> None:
        z = normal(40).cumsum(dim=1)
        order = orders()[0]
        white = decorrelated(z, order, 3, 1e-9)[:, order]
        covariance = (white.T @ white / 40).numpy()
        groups = np.kron(np.eye(4), np.ones((3, 3))).astype(bool)
        np.testing.assert_allclose(covariance[groups], np.eye(12)[groups], atol=1e-6)
        assert np.abs(covariance[~groups]).max() > 0.3

    def test_groups_of_one_are_batch_normalisation(self) -> None:
        z = 2 + 3 * normal(40)
        normalised = nn.BatchNorm1d(DIMENSIONS, eps=1e-12, affine=False).double()(z)
        torch.testing.assert_close(
            decorrelated(z, orders()[0], 1, 1e-12), normalised, rtol=1e-8, atol=1e-8
        )

    def test_half_precision_is_whitened_in_float32(self) -> None:
        z = normal(40).bfloat16()
        white = decorrelated(z, orders()[0], 3, 1e-5)
        assert white.dtype == torch.float32
        torch.testing.assert_close(white, decorrelated(z.float(), orders()[0], 3, 1e-5))

    def test_too_few_samples_are_refused(self) -> None:
        with pytest.raises(UserError, match="found a batch of 3 and groups of 3 dimensions; raise"):
            decorrelated(torch.zeros(3, DIMENSIONS), orders()[0], 3, 1e-5)


class TestMethod:
    def test_forward_is_the_squared_distance_of_white_views(self) -> None:
        method, drawn = tiny_method(), Shuffle(orders())
        view_a, view_b = views(20)
        white_a, white_b = (
            whitened(method.embed(view), order, 3)
            for view, order in zip((view_a, view_b), orders(), strict=True)
        )
        expected = ((white_a - white_b) ** 2).sum(axis=1).mean()
        assert method(view_a, view_b, drawn)["loss"].item() == pytest.approx(expected, rel=1e-4)

    @pytest.mark.parametrize(("batch", "size"), [(20, 6), (12, 6), (8, 4), (40, 12)])
    def test_by_default_a_group_is_half_the_batch(self, batch: int, size: int) -> None:
        drawn = Shuffle(orders())
        found = tiny_method(group_size=0)(*views(batch), drawn)
        torch.testing.assert_close(found, tiny_method(group_size=size)(*views(batch), drawn))

    def test_without_orders_neighbouring_dimensions_are_a_group(self) -> None:
        method = tiny_method()
        plain = torch.arange(DIMENSIONS).expand(2, -1)
        torch.testing.assert_close(method(*views()), method(*views(), Shuffle(plain)))
        mix = mix_at(2)
        ordered = ShuffledMix(mix.layer, mix.coefficient, mix.permutation, plain)
        torch.testing.assert_close(method(*views(), mix), method(*views(), ordered))

    def test_a_mixed_view_is_compared_with_the_same_mixture_of_white_embeddings(self) -> None:
        method, mix = tiny_method(), mix_at(2, 20)
        view_a, view_b = views(20)
        hidden = method.backbone.forward_stages(view_b, 0, 2)
        hidden = 0.3 * hidden + 0.7 * hidden.roll(1, 0)
        features = method.backbone.pool(method.backbone.forward_stages(hidden, 2))
        white_a = whitened(method.embed(view_a), orders()[0], 3)
        white_b = whitened(method.projector(features), orders()[1], 3)
        target = 0.3 * white_a + 0.7 * np.roll(white_a, 1, axis=0)
        drawn = ShuffledMix(mix.layer, mix.coefficient, mix.permutation, orders())
        assert method(view_a, view_b, drawn)["loss"].item() == pytest.approx(
            ((target - white_b) ** 2).sum(axis=1).mean(), rel=1e-4
        )

    def test_a_coefficient_of_one_is_no_mixing(self) -> None:
        method, mix = tiny_method(), mix_at(2, coefficient=1.0)
        drawn = ShuffledMix(mix.layer, mix.coefficient, mix.permutation, orders())
        torch.testing.assert_close(method(*views(), drawn), method(*views(), Shuffle(orders())))

    def test_gradients_flow_through_both_branches(self) -> None:
        view_a, view_b = (view.requires_grad_() for view in views())
        tiny_method()(view_a, view_b, mix_at(2))["loss"].backward()
        for view in (view_a, view_b):
            assert view.grad is not None
            assert view.grad.abs().sum() > 0

    def test_the_objective_of_rows_is_the_forward_pass(self) -> None:
        method = tiny_method(mixup="manifold")
        for drawn in (method.draw(6, np.random.default_rng(0)), Shuffle(orders())):
            terms = method.objective(*method.represent(*views(), drawn), drawn)
            torch.testing.assert_close(terms, method(*views(), drawn))

    def test_defaults_are_those_of_the_recipe(self) -> None:
        table = method_table("shuffled-dbn")
        assert table["method"]["name"] == "shuffled-dbn"
        projector = Projector(64, layers=1, out_features=table["projector"]["out"])
        method = ShuffledDBN(create_backbone("conv4", in_channels=1), projector)
        names = ("group_size", "ridge", "mixup")
        own = {name: getattr(method, name) for name in names}
        assert table["method"]["options"] == {**own, "scale": 0.0}
        assert method.scale == 1 / table["projector"]["out"]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"group_size": -1}, "group_size must be positive, or 0 for a default, found -1"),
            ({"scale": -1.0}, r"scale must be positive, or 0 for 1/K, found -1\.0"),
            ({"group_size": 5}, "group_size must divide the 12 dimensions .* found 5"),
            ({"ridge": 0.0}, r"ridge must be positive, found 0\.0"),
        ],
    )
    def test_bad_options_are_named(self, options: dict[str, float], message: str) -> None:
        with pytest.raises(UserError, match=message):
            tiny_method(**options)

    def test_a_projector_of_unknown_length_is_refused(self) -> None:
        backbone = create_backbone("conv4", in_channels=1)
        with pytest.raises(UserError, match="out_features"):
            ShuffledDBN(backbone, nn.Identity())


class TestAutomaticGroup:
    @pytest.mark.parametrize(
        ("dimensions", "limit", "expected"),
        [(512, 64, 64), (512, 100, 64), (30, 12, 10), (6, 12, 6)],
    )
    def test_it_is_the_largest_divisor(self, dimensions: int, limit: int, expected: int) -> None:
        assert automatic_group(dimensions, limit) == expected

    @pytest.mark.parametrize(("dimensions", "group"), [(509, 1), (514, 2)])
    def test_one_far_below_half_the_batch_is_refused(self, dimensions: int, group: int) -> None:
        with pytest.raises(
            UserError, match=rf"to 64, half .* the {dimensions} .* of {group} decor"
        ):
            automatic_group(dimensions, 64)


class TestDraw:
    def test_each_view_and_each_step_has_an_order_of_its_own(self) -> None:
        generator = np.random.default_rng(0)
        method = tiny_method()
        drawn = [method.draw(6, generator) for _ in range(3)]
        assert all(isinstance(choice, Shuffle) for choice in drawn)
        found = torch.cat([choice.orders for choice in drawn])
        assert (found.sort(dim=1).values == torch.arange(DIMENSIONS)).all()
        assert len(found.unique(dim=0)) == 6

    def test_orders_come_first_so_that_the_number_of_ranks_does_not_change_them(self) -> None:
        mixed = tiny_method(mixup="manifold").draw(6, np.random.default_rng(0))
        plain = tiny_method().draw(6, np.random.default_rng(0))
        assert isinstance(mixed, Mix)
        assert torch.equal(mixed.orders, plain.orders)

    def test_a_part_has_the_orders_of_the_batch(self) -> None:
        for mixup in ("manifold", "none"):
            drawn = tiny_method(mixup=mixup).draw(12, np.random.default_rng(0), blocks=3)
            moved = drawn.to(torch.device("cpu")).part(2, 3)
            assert type(moved) is type(drawn)
            assert torch.equal(moved.orders, drawn.orders)
            if isinstance(moved, ShuffledMix):
                assert sorted(moved.permutation.tolist()) == list(range(4))


def test_on_a_graph_its_least_value_is_had_by_laplacian_eigenmaps() -> None:
    """What docs/methods.md says: with one group it is the trace under the constraint itself."""
    generator = np.random.default_rng(0)
    nodes, dimensions = 14, 3
    weights = np.triu(generator.integers(0, 4, (nodes, nodes)), 1)
    weights += weights.T
    # Every edge as often as its weight says, in both directions: the batch is the graph.
    first, second = np.nonzero(weights)
    count = weights[first, second]
    first, second = np.repeat(first, count), np.repeat(second, count)

    def loss(table: np.ndarray) -> float:
        z_a, z_b = (torch.from_numpy(table[ends]) for ends in (first, second))
        order = torch.arange(dimensions)
        white_a, white_b = (decorrelated(z, order, dimensions, 1e-12) for z in (z_a, z_b))
        return (white_a - white_b).square().sum(dim=1).mean().item()

    maps = laplacian_eigenmaps(weights.astype(float), dimensions)
    least = 2 * maps.eigenvalues.sum()
    assert loss(maps.embedding) == pytest.approx(least)
    for _ in range(20):
        assert loss(generator.normal(size=(nodes, dimensions))) > least + 1e-3
        assert loss(maps.embedding @ generator.normal(size=(dimensions, dimensions))) == (
            pytest.approx(least, rel=1e-5)
        )
