"""W-MSE: whitening by sub-batches and the distance of unit vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from eigenshot.configfile import method_table
from eigenshot.errors import UserError
from eigenshot.methods.wmse import WMSE, whitened_in_parts
from eigenshot.networks import Projector, create_backbone
from tests.methods.tiny import mix_at, views

DIMENSIONS = 4


def tiny_method(**options: float | str) -> WMSE:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
    projector = Projector(8, layers=2, width=12, out_features=DIMENSIONS, standardize=False)
    options = {"ridge": 1e-10, **options}
    return WMSE(backbone, projector, **options).double()  # type: ignore[arg-type]


def rows(samples: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    square = torch.randn(DIMENSIONS, DIMENSIONS, dtype=torch.float64, generator=generator)
    return 2 + torch.randn(samples, 4, dtype=torch.float64, generator=generator) @ square


def whitened(z: Tensor) -> np.ndarray:
    """Rows times the inverse of NumPy's Cholesky factor of their covariance."""
    x = z.detach().numpy()
    x = x - x.mean(axis=0)
    factor = np.linalg.cholesky(np.cov(x.T))
    return np.stack([np.linalg.solve(factor, row) for row in x])


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """Mean squared distance of rows at unit length."""
    total = 0.0
    for x, y in zip(a, b, strict=True):
        total += ((x / np.linalg.norm(x) - y / np.linalg.norm(y)) ** 2).sum()
    return total / len(a)


class TestSubBatches:
    @pytest.mark.parametrize(("samples", "sub_batch", "sizes"), [
        (24, 8, [8, 8, 8]), (24, 24, [24]), (20, 128, [20]), (19, 8, [10, 9]),
    ])  # fmt: skip
    def test_each_is_white_in_itself(self, samples: int, sub_batch: int, sizes: list[int]) -> None:
        z = rows(samples)
        found = whitened_in_parts(z, sub_batch, 0, 1e-10)
        expected = [whitened(part) for part in z.split(sizes)]
        np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-6, atol=1e-6)

    def test_each_partition_has_other_sub_batches_and_puts_rows_back(self) -> None:
        z = rows(32)
        outcomes = [whitened_in_parts(z, 8, partition, 1e-10) for partition in range(4)]
        for number, outcome in enumerate(outcomes):
            for other in outcomes[:number]:
                assert (outcome - other).abs().max() > 0.1
        # In one sub-batch the order does not matter, so every row is back in its place.
        torch.testing.assert_close(
            whitened_in_parts(z, 32, 3, 1e-10), whitened_in_parts(z, 32, 0, 1e-10)
        )

    def test_too_few_samples_are_refused(self) -> None:
        with pytest.raises(UserError, match="found sub-batches of 4 and 4 dimensions; raise"):
            whitened_in_parts(rows(8), 4, 0, 1e-6)


class TestMethod:
    def test_forward_is_the_distance_of_whitened_unit_vectors(self) -> None:
        method = tiny_method(sub_batch=8)
        view_a, view_b = views(16)
        z_a, z_b = method.embed(view_a), method.embed(view_b)
        white_a, white_b = (np.concatenate([whitened(part) for part in z.split(8)])
                            for z in (z_a, z_b))  # fmt: skip
        found = method(view_a, view_b)["loss"].item()
        assert found == pytest.approx(distance(white_a, white_b), rel=1e-5)

    def test_several_iterations_are_the_mean_over_partitions(self) -> None:
        method = tiny_method(sub_batch=8, iterations=3)
        view_a, view_b = views(16)
        expected = [
            distance(*(whitened_in_parts(z, 8, partition, 1e-10).detach().numpy()
                       for z in (method.embed(view_a), method.embed(view_b))))
            for partition in range(3)
        ]  # fmt: skip
        assert method(view_a, view_b)["loss"].item() == pytest.approx(np.mean(expected))

    def test_of_equal_views_it_is_zero_and_of_unrelated_ones_about_two(self) -> None:
        method = tiny_method(sub_batch=200)
        view_a, view_b = views(200)
        assert method(view_a, view_a)["loss"].item() == pytest.approx(0, abs=1e-9)
        assert method(view_a, view_b)["loss"].item() == pytest.approx(2, abs=0.3)

    def test_a_mixed_view_is_compared_with_the_same_mixture_of_white_embeddings(self) -> None:
        method = tiny_method()
        view_a, view_b = views()
        hidden = method.backbone.forward_stages(view_b, 0, 2)
        hidden = 0.3 * hidden + 0.7 * hidden.roll(1, 0)
        features = method.backbone.pool(method.backbone.forward_stages(hidden, 2))
        white_a = whitened(method.embed(view_a))
        target = 0.3 * white_a + 0.7 * np.roll(white_a, 1, axis=0)
        expected = distance(target, whitened(method.projector(features)))
        found = method(view_a, view_b, mix_at(2))["loss"].item()
        assert found == pytest.approx(expected, rel=1e-5)

    def test_no_gradient_changes_the_scale_of_the_embeddings(self) -> None:
        """White is white at every scale, so weight decay cannot lower the loss by shrinking."""
        z_a, z_b = rows(16).requires_grad_(), rows(16, seed=1)
        tiny_method().objective(z_a, z_b)["loss"].backward()
        assert z_a.grad is not None
        assert z_a.grad.norm() > 1e-3
        assert (z_a.grad * (z_a.detach() - z_a.detach().mean(dim=0))).sum().abs() < 1e-9

    def test_half_precision_is_whitened_in_float32(self) -> None:
        method, z_a, z_b = tiny_method(), rows(16).bfloat16(), rows(16, seed=1).bfloat16()
        loss = method.objective(z_a, z_b)["loss"]
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss, method.objective(z_a.float(), z_b.float())["loss"])

    def test_defaults_are_those_of_the_recipe(self) -> None:
        table = method_table("w-mse")
        assert table["method"]["name"] == "w-mse"
        method = WMSE(create_backbone("conv4", in_channels=1), Projector(64, out_features=64))
        names = ("sub_batch", "iterations", "ridge", "mixup")
        assert table["method"]["options"] == {name: getattr(method, name) for name in names}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"sub_batch": 0}, "sub_batch must be at least 1, found 0"),
            ({"iterations": 0}, "iterations must be at least 1, found 0"),
            ({"ridge": 0.0}, r"ridge must be positive, found 0\.0"),
        ],
    )
    def test_bad_options_are_named(self, options: dict[str, float], message: str) -> None:
        with pytest.raises(UserError, match=message):
            tiny_method(**options)
