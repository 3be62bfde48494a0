"""Barlow Twins: the loss by its definition, and its place among decorrelation losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from eigenshot.configfile import method_table
from eigenshot.errors import UserError
from eigenshot.methods.barlow_twins import BarlowTwins, cross_correlation_loss
from eigenshot.methods.dle import decorrelation_loss, trace_loss
from eigenshot.networks import Projector, create_backbone
from tests.methods.test_dle import standardised
from tests.methods.tiny import mix_at, views


def tiny_method(**options: float | str) -> BarlowTwins:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
    projector = Projector(8, layers=2, width=12)
    return BarlowTwins(backbone, projector, **options).double()  # type: ignore[arg-type]


def by_definition(z_a: Tensor, z_b: Tensor) -> tuple[float, float]:
    """Eq. 1 and Eq. 2 entry by entry, of embeddings that are centred over the batch."""
    a, b = (z.detach().numpy() - z.detach().numpy().mean(axis=0) for z in (z_a, z_b))
    invariance, redundancy = 0.0, 0.0
    for k in range(a.shape[1]):
        for l in range(b.shape[1]):  # noqa: E741
            product = sum(a[i, k] * b[i, l] for i in range(len(a)))
            c = product / np.sqrt((a[:, k] ** 2).sum()) / np.sqrt((b[:, l] ** 2).sum())
            if k == l:
                invariance += (1 - c) ** 2
            else:
                redundancy += c**2
    return invariance, redundancy


class TestLoss:
    @pytest.mark.parametrize(("batch", "dimensions"), [(7, 11), (11, 7)])
    def test_both_routes_are_the_equation_in_value_and_gradient(
        self, batch: int, dimensions: int
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (2, batch, dimensions)
        z_a, z_b = 3 + 2 * torch.randn(shape, dtype=torch.float64, generator=generator)
        expected = by_definition(z_a, z_b)
        gradients = []
        for route in ("covariance", "gram", "auto"):
            a, b = z_a.clone().requires_grad_(), z_b.clone().requires_grad_()
            terms = cross_correlation_loss(a, b, route)
            assert [term.item() for term in terms] == pytest.approx(expected, rel=1e-10)
            (terms[0] + 0.1 * terms[1]).backward()
            gradients.append(torch.stack([a.grad, b.grad]))
        for gradient in gradients[1:]:
            torch.testing.assert_close(gradient, gradients[0])

    def test_of_equal_and_uncorrelated_dimensions_it_is_zero(self) -> None:
        signs = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
        assert [term.item() for term in cross_correlation_loss(signs, signs)] == pytest.approx(
            [0, 0], abs=1e-12
        )

    def test_scale_and_shift_of_a_dimension_do_not_matter(self) -> None:
        z_a, z_b = standardised(9, 5), standardised(9, 5, seed=1)
        moved = z_a * torch.tensor([0.1, 1, 5, 30, 2]) - 4
        torch.testing.assert_close(
            cross_correlation_loss(moved, z_b), cross_correlation_loss(z_a, z_b)
        )

    def test_half_precision_is_summed_in_float32(self) -> None:
        z_a, z_b = standardised(16, 8).bfloat16(), standardised(16, 8, seed=1).bfloat16()
        terms = cross_correlation_loss(z_a, z_b)
        assert {term.dtype for term in terms} == {torch.float32}
        torch.testing.assert_close(terms, cross_correlation_loss(z_a.float(), z_b.float()))

    def test_shapes_that_differ_are_named(self) -> None:
        with pytest.raises(UserError, match=r"\(4, 3\) and \(4, 2\)"):
            cross_correlation_loss(torch.zeros(4, 3), torch.zeros(4, 2))


class TestFamily:
    """What docs/methods.md says of the trace and of the constraint."""

    def test_a_diagonal_entry_is_one_less_half_the_distance_of_standardised_views(self) -> None:
        z_a, z_b = standardised(9, 5), standardised(9, 5, seed=1)
        distances = (z_a - z_b).square().mean(dim=0)
        invariance, _ = cross_correlation_loss(z_a, z_b)
        torch.testing.assert_close(invariance, (distances / 2).square().sum())
        # Cauchy–Schwarz: the squared trace bounds it from below.
        assert invariance >= trace_loss(z_a, z_b, "sum").square() / (4 * 5)

    def test_of_equal_views_the_redundancy_is_the_decorrelation_term(self) -> None:
        z = standardised(9, 5)
        invariance, redundancy = cross_correlation_loss(z, z)
        assert invariance.item() == pytest.approx(0, abs=1e-12)
        torch.testing.assert_close(redundancy, decorrelation_loss(z))


class TestMethod:
    def test_forward_is_the_weighted_sum_of_the_terms_of_the_embeddings(self) -> None:
        method = tiny_method(weight=0.25, scale=2.0)
        view_a, view_b = views(batch=20)
        terms = method(view_a, view_b)
        invariance, redundancy = by_definition(method.embed(view_a), method.embed(view_b))
        assert terms["invariance"].item() == pytest.approx(invariance)
        assert terms["redundancy"].item() == pytest.approx(redundancy)
        assert terms["loss"].item() == pytest.approx(2 * invariance + 0.5 * redundancy)

    @pytest.mark.parametrize("layer", [0, 2, 4])
    def test_a_mixed_view_is_correlated_with_the_same_mixture(self, layer: int) -> None:
        method, mix = tiny_method(), mix_at(layer)
        view_a, view_b = views()
        stages = method.backbone
        hidden = stages.forward_stages(view_b, 0, layer)
        hidden = 0.3 * hidden + 0.7 * hidden.roll(1, 0)
        z_b = method.projector(stages.pool(stages.forward_stages(hidden, layer)))
        z_a = method.embed(view_a)
        invariance, redundancy = by_definition(0.3 * z_a + 0.7 * z_a.roll(1, 0), z_b)
        terms = method(view_a, view_b, mix)
        assert terms["invariance"].item() == pytest.approx(invariance)
        assert terms["redundancy"].item() == pytest.approx(redundancy)

    def test_defaults_are_those_of_the_recipe(self) -> None:
        table = method_table("barlow-twins")
        assert table["method"]["name"] == "barlow-twins"
        own = tiny_method()
        expected = {"weight": own.weight, "scale": own.scale, "mixup": "none"}
        assert table["method"]["options"] == expected

    def test_a_negative_weight_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"weight must not be negative, found -1\.0"):
            tiny_method(weight=-1.0)
        with pytest.raises(UserError, match=r"scale must be positive, or 0 for 1/K, found -1\.0"):
            tiny_method(scale=-1.0)

    def test_without_a_scale_the_sum_over_dimensions_is_a_mean(self) -> None:
        view_a, view_b = views(batch=20)
        mean, total = (tiny_method(scale=scale)(view_a, view_b)["loss"] for scale in (0.0, 1.0))
        length = tiny_method().embed(view_a).shape[1]
        torch.testing.assert_close(mean * length, total)
