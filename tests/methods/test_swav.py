"""SwAV: codes, swapped prediction, prototypes and queue, against the paper's listing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from eigenshot.configfile import method_table
from eigenshot.errors import UserError
from eigenshot.methods.heads import unit
from eigenshot.methods.swav import SwAV, sinkhorn_codes, swapped_loss
from tests.methods.tiny import mix_at, networks, views


def tiny_method(**options: object) -> SwAV:
    given = {"prototypes": 5, "frozen_steps": 0, "queue_size": 0, **options}
    return SwAV(*networks(), **given).double()  # type: ignore[arg-type]


def listing(scores: np.ndarray, epsilon: float = 0.05, iterations: int = 3) -> np.ndarray:
    """The function of the paper's appendix: (samples, prototypes) to codes."""
    table = np.exp(scores / epsilon).T
    table /= table.sum()
    prototypes, samples = table.shape
    for _ in range(iterations):
        table *= (1 / prototypes / table.sum(axis=1))[:, None]
        table *= (1 / samples / table.sum(axis=0))[None, :]
    return np.asarray((table / table.sum(axis=0, keepdims=True)).T)


def scores_of(samples: int, prototypes: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.rand(samples, prototypes, dtype=torch.float64, generator=generator) - 1


class TestCodes:
    @pytest.mark.parametrize("iterations", [1, 3])
    def test_they_are_those_of_the_listing(self, iterations: int) -> None:
        scores = scores_of(7, 4)
        expected = listing(scores.numpy(), 0.05, iterations)
        codes = sinkhorn_codes(scores.requires_grad_(), epsilon=0.05, iterations=iterations)
        assert not codes.requires_grad
        np.testing.assert_allclose(codes, expected, rtol=1e-10)

    def test_after_many_iterations_prototypes_have_equal_shares(self) -> None:
        codes = sinkhorn_codes(scores_of(12, 4), epsilon=0.5, iterations=100)
        torch.testing.assert_close(codes.sum(dim=1), torch.ones(12, dtype=torch.float64))
        torch.testing.assert_close(codes.sum(dim=0), torch.full((4,), 3.0, dtype=torch.float64))

    def test_an_epsilon_whose_exponentials_overflow_does_no_harm(self) -> None:
        scores = scores_of(8, 4).float()
        assert (scores / 0.005).exp().isinf().any()
        codes = sinkhorn_codes(scores, epsilon=0.005, iterations=3)
        expected = listing(scores.double().numpy(), 0.005)
        np.testing.assert_allclose(codes, expected, atol=1e-4)

    def test_rows_that_do_not_count_change_nothing(self) -> None:
        scores, counted = scores_of(9, 4), torch.arange(9) >= 3
        codes = sinkhorn_codes(scores, epsilon=0.05, iterations=3, counted=counted)
        alone = sinkhorn_codes(scores[3:], epsilon=0.05, iterations=3)
        torch.testing.assert_close(codes[3:], alone)
        assert codes.isfinite().all()


def reference(method: SwAV, z_a: Tensor, z_b: Tensor) -> float:
    """Equation 1, halved as in the listing, from embeddings and in loops."""
    z = [(rows / rows.norm(dim=1, keepdim=True)).detach().numpy() for rows in (z_a, z_b)]
    scores = [rows @ method.prototypes.detach().numpy().T for rows in z]
    codes = [listing(table) for table in scores]
    loss = 0.0
    for code, table in ((codes[0], scores[1]), (codes[1], scores[0])):
        for i in range(len(code)):
            softmax = np.exp(table[i] / 0.1) / np.exp(table[i] / 0.1).sum()
            loss -= float((code[i] * np.log(softmax)).sum()) / len(code) / 2
    return loss


class TestLoss:
    def test_it_is_the_swapped_cross_entropy(self) -> None:
        method = tiny_method()
        view_a, view_b = views()
        expected = reference(method, method.embed(view_a), method.embed(view_b))
        assert float(method(view_a, view_b)["loss"]) == pytest.approx(expected, rel=1e-10)

    def test_in_both_terms_mixing_weighs_an_image_and_its_partner(self) -> None:
        generator = torch.Generator().manual_seed(3)
        tables = torch.rand(4, 6, 5, dtype=torch.float64, generator=generator).softmax(dim=2)
        codes_a, codes_b, p_a, p_b = tables.unbind()
        expected = 0.0
        for i in range(6):
            for weight, j in ((0.3, i), (0.7, i - 1)):
                expected -= weight * float(codes_a[j] @ p_b[i].log() + codes_b[i] @ p_a[j].log())
        found = swapped_loss(codes_a, codes_b, p_a.log(), p_b.log(), mix_at(0))
        assert float(found) == pytest.approx(expected / 6 / 2, rel=1e-12)

    @pytest.mark.parametrize("layer", range(5))
    def test_a_coefficient_of_one_is_no_mixing(self, layer: int) -> None:
        method = tiny_method()
        mixed = method(*views(), mix_at(layer, coefficient=1.0))["loss"]
        torch.testing.assert_close(mixed, method(*views())["loss"])

    def test_codes_are_constants_of_the_gradient(self) -> None:
        method, other = tiny_method(), tiny_method()
        view_a, view_b = views()
        method(view_a, view_b)["loss"].backward()
        z_a, z_b = (unit(z) for z in other.embed_pair(view_a, view_b))
        scores = [z @ other.prototypes.T for z in (z_a, z_b)]
        codes = [torch.from_numpy(listing(table.detach().numpy())) for table in scores]
        logs = [(table / 0.1).log_softmax(dim=1) for table in scores]
        swapped_loss(*codes, *logs).backward()
        for (name, found), expected in zip(
            method.named_parameters(), other.parameters(), strict=True
        ):
            torch.testing.assert_close(found.grad, expected.grad, msg=name)

    def test_perplexity_counts_the_prototypes_in_use(self) -> None:
        method = tiny_method()
        with torch.no_grad():
            method.prototypes.copy_(method.prototypes[:1].expand(5, -1))
        assert float(method(*views())["perplexity"]) == pytest.approx(5)

    def test_half_precision_ends_before_the_loss(self) -> None:
        method = tiny_method(queue_size=4, queue_start=0.0).float()
        view_a, view_b = (view.float() for view in views())
        with torch.autocast("cpu", torch.bfloat16):
            terms = method(view_a, view_b, mix_at(1))
        assert {term.dtype for term in terms.values()} == {torch.float32}


class TestPrototypes:
    def test_they_have_unit_length_at_the_start_and_after_every_step(self) -> None:
        method = tiny_method()
        ones = torch.ones(5, dtype=torch.float64)
        torch.testing.assert_close(method.prototypes.norm(dim=1), ones, atol=1e-6, rtol=0)
        place = method.prototypes.data_ptr()
        with torch.no_grad():
            method.prototypes.mul_(3)
        method.after_step(0.1)
        torch.testing.assert_close(method.prototypes.norm(dim=1), ones)
        assert method.prototypes.data_ptr() == place

    def test_they_are_frozen_for_as_many_steps_as_asked(self) -> None:
        method = tiny_method(frozen_steps=2)
        method.after_step(0.0)  # to unit length
        method.steps.zero_()
        optimizer = torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        start = method.prototypes.detach().clone()
        moved = []
        for step in range(4):
            optimizer.zero_grad()
            method(*views(seed=step))["loss"].backward()
            for name, parameter in method.named_parameters():
                assert parameter.grad is not None, name
            optimizer.step()
            method.after_step((step + 1) / 4)
            moved.append(float((method.prototypes - start).norm()))
        assert moved[1] < 1e-12
        assert moved[3] > moved[2] > 1e-4


class TestQueue:
    def test_the_oldest_embeddings_make_place_in_order(self) -> None:
        method = tiny_method(queue_size=7)
        batches = [views(batch=3, seed=seed) for seed in range(4)]
        seen: list[list[Tensor]] = [[], []]
        with torch.no_grad():
            for pair in batches:
                for rows, z in zip(seen, method.embed_pair(*pair), strict=True):
                    rows.append(unit(z))
                method(*pair)
        assert int(method.stored) == 12
        for view in (0, 1):
            expected = torch.zeros(7, 6, dtype=torch.float64)
            for number, row in enumerate(torch.cat(seen[view])):
                expected[number % 7] = row
            torch.testing.assert_close(method.queue[view], expected)

    def test_of_a_batch_larger_than_the_queue_the_end_is_kept(self) -> None:
        method = tiny_method(queue_size=4)
        view_a, view_b = views(batch=6)
        expected = unit(method.embed(view_a))[-4:].detach()
        method(view_a, view_b)
        torch.testing.assert_close(method.queue[0], expected)

    @pytest.mark.parametrize(("size", "start"), [(4, 0.5), (8, 0.0)])
    def test_earlier_embeddings_have_a_say_once_full_and_due(self, size: int, start: float) -> None:
        method, without = tiny_method(queue_size=size, queue_start=start), tiny_method()
        for step in range(2):  # full but not due, or due but not full
            pair = views(batch=4, seed=step)
            torch.testing.assert_close(method(*pair)["loss"], without(*pair)["loss"])
            method.after_step((step + 1) / 4)
            without.after_step((step + 1) / 4)
        queue = method.queue.clone()
        view_a, view_b = views(batch=4, seed=9)
        z = [unit(rows).detach() for rows in method.embed_pair(view_a, view_b)]
        prototypes = method.prototypes.detach()
        scores = [rows @ prototypes.T for rows in z]
        codes = []
        for view in (0, 1):
            table = torch.cat([queue[view] @ prototypes.T, scores[view]])
            codes.append(torch.from_numpy(listing(table.numpy())[size:]))
        logs = [(table / 0.1).log_softmax(dim=1) for table in scores]
        found = method(view_a, view_b)["loss"]
        torch.testing.assert_close(found, swapped_loss(*codes, *logs))
        assert abs(float(found - without(view_a, view_b)["loss"])) > 1e-3

    def test_a_look_in_evaluation_mode_leaves_it_alone(self) -> None:
        method = tiny_method(queue_size=7).eval()
        before = method.queue.clone()
        method(*views(batch=3))
        assert torch.equal(method.queue, before)
        assert int(method.stored) == 0

    def test_without_a_queue_there_is_nothing_to_keep(self) -> None:
        assert "queue" not in dict(tiny_method().named_buffers())


def test_the_recipe_says_what_the_class_has_as_defaults() -> None:
    options = method_table("swav")["method"]["options"]
    given, plain = SwAV(*networks(), **options), SwAV(*networks())
    for name in set(options) - {"prototypes"}:
        assert getattr(given, name) == getattr(plain, name) == options[name]
    assert len(plain.prototypes) == options["prototypes"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0.0}, "temperature must be positive, found 0.0"),
        ({"temperature": float("nan")}, "temperature must be positive, found nan"),
        ({"epsilon": -1.0}, "epsilon must be positive"),
        ({"prototypes": 1}, "prototypes must be at least 2, found 1"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"frozen_steps": -1}, "frozen_steps must be at least 0"),
        ({"queue_size": -1}, "queue_size must be at least 0"),
        ({"queue_start": 1.5}, "queue_start must lie between 0 and 1"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tiny_method(**options)
