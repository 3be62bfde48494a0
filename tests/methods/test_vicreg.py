"""VICReg: the terms by their definition, another library's loss, and its place in the family."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning.losses import VICRegLoss
from torch import Tensor

from eigenshot.configfile import method_table
from eigenshot.errors import UserError
from eigenshot.methods import DeepLaplacianEigenmapsMethod
from eigenshot.methods.vicreg import VICReg, covariance_loss, variance_loss
from eigenshot.networks import Projector, create_backbone
from tests.methods.test_dle import standardised
from tests.methods.tiny import mix_at, views


def tiny_method(*, standardize: bool = False, **options: float | str) -> VICReg:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
    projector = Projector(8, layers=2, width=12, standardize=standardize)
    return VICReg(backbone, projector, **options).double()  # type: ignore[arg-type]


def by_definition(z: Tensor, eps: float = 1e-4) -> tuple[float, float]:
    """The variance and the covariance term of one view, Eq. 1 to Eq. 4, entry by entry."""
    rows = z.detach().tolist()
    count, dimensions = len(rows), len(rows[0])
    means = [sum(row[k] for row in rows) / count for k in range(dimensions)]
    variance_term, covariance_term = 0.0, 0.0
    for k in range(dimensions):
        for l in range(dimensions):  # noqa: E741
            c = sum((row[k] - means[k]) * (row[l] - means[l]) for row in rows) / (count - 1)
            if k == l:
                variance_term += max(0.0, 1 - math.sqrt(c + eps)) / dimensions
            else:
                covariance_term += c**2 / dimensions
    return variance_term, covariance_term


def embeddings(batch: int, dimensions: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(batch, dimensions, dtype=torch.float64, generator=generator)
    return 2 + z * torch.linspace(0.2, 1.6, dimensions, dtype=torch.float64)


class TestTerms:
    @pytest.mark.parametrize(("batch", "dimensions"), [(6, 9), (9, 6)])
    def test_they_are_the_equations(self, batch: int, dimensions: int) -> None:
        z = embeddings(batch, dimensions)
        found = variance_loss(z).item(), covariance_loss(z).item()
        assert found == pytest.approx(by_definition(z), rel=1e-10)

    def test_variance_is_the_hinge_of_a_collapsed_and_of_a_wide_dimension(self) -> None:
        assert variance_loss(torch.full((8, 3), 5.0)).item() == pytest.approx(0.99)  # 1 − √1e-4
        assert variance_loss(2 * standardised(8, 3)).item() == 0
        narrow = (0.1 * standardised(8, 3)).requires_grad_()
        variance_loss(narrow).backward()
        assert narrow.grad is not None
        # Each dimension is told to widen: the gradient points inwards.
        assert ((narrow.grad * narrow.detach()).sum(dim=0) < 0).all()

    def test_half_precision_is_summed_in_float32(self) -> None:
        z = embeddings(16, 8).bfloat16()
        for term in (variance_loss, covariance_loss):
            assert term(z).dtype == torch.float32
            torch.testing.assert_close(term(z), term(z.float()))

    def test_a_single_sample_is_refused(self) -> None:
        for term in (variance_loss, covariance_loss):
            with pytest.raises(UserError, match="at least 2 samples for a variance, found 1"):
                term(torch.zeros(1, 4))
            with pytest.raises(UserError, match=r"\(batch, K\), found \(2, 3, 4\)"):
                term(torch.zeros(2, 3, 4))


class TestMethod:
    def test_forward_is_algorithm_1(self) -> None:
        method = tiny_method(invariance=3.0, variance=5.0, covariance=7.0, scale=0.5)
        view_a, view_b = views()
        terms = method(view_a, view_b)
        z_a, z_b = method.embed(view_a), method.embed(view_b)
        (variance_a, covariance_a), (variance_b, covariance_b) = map(by_definition, (z_a, z_b))
        invariance = (z_a - z_b).square().mean().item()
        assert terms["invariance"].item() == pytest.approx(invariance)
        assert terms["variance"].item() == pytest.approx(variance_a + variance_b)
        assert terms["covariance"].item() == pytest.approx(covariance_a + covariance_b)
        assert terms["loss"].item() == pytest.approx(
            1.5 * invariance + 2.5 * (variance_a + variance_b) + 3.5 * (covariance_a + covariance_b)
        )

    def test_with_half_the_variance_weight_it_is_another_library_s_loss(self) -> None:
        """That of the authors' program, which takes the mean of the two variance terms."""
        method = tiny_method(variance=12.5, scale=1.0)
        view_a, view_b = views()
        z_a, z_b = method.embed(view_a), method.embed(view_b)
        expected = VICRegLoss()(z_a, ref_emb=z_b)
        torch.testing.assert_close(method(view_a, view_b)["loss"], expected)

    def test_a_mixed_view_is_compared_with_the_same_mixture(self) -> None:
        method = tiny_method()
        view_a, view_b = views()
        hidden = method.backbone.forward_stages(view_b, 0, 2)
        hidden = 0.3 * hidden + 0.7 * hidden.roll(1, 0)
        features = method.backbone.pool(method.backbone.forward_stages(hidden, 2))
        z_a, z_b = method.embed(view_a), method.projector(features)
        terms = method(view_a, view_b, mix_at(2))
        target = 0.3 * z_a + 0.7 * z_a.roll(1, 0)
        torch.testing.assert_close(terms["invariance"], (target - z_b).square().mean())
        torch.testing.assert_close(terms["variance"], variance_loss(z_a) + variance_loss(z_b))
        torch.testing.assert_close(terms["covariance"], covariance_loss(z_a) + covariance_loss(z_b))

    def test_defaults_are_those_of_the_recipe(self) -> None:
        table, method = method_table("vicreg"), tiny_method()
        assert table["method"]["name"] == "vicreg"
        assert table["method"]["options"] == {
            **method.weights,
            "eps": method.eps,
            "scale": method.scale,
            "mixup": "none",
        }

    @pytest.mark.parametrize("name", ["invariance", "variance", "covariance"])
    def test_negative_weights_are_refused(self, name: str) -> None:
        with pytest.raises(UserError, match=rf"{name} must not be negative, found -1\.0"):
            tiny_method(**{name: -1.0})
        with pytest.raises(UserError, match=r"scale must be positive, found 0\.0"):
            tiny_method(scale=0.0)

    def test_eps_must_be_positive(self) -> None:
        with pytest.raises(UserError, match=r"eps must be positive, found 0\.0"):
            tiny_method(eps=0.0)


def test_of_standardised_embeddings_it_is_the_trace_with_a_decorrelation_of_both_views() -> None:
    """What docs/methods.md says: then no variance is missing, and Kγ = 2 ν/λ up to the bias."""
    batch = 6
    method = tiny_method(standardize=True, scale=1.0)
    terms = method(*views(batch))
    assert terms["variance"].item() == 0
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
    eigenmaps = DeepLaplacianEigenmapsMethod(
        backbone,
        Projector(8, layers=2, width=12),
        k_gamma=2 / 25 * (batch / (batch - 1)) ** 2,
        decorrelate="both",
        mixup="none",
    ).double()
    torch.testing.assert_close(terms["loss"], 25 * eigenmaps(*views(batch))["loss"])


def test_with_fewer_images_than_dimensions_covariance_holds_deviations_below_one() -> None:
    """What docs/methods.md says: of free embeddings that agree, the deviation they settle at."""
    batch, dimensions, variance, covariance = 5, 64, 25.0, 1.0
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(batch, dimensions, dtype=torch.float64, generator=generator)
    z = (1.3 * z / z.std(dim=0)).requires_grad_()  # from above the hinge
    optimizer = torch.optim.LBFGS([z], max_iter=500, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        return variance * variance_loss(z, 1e-12) + covariance * covariance_loss(z)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    optimizer.step(closure)
    expected = (variance / (4 * covariance * (dimensions / (batch - 1) - 1))) ** (1 / 3)
    assert expected == pytest.approx(0.747, abs=1e-3)
    torch.testing.assert_close(
        z.detach().std(dim=0), torch.full((dimensions,), expected).double(), rtol=1e-3, atol=0
    )
