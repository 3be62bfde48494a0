"""The second task: quarter turns told from the features, beside any loss of two views."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from eigenshot.errors import UserError
from eigenshot.methods import create_method
from eigenshot.methods.pairs import PairMethod
from eigenshot.methods.rotation import rotation_head, rotation_losses, turned
from eigenshot.networks.keeping import copied_buffers
from tests.methods.tiny import mix_at, networks, views

PAIR_METHODS = (
    "dle",
    "barlow-twins",
    "shuffled-dbn",
    "simclr",
    "spectral-contrastive",
    "vicreg",
    "w-mse",
)
OPTIONS: dict[str, dict[str, Any]] = {
    "shuffled-dbn": {"group_size": 3},
    "w-mse": {"sub_batch": 12},
}


def build(name: str, **options: Any) -> PairMethod:
    backbone, projector = networks(standardize=name not in ("simclr", "w-mse", "shuffled-dbn"))
    method = create_method(name, backbone, projector, **{**OPTIONS.get(name, {}), **options})
    assert isinstance(method, PairMethod)
    return method.double().train()


def draw(method: PairMethod, batch: int) -> Any:
    return method.draw(batch, np.random.default_rng(0))


def upright(backbone: nn.Module, head: nn.Module, images: Tensor) -> Tensor:
    return head(backbone(images)).log_softmax(dim=1)


class TestTurned:
    @pytest.mark.parametrize(("batch", "every"), [(8, 1), (8, 2), (7, 1), (7, 3), (1, 1), (3, 5)])
    def test_each_is_turned_as_numpy_turns_it(self, batch: int, every: int) -> None:
        images = torch.randn(batch, 2, 5, 5)
        found, turns = turned(images, every)
        assert turns.tolist() == [number % 4 for number in range(-(-batch // every))]
        for image, outcome, turn in zip(images[::every], found, turns.tolist(), strict=True):
            expected = np.rot90(image.numpy(), turn, axes=(1, 2))
            np.testing.assert_array_equal(outcome.numpy(), expected)

    def test_the_images_stay_as_they_are_and_keep_their_layout(self) -> None:
        images = torch.randn(8, 3, 6, 6).contiguous(memory_format=torch.channels_last)
        before = images.clone()
        found, _ = turned(images)
        assert torch.equal(images, before)
        assert found.is_contiguous(memory_format=torch.channels_last)

    @pytest.mark.parametrize("shape", [(4, 1, 6, 8), (4, 6, 6)])
    def test_what_cannot_be_turned_is_refused(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(UserError, match="only square images"):
            turned(torch.zeros(shape))


class TestLosses:
    @pytest.mark.parametrize(("batch", "every"), [(12, 1), (12, 2), (10, 3)])
    def test_their_mean_is_the_cross_entropy_of_the_turned_images(
        self, batch: int, every: int
    ) -> None:
        backbone, _ = networks()
        head = rotation_head(backbone.out_features)
        backbone.double().train()
        head.double().train()
        images = torch.randn(batch, 1, 16, 16, dtype=torch.float64)
        losses = rotation_losses(backbone, head, images, every)
        rotated, turns = turned(images, every)
        expected = -upright(backbone, head, rotated)[torch.arange(len(turns)), turns].mean()
        torch.testing.assert_close(losses.mean(), expected)
        others = torch.ones(batch, dtype=torch.bool)
        others[::every] = False
        assert not losses[others].any()

    def test_the_backbone_keeps_nothing_of_turned_images(self) -> None:
        backbone, _ = networks()
        backbone.double().train()
        before = copied_buffers(backbone)
        head = rotation_head(backbone.out_features).double()
        loss = rotation_losses(backbone, head, views()[0]).mean()
        for name, value in backbone.named_buffers():
            assert torch.equal(value, before[name]), name
        loss.backward()
        assert all(p.grad is not None and p.grad.any() for p in backbone.stages[0].parameters())
        backbone(views()[0])
        assert any(not torch.equal(v, before[name]) for name, v in backbone.named_buffers())

    @pytest.mark.parametrize(
        ("batch", "every", "turned_ones"), [(1, 1, 1), (2, 1, 2), (6, 6, 1), (6, 2, 3), (9, 3, 3)]
    )
    def test_fewer_images_than_turns_are_refused(
        self, batch: int, every: int, turned_ones: int
    ) -> None:
        backbone, _ = networks()
        head = rotation_head(backbone.out_features)
        sentence = (
            f"rotate_every={every} leaves {turned_ones} of {batch} images to be turned together, "
            "fewer than the 4 quarter turns.*lower rotate_every"
        )
        with pytest.raises(UserError, match=sentence):
            rotation_losses(backbone, head, torch.randn(batch, 1, 16, 16), every)

    @pytest.mark.parametrize("ranks", [1, 2, 3, 4])
    @pytest.mark.parametrize(("batch", "every"), [(3, 2), (3, 1), (4, 1), (7, 2), (10, 3)])
    def test_where_images_of_all_processes_are_learned_from_every_turn_occurs(
        self, batch: int, every: int, ranks: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backbone, _ = networks()
        head, images = rotation_head(backbone.out_features), torch.randn(batch, 1, 16, 16)
        monkeypatch.setattr("eigenshot.methods.rotation.world_size", lambda: ranks)
        occurring, refused = set(), set()
        for rank in range(ranks):
            monkeypatch.setattr("eigenshot.methods.rotation.rank", lambda rank=rank: rank)
            occurring.update(turned(images, every)[1].tolist())
            try:
                rotation_losses(backbone, head, images, every)
                refused.add(False)
            except UserError:
                refused.add(True)
        assert refused == {occurring != {0, 1, 2, 3}}, "on all ranks or on none"

    def test_the_backbone_keeps_track_again_after_an_error(self) -> None:
        backbone, _ = networks()
        head = nn.Linear(backbone.out_features + 1, 4)
        before = copied_buffers(backbone)
        with pytest.raises(RuntimeError):
            rotation_losses(backbone, head, views()[0].float())
        backbone(views()[0].float())
        assert any(not torch.equal(v, before[name]) for name, v in backbone.named_buffers())

    def test_a_network_learns_to_tell_the_turns_of_images_that_have_an_up(self) -> None:
        backbone, _ = networks()
        head = rotation_head(backbone.out_features)
        parameters = [*backbone.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        generator = torch.Generator().manual_seed(0)
        losses = []
        for _ in range(40):
            images = torch.randn(32, 1, 16, 16, generator=generator)
            images[:, :, :8] += 1.0  # brighter above than below
            loss = rotation_losses(backbone, head, images).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[0] > 1.0
        assert np.mean(losses[-5:]) < 0.1


@pytest.mark.parametrize("name", PAIR_METHODS)
class TestMethods:
    @pytest.mark.parametrize("mixup", ["none", "manifold"])
    def test_the_loss_is_the_method_s_own_and_that_of_the_turns(
        self, name: str, mixup: str
    ) -> None:
        plain, both = build(name, mixup=mixup), build(name, mixup=mixup, rotation=0.5)
        both.load_state_dict(plain.state_dict(), strict=False)
        pair = views(24)
        drawn = draw(plain, 24)
        own, terms = plain(*pair, drawn), both(*pair, drawn)
        losses = rotation_losses(both.backbone, both.rotation_head, pair[0], 2)
        assert terms.keys() == {*own, "rotation"}
        torch.testing.assert_close(terms["rotation"], losses.mean())
        torch.testing.assert_close(terms["loss"], own["loss"] + 0.5 * losses.mean())
        for key in own.keys() - {"loss"}:
            torch.testing.assert_close(terms[key], own[key])

    def test_the_objective_of_rows_is_the_forward_pass(self, name: str) -> None:
        forward, split = (build(name, mixup="manifold", rotation=0.5) for _ in range(2))
        split.load_state_dict(forward.state_dict())
        pair = views(24)
        drawn = draw(forward, 24)
        expected = forward(*pair, drawn)
        terms = split.objective(*split.represent(*pair, drawn), drawn)
        assert terms.keys() == expected.keys()
        for key, term in terms.items():
            torch.testing.assert_close(term, expected[key], rtol=1e-12, atol=1e-12)

    def test_without_a_weight_there_is_no_head(self, name: str) -> None:
        assert "rotation" not in build(name)(*views(24), draw(build(name), 24))
        assert not any(key.startswith("rotation") for key in build(name).state_dict())

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"rotation": -0.1}, "rotation must not be negative, found -0.1"),
            ({"rotation": 0.1, "rotate_every": 0}, "rotate_every must be at least 1, found 0"),
            ({"rotate_every": 4}, "rotate_every=4 does nothing without rotation above 0"),
            ({"rotation": math.nan}, "rotation"),
            ({"rotation": math.inf}, "rotation"),
            ({"rotation": "much"}, "option 'rotation' of method .*: expected a number"),
            ({"rotatoin": 0.1}, "did you mean 'rotation'"),
        ],
    )
    def test_bad_values_are_named(self, name: str, options: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UserError, match=sentence):
            build(name, **options)


def test_the_embedding_of_the_turned_images_is_not_asked_for_anything() -> None:
    """The second task works on features: it has no gradient for the projector."""
    method = build("dle", rotation=1.0)
    method(*views(8), mix_at(1, 8))["rotation"].backward()
    assert all(parameter.grad is None for parameter in method.projector.parameters())
