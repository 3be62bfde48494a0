"""NT-Xent against the formula, against pytorch-metric-learning, and mixed."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import NTXentLoss
from torch import Tensor

from eigenshot.configfile import method_table
from eigenshot.errors import UserError
from eigenshot.methods.simclr import SimCLR, nt_xent_loss
from eigenshot.networks import Projector, create_backbone
from tests.methods.tiny import mix_with_a_fixed_point as mix_at
from tests.methods.tiny import rows, views

BATCH = 6


def tiny_method(**options: Any) -> SimCLR:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
    projector = Projector(8, layers=2, width=12, out_features=5, standardize=False)
    return SimCLR(backbone, projector, **options).double()


def pair_loss(everything: list[Tensor], x: int, y: int, temperature: float) -> Tensor:
    """ℓ(x, y) of Eq. 1, with ``everything`` the 2B embeddings."""

    def similarity(i: int, j: int) -> Tensor:
        u, v = everything[i], everything[j]
        return u @ v / (u.norm() * v.norm())

    others = [v for v in range(len(everything)) if v != x]
    total = sum((similarity(x, v) / temperature).exp() for v in others)
    return -torch.log((similarity(x, y) / temperature).exp() / total)


class TestLoss:
    @pytest.mark.parametrize("temperature", [0.07, 0.5, 2.0])
    def test_it_is_equation_1_over_all_positive_pairs(self, temperature: float) -> None:
        z_a, z_b = rows(0), rows(1)
        everything = [*z_a, *z_b]
        pairs = [(i, i + BATCH) for i in range(BATCH)]
        expected = sum(
            pair_loss(everything, x, y, temperature) + pair_loss(everything, y, x, temperature)
            for x, y in pairs
        ) / (2 * BATCH)
        torch.testing.assert_close(nt_xent_loss(z_a, z_b, temperature), expected)

    def test_value_and_gradient_are_those_of_pytorch_metric_learning(self) -> None:
        results = []
        for loss in (
            lambda a, b: nt_xent_loss(a, b, 0.5),
            lambda a, b: NTXentLoss(0.5)(torch.cat([a, b]), torch.arange(BATCH).repeat(2)),
        ):
            z_a, z_b = rows(0).requires_grad_(), rows(1).requires_grad_()
            value = loss(z_a, z_b)
            results.append([value, *torch.autograd.grad(value, (z_a, z_b))])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs)

    def test_alike_views_of_images_at_right_angles_have_the_value_in_closed_form(self) -> None:
        z = torch.eye(BATCH, dtype=torch.float64)
        # One positive of similarity 1 and 2B − 2 negatives of similarity 0.
        expected = math.log(1 + (2 * BATCH - 2) * math.exp(-1 / 0.5))
        assert nt_xent_loss(z, z, 0.5).item() == pytest.approx(expected, rel=1e-12)

    def test_a_collapse_is_worth_as_much_as_guessing(self) -> None:
        z = torch.ones(BATCH, 3, dtype=torch.float64)
        expected = math.log(2 * BATCH - 1)
        assert nt_xent_loss(z, 2 * z, 0.1).item() == pytest.approx(expected, rel=1e-12)

    def test_the_length_of_an_embedding_and_the_order_of_views_and_images_do_not_matter(
        self,
    ) -> None:
        z_a, z_b = rows(0), rows(1)
        expected = nt_xent_loss(z_a, z_b)
        torch.testing.assert_close(nt_xent_loss(z_a * rows(2).exp()[:, :1], 7 * z_b), expected)
        torch.testing.assert_close(nt_xent_loss(z_b, z_a), expected)
        torch.testing.assert_close(nt_xent_loss(z_a.flip(0), z_b.flip(0)), expected)

    def test_a_cold_softmax_does_not_overflow(self) -> None:
        z_a, z_b = rows(0).float().requires_grad_(), rows(1).float()
        loss = nt_xent_loss(z_a, z_b, 1e-3)
        loss.backward()
        assert loss.isfinite()
        assert z_a.grad is not None
        assert z_a.grad.isfinite().all()

    def test_half_precision_is_summed_in_float32(self) -> None:
        z_a, z_b = rows(0).bfloat16(), rows(1).bfloat16()
        with torch.autocast("cpu", torch.bfloat16):
            found = nt_xent_loss(z_a, z_b)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, nt_xent_loss(z_a.float(), z_b.float()))

    @pytest.mark.parametrize(
        ("shape", "other", "message"),
        [
            ((4, 3), (4, 2), r"\(batch, K\), found \(4, 3\) and \(4, 2\)"),
            ((4, 3, 2), (4, 3, 2), r"found \(4, 3, 2\)"),
            ((1, 3), (1, 3), "a batch of one image"),
        ],
    )
    def test_what_cannot_be_contrasted_is_refused(
        self, shape: tuple[int, ...], other: tuple[int, ...], message: str
    ) -> None:
        with pytest.raises(UserError, match=message):
            nt_xent_loss(torch.zeros(shape), torch.zeros(other))


class TestMixed:
    @pytest.mark.parametrize("coefficient", [0.3, [0.1, 0.9, 0.5, 0.2, 1.0, 0.0]])
    def test_a_mixed_view_is_paired_with_both_of_its_images_by_their_shares(
        self, coefficient: float | list[float]
    ) -> None:
        z_a, z_b = rows(0), rows(1)
        mix = mix_at(0, coefficient)
        everything = [*z_a, *z_b]
        shares = coefficient if isinstance(coefficient, list) else [coefficient] * BATCH
        total = torch.zeros((), dtype=torch.float64)
        for j, partner in enumerate(mix.permutation.tolist()):
            for i, share in ((j, shares[j]), (partner, 1 - shares[j])):
                for x, y in ((i, j + BATCH), (j + BATCH, i)):
                    total += share * pair_loss(everything, x, y, 0.5)
        torch.testing.assert_close(nt_xent_loss(z_a, z_b, 0.5, mix), total / (2 * BATCH))


class TestMethod:
    def test_the_loss_is_of_the_projector_s_output(self) -> None:
        method = tiny_method(temperature=0.2)
        view_a, view_b = views()
        z_a, z_b = method.embed(view_a), method.embed(view_b)
        terms = method(view_a, view_b)
        torch.testing.assert_close(terms["loss"], nt_xent_loss(z_a, z_b, 0.2))
        cosine = torch.cosine_similarity(z_a, z_b).mean()
        torch.testing.assert_close(terms["similarity"], cosine.detach())

    @pytest.mark.parametrize("layer", range(5))
    def test_the_second_view_alone_is_mixed_in_the_network(self, layer: int) -> None:
        method = tiny_method()
        view_a, view_b = views()
        mix = mix_at(layer)
        hidden = method.backbone.forward_stages(view_b, 0, layer)
        hidden = 0.3 * hidden + 0.7 * hidden[mix.permutation]
        features = method.backbone.pool(method.backbone.forward_stages(hidden, layer))
        expected = nt_xent_loss(method.embed(view_a), method.projector(features), 0.5, mix)
        torch.testing.assert_close(method(view_a, view_b, mix)["loss"], expected)

    def test_gradients_flow_through_both_views(self) -> None:
        method = tiny_method()
        view_a, view_b = (view.requires_grad_() for view in views())
        terms = method(view_a, view_b, mix_at(2))
        assert not terms["similarity"].requires_grad
        slopes = torch.autograd.grad(terms["loss"], (view_a, view_b, *method.parameters()))
        assert all(slope.abs().sum() > 0 for slope in slopes)

    def test_learning_pulls_pairs_together_and_images_apart(self) -> None:
        method = tiny_method()
        optimizer = torch.optim.Adam(method.parameters(), lr=0.01)
        view, noise = views()
        losses = []
        for _ in range(30):
            losses.append(method(view, view + 0.1 * noise)["loss"])
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
        assert losses[-1] < 0.8 * losses[0]

    @pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
    def test_a_temperature_that_is_not_positive_is_refused(self, temperature: float) -> None:
        with pytest.raises(UserError, match=f"temperature must be positive, found {temperature}"):
            tiny_method(temperature=temperature)

    def test_the_recipe_states_the_defaults(self) -> None:
        options = method_table("simclr")["method"]["options"]
        defaults = inspect.signature(SimCLR).parameters
        assert options == {"temperature": defaults["temperature"].default}
