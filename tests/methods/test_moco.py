"""MoCo v2: the loss against a queue, what the queue holds, and what the target learns."""

from __future__ import annotations

import inspect
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from eigenshot.configfile import method_table
from eigenshot.errors import UserError
from eigenshot.methods.mixing import Mix
from eigenshot.methods.moco import MoCo, queue_contrast_loss
from eigenshot.networks import Projector, create_backbone
from tests.methods.tiny import mix_with_a_fixed_point as mix_at
from tests.methods.tiny import rows, views

BATCH = 6
LENGTH = 20


def unit_rows(seed: int, batch: int = BATCH, dimensions: int = 5) -> Tensor:
    return normalize(rows(seed, batch, dimensions), dim=1)


def tiny_method(**options: Any) -> MoCo:
    """One that normalises a batch as a whole, unless told otherwise."""
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
    head = {"norm": options.pop("norm", False), "standardize": options.pop("standardize", False)}
    projector = Projector(8, layers=2, width=12, out_features=5, **head)
    return MoCo(backbone, projector, **{"queue_length": LENGTH, "groups": 1, **options}).double()


def info_nce(query: Tensor, key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Eq. 1 for one query, as a classification in which the key is class 0."""
    logits = torch.stack([query @ other for other in (key, *negatives)]) / temperature
    return cross_entropy(logits, torch.tensor(0))


class TestLoss:
    @pytest.mark.parametrize("temperature", [0.07, 0.2, 1.0])
    def test_it_is_the_cross_entropy_of_finding_the_key(self, temperature: float) -> None:
        queries, keys, negatives = unit_rows(0), unit_rows(1), unit_rows(2, LENGTH)
        each = [
            info_nce(query, key, negatives, temperature)
            for query, key in zip(queries, keys, strict=True)
        ]
        found = queue_contrast_loss(queries, keys, negatives, temperature)
        torch.testing.assert_close(found, torch.stack(each).mean())

    def test_limits(self) -> None:
        basis = torch.eye(5, dtype=torch.float64)
        found = queue_contrast_loss(basis[:2], basis[:2], basis[2:], 0.2)
        assert found.item() == pytest.approx(math.log(1 + 3 * math.exp(-5)), rel=1e-12)
        # Where everything is one point, each of 1 + 7 is as likely as the others.
        point = basis[:1].expand(7, 5)
        assert queue_contrast_loss(point, point, point).item() == pytest.approx(math.log(8))

    @pytest.mark.parametrize("coefficient", [0.3, [0.1, 0.9, 0.5, 0.2, 1.0, 0.0]])
    def test_mixed_queries_have_the_mixture_of_both_keys_losses(
        self, coefficient: float | list[float]
    ) -> None:
        queries, keys, negatives = unit_rows(0), unit_rows(1), unit_rows(2, LENGTH)
        mix = mix_at(0, coefficient)
        shares = coefficient if isinstance(coefficient, list) else [coefficient] * BATCH
        expected = torch.zeros((), dtype=torch.float64)
        for i, partner in enumerate(mix.permutation.tolist()):
            expected += shares[i] * info_nce(queries[i], keys[i], negatives, 0.2)
            expected += (1 - shares[i]) * info_nce(queries[i], keys[partner], negatives, 0.2)
        found = queue_contrast_loss(queries, keys, negatives, 0.2, mix)
        torch.testing.assert_close(found, expected / BATCH)

    def test_half_precision_is_summed_in_float32(self) -> None:
        given = [unit_rows(0), unit_rows(1), unit_rows(2, LENGTH)]
        halves = [rows.bfloat16() for rows in given]
        with torch.autocast("cpu", torch.bfloat16):
            found = queue_contrast_loss(*halves)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, queue_contrast_loss(*[rows.float() for rows in halves]))


class TestForward:
    def parts(self, method: MoCo, mix: Mix | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries and keys of both views, the second's queries mixed."""
        view_a, view_b = views()
        layer = 0 if mix is None else mix.layer
        hidden = method.backbone.forward_stages(view_b, 0, layer)
        if mix is not None:
            hidden = 0.3 * hidden + 0.7 * hidden[mix.permutation]
        features = method.backbone.pool(method.backbone.forward_stages(hidden, layer))
        rows = (
            method.embed(view_a),
            method.projector(features),
            method.embed_target(view_a),
            method.embed_target(view_b),
        )
        queries_a, queries_b, keys_a, keys_b = (normalize(z, dim=1) for z in rows)
        return queries_a, queries_b, keys_a, keys_b

    @pytest.mark.parametrize("layer", [None, *range(5)])
    def test_the_second_view_asks_for_the_target_s_first(self, layer: int | None) -> None:
        method = tiny_method(temperature=0.3)
        mix = None if layer is None else mix_at(layer)
        _, queries, keys, _ = self.parts(method, mix)
        expected = queue_contrast_loss(queries, keys, method.queue.clone(), 0.3, mix)
        terms = method(*views(), mix)
        torch.testing.assert_close(terms["loss"], expected)
        aim = keys if mix is None else mix(keys)
        torch.testing.assert_close(terms["similarity"], (queries * aim).sum(1).mean().detach())

    @pytest.mark.parametrize("layer", [None, 0, 3])
    def test_the_symmetric_loss_compares_the_clean_first_view_with_clean_keys(
        self, layer: int | None
    ) -> None:
        method = tiny_method(symmetric=True)
        mix = None if layer is None else mix_at(layer)
        queries_a, queries_b, keys_a, keys_b = self.parts(method, mix)
        queue = method.queue.clone()
        one = queue_contrast_loss(queries_b, keys_a, queue, 0.2, mix)
        other = queue_contrast_loss(queries_a, keys_b, queue, 0.2)
        torch.testing.assert_close(method(*views(), mix)["loss"], (one + other) / 2)

    @pytest.mark.parametrize("symmetric", [False, True])
    def test_a_coefficient_of_one_is_no_mixing(self, symmetric: bool) -> None:
        plain = tiny_method(symmetric=symmetric)(*views())
        for layer in range(5):
            terms = tiny_method(symmetric=symmetric)(*views(), mix_at(layer, 1.0))
            for name, term in plain.items():
                torch.testing.assert_close(terms[name], term)

    def test_gradients_reach_the_network_and_neither_keys_nor_target(self) -> None:
        method = tiny_method()
        view_a, view_b = (view.requires_grad_() for view in views())
        terms = method(view_a, view_b, mix_at(2))
        terms["loss"].backward()  # after the queue has changed
        assert not terms["similarity"].requires_grad
        assert view_a.grad is None
        assert view_b.grad is not None
        trained = [*method.backbone.parameters(), *method.projector.parameters()]
        assert all(weight.grad is not None and weight.grad.any() for weight in trained)
        target = [*method.target_backbone.parameters(), *method.target_projector.parameters()]
        assert all(weight.grad is None for weight in target)

    def test_the_gradient_is_that_of_the_queue_before_the_batch(self) -> None:
        method, other = tiny_method(), tiny_method()
        method(*views())["loss"].backward()
        _, queries, keys, _ = self.parts(other, None)
        queue_contrast_loss(queries, keys, other.queue).backward()
        for own, expected in zip(
            method.projector.parameters(), other.projector.parameters(), strict=True
        ):
            torch.testing.assert_close(own.grad, expected.grad)


class TestQueue:
    def test_it_starts_with_random_unit_rows_of_the_seed(self) -> None:
        method = tiny_method()
        assert method.queue.shape == (LENGTH, 5)
        lengths = method.queue.norm(dim=1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths), atol=1e-6, rtol=0)
        assert torch.equal(method.queue, tiny_method().queue)
        assert len(method.queue.unique(dim=0)) == LENGTH

    @pytest.mark.parametrize("symmetric", [False, True])
    def test_new_keys_take_the_place_of_the_oldest_all_around(self, symmetric: bool) -> None:
        method = tiny_method(symmetric=symmetric)
        expected = list(method.queue.clone())
        place = 0
        for step in range(5):  # 30 or 60 keys for 20 places
            view_a, view_b = views(seed=step)
            given = method.embed_target(view_a)
            if symmetric:
                given = torch.cat([given, method.embed_target(view_b)])
            for key in normalize(given, dim=1):
                expected[place % LENGTH] = key
                place += 1
            method(view_a, view_b)
            torch.testing.assert_close(method.queue, torch.stack(expected))
            assert int(method.position) == place % LENGTH

    def test_it_is_changed_in_place_and_saved(self) -> None:
        method = tiny_method()
        before = (method.queue.data_ptr(), method.position.data_ptr())
        method(*views())
        assert (method.queue.data_ptr(), method.position.data_ptr()) == before
        resumed = tiny_method()
        resumed.load_state_dict(method.state_dict())
        assert torch.equal(method(*views(seed=2))["loss"], resumed(*views(seed=2))["loss"])
        assert torch.equal(method.queue, resumed.queue)

    def test_evaluation_leaves_it_alone(self) -> None:
        method = tiny_method().eval()
        before = method.queue.clone()
        method(*views())
        assert torch.equal(method.queue, before)

    @pytest.mark.parametrize(("symmetric", "keys"), [(False, BATCH), (True, 2 * BATCH)])
    def test_it_must_hold_the_keys_of_a_step(self, symmetric: bool, keys: int) -> None:
        tiny_method(queue_length=keys, symmetric=symmetric)(*views())
        method = tiny_method(queue_length=keys - 1, symmetric=symmetric)
        with pytest.raises(UserError, match=f"{keys - 1} keys is shorter than the {keys} that"):
            method(*views())


class TestTarget:
    def test_a_step_moves_it_by_a_thousandth_of_the_way(self) -> None:
        method = tiny_method()
        own, target = method.projector.layers[0], method.target_projector.layers[0]
        start = target.weight.clone()
        with torch.no_grad():
            own.weight += 1
        for step in range(3):
            method.after_step((step + 1) / 3)
        torch.testing.assert_close(target.weight - start, torch.full_like(start, 1 - 0.999**3))


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"temperature": 0.0}, "temperature must be positive, found 0.0"),
            ({"temperature": math.nan}, "temperature must be positive, found nan"),
            ({"queue_length": 0}, "queue_length must be positive, found 0"),
            ({"groups": 0}, "groups must be positive, found 0"),
            ({"momentum": 1.5}, "momentum must lie between 0 and 1, found 1.5"),
        ],
    )
    def test_bad_ones_are_named(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(UserError, match=message):
            tiny_method(**options)

    def test_a_queue_longer_than_the_data_is_remarked(self) -> None:
        method = tiny_method(queue_length=20)
        assert method.remarks(images=20, at_once=6) == []
        (sentence,) = method.remarks(images=19, at_once=6)
        assert "a queue of 20 keys is longer than an epoch of 19 images" in sentence

    def test_a_batch_that_does_not_divide_is_remarked(self) -> None:
        method = tiny_method(groups=8)
        assert method.remarks(images=1000, at_once=128) == []
        (sentence,) = method.remarks(images=1000, at_once=127)
        assert "batches of 127 do not divide into groups of one size" in sentence

    def test_a_projector_of_unknown_length_is_refused(self) -> None:
        backbone = create_backbone("conv4", widths=(4, 4, 4, 8), in_channels=1)
        with pytest.raises(UserError, match=r"'out_features'; Sequential does not"):
            MoCo(backbone, nn.Sequential(nn.Linear(8, 5)))
        assert MoCo(backbone, nn.Linear(8, 5), queue_length=4).queue.shape == (4, 5)

    def test_the_recipe_states_the_defaults(self) -> None:
        options = method_table("mocov2")["method"]["options"]
        defaults = inspect.signature(MoCo).parameters
        assert options == {name: defaults[name].default for name in options}
        assert set(options) == {"temperature", "queue_length", "momentum", "symmetric", "groups"}
