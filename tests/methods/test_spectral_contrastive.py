"""The spectral contrastive loss: the formula, the factorisation behind it, and the mixture."""

from __future__ import annotations

import inspect
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eigenshot.configfile import method_table
from eigenshot.errors import UserError
from eigenshot.methods.mixing import Mix
from eigenshot.methods.spectral_contrastive import (
    SpectralContrastive,
    attraction_loss,
    repulsion_loss,
    within_ball,
)
from eigenshot.networks import Projector, create_backbone
from eigenshot.networks.projector import Standardize
from eigenshot.spectral import degrees, laplacian_eigenmaps, pairs_graph
from tests.methods.tiny import mix_with_a_fixed_point as mix_at
from tests.methods.tiny import rows, shapes_of_products, views

BATCH = 6


def tiny_method(standardize: bool = True, **options: Any) -> SpectralContrastive:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
    projector = Projector(8, layers=2, width=12, out_features=5, standardize=standardize)
    return SpectralContrastive(backbone, projector, **options).double()


def loss_of(z_a: Tensor, z_b: Tensor, mix: Mix | None = None) -> Tensor:
    return attraction_loss(z_a, z_b, mix) + repulsion_loss(z_a, z_b, mix)


class TestTerms:
    def test_attraction_is_minus_twice_the_mean_product_of_pairs(self) -> None:
        z_a, z_b = rows(0), rows(1)
        products = [float(a @ b) for a, b in zip(z_a, z_b, strict=True)]
        assert attraction_loss(z_a, z_b).item() == pytest.approx(-2 * np.mean(products))

    @pytest.mark.parametrize(("batch", "dimensions"), [(4, 9), (9, 4), (6, 6)])
    def test_both_routes_are_the_mean_square_over_pairs_of_two_images(
        self, batch: int, dimensions: int
    ) -> None:
        a, b = rows(0, batch, dimensions), rows(1, batch, dimensions)
        pairs = list(itertools.permutations(range(batch), 2))
        expected = np.mean([float(a[i] @ b[j]) ** 2 for i, j in pairs])
        slopes = []
        for route in ("moments", "gram", "auto"):
            z_a, z_b = a.clone().requires_grad_(), b.clone().requires_grad_()
            value = repulsion_loss(z_a, z_b, route=route)  # type: ignore[arg-type]
            assert value.item() == pytest.approx(expected, rel=1e-12)
            slopes.append(torch.autograd.grad(value, (z_a, z_b)))
        for other in slopes[1:]:
            torch.testing.assert_close(other, slopes[0])

    def test_the_smaller_matrix_is_formed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shapes = shapes_of_products(monkeypatch)
        repulsion_loss(rows(0, 6, 40), rows(1, 6, 40))
        repulsion_loss(rows(0, 40, 6), rows(1, 40, 6))
        assert shapes == [(6, 6)] * 3

    def test_rotated_embeddings_have_the_same_loss(self) -> None:
        z_a, z_b = rows(0), rows(1)
        rotation, _ = torch.linalg.qr(rows(2, 5, 5))
        torch.testing.assert_close(loss_of(z_a @ rotation, z_b @ rotation), loss_of(z_a, z_b))

    def test_half_precision_is_summed_in_float32(self) -> None:
        z_a, z_b = rows(0).bfloat16(), rows(1).bfloat16()
        with torch.autocast("cpu", torch.bfloat16):
            found = loss_of(within_ball(z_a, 2.0), within_ball(z_b, 2.0))
        assert found.dtype == torch.float32
        expected = loss_of(within_ball(z_a.float(), 2.0), within_ball(z_b.float(), 2.0))
        torch.testing.assert_close(found, expected)

    def test_what_cannot_be_contrasted_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"found \(4, 3\) and \(4, 2\)"):
            attraction_loss(torch.zeros(4, 3), torch.zeros(4, 2))
        with pytest.raises(UserError, match="a batch of one image"):
            repulsion_loss(torch.zeros(1, 3), torch.zeros(1, 3))


class TestFactorisation:
    """Lemma 3.2: the loss of the population is that of a factorisation of its graph."""

    def population(self) -> tuple[list[tuple[int, int]], np.ndarray, Any]:
        """All ordered positive pairs of five nodes, their probabilities, and the graph."""
        weights = np.random.default_rng(0).random((5, 5))
        weights = weights + weights.T
        weights /= weights.sum()
        pairs = list(itertools.product(range(5), repeat=2))
        first, second = zip(*pairs, strict=True)
        graph = pairs_graph(first, second, weights=weights.ravel(), n_nodes=5)
        return pairs, weights.ravel(), graph

    def expected_loss(self, embedding: Tensor) -> float:
        """The mean loss over all batches of two pairs that are drawn independently."""
        pairs, probabilities, _ = self.population()
        total = 0.0
        for (m, one), (n, two) in itertools.product(enumerate(pairs), repeat=2):
            z_a, z_b = embedding[[one[0], two[0]]], embedding[[one[1], two[1]]]
            total += probabilities[m] * probabilities[n] * loss_of(z_a, z_b).item()
        return total

    def adjacency(self) -> np.ndarray:
        _, _, graph = self.population()
        scale = 1 / np.sqrt(degrees(graph))
        return scale[:, None] * graph.toarray() * scale

    def test_the_mean_over_batches_is_the_distance_from_the_adjacency_matrix(self) -> None:
        embedding = rows(0, 5, 3)
        _, _, graph = self.population()
        adjacency = self.adjacency()
        F = np.sqrt(degrees(graph))[:, None] * embedding.numpy()
        distance = np.sum((adjacency - F @ F.T) ** 2)
        constant = np.sum(adjacency**2)
        assert self.expected_loss(embedding) == pytest.approx(distance - constant, abs=1e-10)

    def test_its_minimum_lies_at_the_scaled_laplacian_eigenmaps(self) -> None:
        _, _, graph = self.population()
        maps = laplacian_eigenmaps(graph, 5, drop_first=False)
        # An eigenvalue of the adjacency matrix is 1 − λ; only positive ones can be factorised.
        kept = [k for k in range(5) if maps.eigenvalues[k] < 1]
        assert len(kept) > 1
        similarity = 1 - maps.eigenvalues[kept]
        best = torch.from_numpy(maps.embedding[:, kept] * np.sqrt(similarity))
        minimum = -float(np.sum(similarity**2))
        assert self.expected_loss(best) == pytest.approx(minimum, abs=1e-10)
        for seed in range(3):
            away = best + 0.01 * rows(seed, 5, len(kept))
            assert self.expected_loss(away) > minimum


class TestRadius:
    def test_long_rows_are_brought_to_the_radius_and_short_ones_stay(self) -> None:
        z = torch.tensor([[3.0, 4.0], [0.3, -0.4], [0.0, 0.0]], dtype=torch.float64)
        expected = torch.tensor([[0.6, 0.8], [0.3, -0.4], [0.0, 0.0]], dtype=torch.float64)
        torch.testing.assert_close(within_ball(z, 1.0), expected)
        torch.testing.assert_close(within_ball(z, 4.0)[0], 2 * expected[0])
        torch.testing.assert_close(within_ball(z, 100.0), z)

    def test_all_rows_of_the_recipe_s_head_are_brought_to_it(self) -> None:
        """What docs/methods.md says: of the soft constraint that leaves the norm of C alone."""
        own = method_table("spectral-contrastive")
        dimensions, mu = own["projector"]["out"], own["method"]["options"]["mu"]
        assert own["projector"]["standardize"]
        z = Standardize(dimensions)(rows(0, batch=128, dimensions=dimensions))
        z = within_ball(z, mu)
        lengths = torch.linalg.vector_norm(z, dim=1)
        torch.testing.assert_close(lengths, torch.full_like(lengths, mu**0.5))
        moments = z.T @ z / len(z)
        excess = (moments - torch.eye(dimensions, dtype=z.dtype)).square().sum()
        torch.testing.assert_close(excess, moments.square().sum() - 2 * mu + dimensions)

    def test_a_row_of_zeros_has_a_finite_gradient(self) -> None:
        z = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
        within_ball(z, 1.0).sum().backward()
        torch.testing.assert_close(z.grad, torch.ones_like(z))


class TestMixed:
    @pytest.mark.parametrize("coefficient", [0.3, [0.1, 0.9, 0.5, 0.2, 1.0, 0.0]])
    @pytest.mark.parametrize("dimensions", [3, 9])
    def test_the_loss_is_the_mixture_of_those_with_either_image(
        self, coefficient: float | list[float], dimensions: int
    ) -> None:
        z_a, z_b = rows(0, dimensions=dimensions), rows(1, dimensions=dimensions)
        mix = mix_at(0, coefficient)
        shares = coefficient if isinstance(coefficient, list) else [coefficient] * BATCH
        expected = 0.0
        for j, partner in enumerate(mix.permutation.tolist()):
            for i, share in ((j, shares[j]), (partner, 1 - shares[j])):
                others = [float(z_a[k] @ z_b[j]) ** 2 for k in range(BATCH) if k != i]
                expected += share * (np.mean(others) - 2 * float(z_a[i] @ z_b[j])) / BATCH
        assert loss_of(z_a, z_b, mix).item() == pytest.approx(expected, rel=1e-12)


class TestMethod:
    @pytest.mark.parametrize("mu", [0.25, 1.0, 10.0])
    def test_the_loss_is_of_embeddings_within_the_radius(self, mu: float) -> None:
        method = tiny_method(mu=mu)
        view_a, view_b = views()
        z_a, z_b = (within_ball(method.embed(view), mu) for view in (view_a, view_b))
        terms = method(view_a, view_b)
        torch.testing.assert_close(terms["attraction"], attraction_loss(z_a, z_b))
        torch.testing.assert_close(terms["repulsion"], repulsion_loss(z_a, z_b))
        torch.testing.assert_close(terms["loss"], (terms["attraction"] + terms["repulsion"]) / mu)

    @pytest.mark.parametrize("layer", range(5))
    def test_the_second_view_alone_is_mixed_in_the_network(self, layer: int) -> None:
        method = tiny_method()
        view_a, view_b = views()
        mix = mix_at(layer)
        hidden = method.backbone.forward_stages(view_b, 0, layer)
        hidden = 0.3 * hidden + 0.7 * hidden[mix.permutation]
        features = method.backbone.pool(method.backbone.forward_stages(hidden, layer))
        z_a = within_ball(method.embed(view_a), 1.0)
        z_b = within_ball(method.projector(features), 1.0)
        torch.testing.assert_close(method(view_a, view_b, mix)["loss"], loss_of(z_a, z_b, mix))

    def test_gradients_flow_through_both_views(self) -> None:
        method = tiny_method()
        view_a, view_b = (view.requires_grad_() for view in views())
        loss = method(view_a, view_b, mix_at(2))["loss"]
        slopes = torch.autograd.grad(loss, (view_a, view_b, *method.parameters()))
        assert all(slope.abs().sum() > 0 for slope in slopes)

    @pytest.mark.parametrize("mu", [0.0, -1.0, math.nan])
    def test_a_mu_that_is_not_positive_is_refused(self, mu: float) -> None:
        with pytest.raises(UserError, match=f"mu must be positive, found {mu}"):
            tiny_method(mu=mu)

    def test_the_recipe_states_the_defaults(self) -> None:
        options = method_table("spectral-contrastive")["method"]["options"]
        assert options == {"mu": inspect.signature(SpectralContrastive).parameters["mu"].default}
