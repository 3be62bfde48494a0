"""The objective of the paper, term by term."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from eigenshot.errors import UserError
from eigenshot.methods import DeepLaplacianEigenmapsMethod, create_method
from eigenshot.methods.dle import decorrelation_loss, trace_loss
from eigenshot.methods.mixing import Mix
from eigenshot.networks import Backbone, Projector, create_backbone
from eigenshot.networks.apart import can_keep_halves_apart
from eigenshot.training.step import standing_in
from tests.methods.tiny import mix_at, shapes_of_products, views


def standardised(batch: int, dimensions: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(batch, dimensions, dtype=torch.float64, generator=generator)
    return (z - z.mean(0)) / z.std(0, unbiased=False)


def tiny_method(**options: object) -> DeepLaplacianEigenmapsMethod:
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
    projector = Projector(8, layers=2, width=12)
    method = create_method("dle", backbone, projector, **options).double()
    assert isinstance(method, DeepLaplacianEigenmapsMethod)
    return method


class TestTrace:
    def test_mean_is_algorithm_1_and_sum_is_equation_8(self) -> None:
        z_a, z_b = standardised(7, 5), standardised(7, 5, seed=1)
        squared = ((z_a - z_b).numpy() ** 2).sum(axis=1)
        torch.testing.assert_close(trace_loss(z_a, z_b).item(), squared.mean() / 5)
        torch.testing.assert_close(trace_loss(z_a, z_b, "sum").item(), squared.mean())

    def test_shapes_that_differ_are_named(self) -> None:
        with pytest.raises(UserError, match=r"\(4, 3\) and \(4, 2\)"):
            trace_loss(torch.zeros(4, 3), torch.zeros(4, 2))


class TestDecorrelation:
    @pytest.mark.parametrize(("batch", "dimensions"), [(8, 20), (20, 8), (9, 9)])
    def test_both_routes_equal_the_definition_in_value_and_gradient(
        self, batch: int, dimensions: int
    ) -> None:
        values, gradients = [], []
        for route in ("covariance", "gram", "auto"):
            z = (2 * standardised(batch, dimensions)).requires_grad_()
            loss = decorrelation_loss(z, route)  # type: ignore[arg-type]
            loss.backward()
            values.append(loss.item())
            gradients.append(z.grad)
        z = 2 * standardised(batch, dimensions)
        covariance = (z.T @ z / batch).numpy()
        expected = (covariance**2).sum() - (np.diag(covariance) ** 2).sum()
        np.testing.assert_allclose(values, expected, rtol=1e-10)
        # d/dZ of the off-diagonal sum is (4/B) Z (C − diag C).
        hollow = covariance - np.diag(np.diag(covariance))
        for gradient in gradients:
            assert gradient is not None
            np.testing.assert_allclose(gradient, 4 / batch * z.numpy() @ hollow, atol=1e-10)

    def test_the_smaller_matrix_is_formed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shapes = shapes_of_products(monkeypatch)
        decorrelation_loss(torch.randn(6, 40))
        decorrelation_loss(torch.randn(40, 6))
        assert shapes == [(6, 6), (6, 6)]

    def test_half_precision_is_summed_in_float32(self) -> None:
        z = standardised(16, 8).float()
        for loss in (decorrelation_loss(z.bfloat16()), trace_loss(z.bfloat16(), z.bfloat16())):
            assert loss.dtype == torch.float32
        rounded = z.bfloat16()
        torch.testing.assert_close(decorrelation_loss(rounded), decorrelation_loss(rounded.float()))

    def test_other_shapes_are_refused(self) -> None:
        with pytest.raises(UserError, match=r"\(batch, K\), found \(2, 3, 4\)"):
            decorrelation_loss(torch.zeros(2, 3, 4))


class TestAlgorithm1:
    @pytest.mark.parametrize("layer", range(5))
    def test_forward_equals_the_listing(self, layer: int) -> None:
        method = tiny_method(gamma=0.01)
        view_a, view_b = views()
        mix = mix_at(layer)
        terms = method(view_a, view_b, mix)

        # The paper's pseudo-code, line by line, with the stages of the network at hand.
        stages, projector = list(method.backbone.stages), method.projector
        lam, index = 0.3, mix.permutation

        def g(x: Tensor) -> Tensor:
            for stage in stages[:layer]:
                x = stage(x)
            return x

        def f(x: Tensor) -> Tensor:
            for stage in stages[layer:]:
                x = stage(x)
            return projector(x.mean(dim=(2, 3)))

        z = f(g(view_a))
        hidden = g(view_b)
        z_p_mix = f(lam * hidden + (1 - lam) * hidden[index])
        z_mix = lam * z + (1 - lam) * z[index]
        trace = (z_mix - z_p_mix).pow(2).mean()
        c = z.T @ z / 6
        decorrelation = (c - torch.diag(torch.diag(c))).pow(2).sum()
        torch.testing.assert_close(terms["trace"], trace)
        torch.testing.assert_close(terms["decorrelation"], decorrelation)
        torch.testing.assert_close(terms["loss"], trace + 0.01 * decorrelation)

    def test_gradients_flow_through_both_branches(self) -> None:
        method = tiny_method(decorrelate="none")
        view_a, view_b = views()
        view_a.requires_grad_()
        view_b.requires_grad_()
        method(view_a, view_b, mix_at(2))["loss"].backward()
        assert view_a.grad is not None
        assert view_b.grad is not None
        assert view_a.grad.abs().sum() > 0
        assert view_b.grad.abs().sum() > 0

    def test_without_a_mix_the_pairs_are_compared_as_they_are(self) -> None:
        method = tiny_method(mixup="none")
        view_a, view_b = views()
        assert method.draw(6, np.random.default_rng(0)) is None
        expected = trace_loss(method.embed(view_a), method.embed(view_b))
        torch.testing.assert_close(method(view_a, view_b)["trace"], expected)

    def test_a_coefficient_of_one_is_no_mixing(self) -> None:
        method = tiny_method()
        view_a, view_b = views()
        for layer in range(5):
            mixed = method(view_a, view_b, mix_at(layer, coefficient=1.0))["loss"]
            torch.testing.assert_close(mixed, method(view_a, view_b)["loss"])

    def test_both_branches_can_be_decorrelated(self) -> None:
        view_a, view_b = views()
        one = tiny_method(decorrelate="one")(view_a, view_b)["decorrelation"]
        other = tiny_method(decorrelate="one")(view_b, view_a)["decorrelation"]
        both = tiny_method(decorrelate="both")(view_a, view_b)["decorrelation"]
        torch.testing.assert_close(both, (one + other) / 2)

    def test_the_rescaled_target_has_unit_variance_for_uncorrelated_partners(self) -> None:
        method = tiny_method(target="unit-variance")
        z = standardised(20_000, 2)
        mix = Mix(0, torch.tensor(0.3, dtype=torch.float64), torch.randperm(20_000))
        torch.testing.assert_close(
            method._target(z, mix).var(0), torch.ones(2, dtype=torch.float64), atol=0.03, rtol=0
        )
        plain = tiny_method()._target(z, mix)
        torch.testing.assert_close(method._target(z, mix), plain / (0.3**2 + 0.7**2) ** 0.5)

    def test_trace_alone_collapses(self) -> None:
        """Without the constraint one direction takes everything: the ablation's first row."""
        from eigenshot.training.diagnostics import effective_rank

        ranks = {}
        for decorrelate in ("none", "one"):
            method = tiny_method(decorrelate=decorrelate, mixup="none", k_gamma=1.0)
            optimizer = torch.optim.Adam(method.parameters(), lr=0.01)
            view, _ = views(batch=32)
            noise = torch.Generator().manual_seed(2)
            for _ in range(150):
                jitter = torch.randn(view.shape, dtype=torch.float64, generator=noise)
                loss = method(view, view + 0.5 * jitter)["loss"]
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            ranks[decorrelate] = effective_rank(method.embed(view).detach())
        assert ranks["none"] < 2 < 5 < ranks["one"]


class TestWeight:
    def test_k_gamma_is_k_times_gamma(self) -> None:
        assert tiny_method(k_gamma=0.02).weight(2048) == pytest.approx(0.02 / 2048)
        assert tiny_method(gamma=1e-5).weight(2048) == 1e-5
        assert tiny_method().weight(512) == pytest.approx(0.02 / 512)

    def test_both_reductions_have_the_same_optimum_under_one_k_gamma(self) -> None:
        view_a, view_b = views()
        mean = tiny_method(k_gamma=0.5, reduction="mean")(view_a, view_b)["loss"]
        total = tiny_method(k_gamma=0.5, reduction="sum")(view_a, view_b)["loss"]
        torch.testing.assert_close(total, 12 * mean)  # K = 12

    def test_gamma_and_k_gamma_together_are_refused(self) -> None:
        with pytest.raises(UserError, match="either gamma or k_gamma"):
            tiny_method(gamma=1.0, k_gamma=1.0)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"gamma": -1.0}, "gamma must not be negative, found -1.0"),
            ({"k_gamma": -1.0}, "^k_gamma must not be negative, found -1.0"),
            ({"alpha": 0.0}, "alpha must be positive, found 0.0"),
            ({"layers": [0, 9]}, r"between 0 \(the input\) and 4 .* found \[9\]"),
            ({"mixup": "cutmix"}, "expected 'manifold' or 'input' or 'none', found 'cutmix'"),
            ({"gama": 1.0}, "no option 'gama'; did you mean 'gamma'"),
        ],
    )
    def test_bad_options_are_named(self, options: dict[str, object], message: str) -> None:
        with pytest.raises(UserError, match=message):
            tiny_method(**options)


class TestDraw:
    def test_every_eligible_layer_is_drawn_and_no_other(self) -> None:
        method = tiny_method(layers=[1, 3])
        generator = np.random.default_rng(0)
        draws = [method.draw(5, generator) for _ in range(60)]
        assert {mix.layer for mix in draws if mix} == {1, 3}
        assert all(sorted(mix.permutation.tolist()) == list(range(5)) for mix in draws if mix)

    def test_input_mixup_is_layer_0(self) -> None:
        method = tiny_method(mixup="input")
        generator = np.random.default_rng(0)
        assert {mix.layer for _ in range(20) if (mix := method.draw(5, generator))} == {0}

    def test_alpha_shapes_the_coefficient(self) -> None:
        generator = np.random.default_rng(0)
        spread = {}
        for alpha in (0.1, 1.0, 50.0):
            method = tiny_method(alpha=alpha)
            drawn = [
                float(mix.coefficient) for _ in range(400) if (mix := method.draw(2, generator))
            ]
            assert all(0 <= value <= 1 for value in drawn)
            # Var Beta(α, α) = 1 / (4 (2α + 1))
            spread[alpha] = float(np.var(drawn))
            assert spread[alpha] == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.25)

    def test_one_block_is_drawn_as_ever(self) -> None:
        """Resumed runs rely on the order of the draws."""
        mix = tiny_method().draw(6, np.random.default_rng(0))
        assert mix is not None
        generator = np.random.default_rng(0)
        assert float(mix.coefficient) == generator.beta(1.0, 1.0)
        assert mix.layer == generator.choice(range(5))
        assert mix.permutation.tolist() == generator.permutation(6).tolist()

    def test_partners_stay_within_their_block(self) -> None:
        mix = tiny_method().draw(12, np.random.default_rng(0), blocks=3)
        assert mix is not None
        for start, block in zip((0, 4, 8), mix.permutation.chunk(3), strict=True):
            assert sorted(block.tolist()) == list(range(start, start + 4))
        whole = tiny_method().draw(12, np.random.default_rng(0))
        assert whole is not None
        assert (whole.layer, whole.coefficient) == (mix.layer, mix.coefficient)

    def test_the_mixes_of_the_parts_are_the_mix_of_the_batch(self) -> None:
        mix = tiny_method().draw(12, np.random.default_rng(0), blocks=3)
        assert mix is not None
        x = torch.randn(12, 5, dtype=torch.float64)
        apart = [mix.part(index, 3)(block) for index, block in enumerate(x.chunk(3))]
        assert torch.equal(torch.cat(apart), mix(x))
        assert {mix.part(index, 3).layer for index in range(3)} == {mix.layer}

    @pytest.mark.parametrize("blocks", [0, 5])
    def test_unequal_blocks_are_refused(self, blocks: int) -> None:
        with pytest.raises(UserError, match=f"splits into {blocks} equal blocks, found 12"):
            tiny_method().draw(12, np.random.default_rng(0), blocks=blocks)


class TestObjective:
    @pytest.mark.parametrize("layer", [None, 0, 2, 4])
    @pytest.mark.parametrize("joint", [False, True])
    def test_of_what_represents_the_views_it_is_the_forward_pass_bit_for_bit(
        self, layer: int | None, joint: bool
    ) -> None:
        forward, split = tiny_method(decorrelate="both"), tiny_method(decorrelate="both")
        forward.joint = split.joint = joint and all(map(can_keep_halves_apart, (forward, split)))
        mix = None if layer is None else mix_at(layer)
        expected = forward(*views(), mix)
        terms = split.objective(*split.represent(*views(), mix), mix)
        assert {name: term.item() for name, term in terms.items()} == {
            name: term.item() for name, term in expected.items()
        }
        terms["loss"].backward()
        expected["loss"].backward()
        for ours, theirs in zip(split.parameters(), forward.parameters(), strict=True):
            assert ours.grad is not None
            assert theirs.grad is not None
            assert torch.equal(ours.grad, theirs.grad)
        for ours, theirs in zip(split.buffers(), forward.buffers(), strict=True):
            assert torch.equal(ours, theirs)

    @pytest.mark.parametrize("standardize", [True, False])
    def test_rows_are_the_projector_s_output_before_it_is_standardised(
        self, standardize: bool
    ) -> None:
        method = tiny_method()
        method.projector = Projector(8, layers=1, width=12, standardize=standardize).double()
        rows, _ = method.represent(*views())
        linear = method.projector.layers[0]
        torch.testing.assert_close(rows, linear(method.backbone(views()[0])))
        embeddings = method.standardised(rows)
        assert (embeddings is rows) == (not standardize)
        torch.testing.assert_close(embeddings, method.embed(views()[0]))

    def test_a_compiled_projector_is_left_out_for_the_while_and_stays_in_place(self) -> None:
        method, calls = tiny_method(), []

        def compiled(x: Tensor) -> Tensor:
            calls.append(len(x))
            return method.projector.layers(x)

        with standing_in([(method.projector, "forward", compiled)]):
            terms = method.objective(*method.represent(*views()))
            assert calls == []
            torch.testing.assert_close(terms, tiny_method()(*views()))
            method.embed(views()[0])
            assert calls == [6]
            with pytest.raises(UserError, match="expected images"):
                method.represent(*(view[:, :, 0] for view in views()))
            assert method.projector.forward is compiled
        assert "forward" not in vars(method.projector)


class TestRegistry:
    def test_unknown_method(self) -> None:
        backbone = Backbone([nn.Identity()], out_features=3)
        with pytest.raises(UserError, match="unknown method 'dlee'; did you mean 'dle'"):
            create_method("dlee", backbone, nn.Identity())

    def test_a_class_that_is_no_method(self) -> None:
        backbone = Backbone([nn.Identity()], out_features=3)
        with pytest.raises(UserError, match="keeps its 'backbone'"):
            create_method("tests.methods.test_dle:not_a_method", backbone, nn.Identity())


def not_a_method(backbone: Backbone, projector: nn.Module) -> nn.Module:
    return nn.Identity()
