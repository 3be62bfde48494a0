"""MoCo v2: groups of a batch, each normalised by itself, and other ones for keys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from eigenshot.errors import UserError
from eigenshot.methods.mixing import Mix
from eigenshot.methods.moco import crosswise, queue_contrast_loss
from tests.methods.test_moco import tiny_method
from tests.methods.tiny import mix_at, views


@pytest.mark.parametrize(("batch", "groups"), [(12, 3), (8, 4), (6, 2)])
def test_groups_of_keys_cut_across_those_of_queries(batch: int, groups: int) -> None:
    order = crosswise(batch, groups)
    assert sorted(order.tolist()) == list(range(batch))
    size = batch // groups
    for group in order.chunk(groups):
        met = torch.bincount(group // size, minlength=groups)
        assert met.max() - met.min() <= 1


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("layer", [None, 0, 3])
def test_they_are_as_passes_of_their_own(layer: int | None, symmetric: bool, joint: bool) -> None:
    batch = 12
    method = tiny_method(groups=3, symmetric=symmetric, norm=True, queue_length=2 * batch)
    plain = tiny_method(norm=True)
    method.joint = joint
    view_a, view_b = views(batch)
    mix = None if layer is None else mix_at(layer, batch)

    def queries(view: Tensor, mix: Mix | None) -> Tensor:
        parts = [*plain.backbone.stages, plain.backbone.pool, plain.projector]
        for number, part in enumerate(parts):
            view = mix(view) if mix is not None and number == mix.layer else view
            view = torch.cat([part(group) for group in view.chunk(3)])
        return normalize(view, dim=1)

    def keys(view: Tensor) -> Tensor:
        found = torch.empty(batch, 5, dtype=torch.float64)
        for first in range(3):  # 0, 3, 6, 9 and so on; of queries 0, 1, 2, 3
            found[first::3] = normalize(plain.embed_target(view[first::3]), dim=1)
        return found

    expected = queue_contrast_loss(queries(view_b, mix), keys(view_a), method.queue, 0.2, mix)
    new = keys(view_a)
    if symmetric:
        other = queue_contrast_loss(queries(view_a, None), keys(view_b), method.queue, 0.2)
        expected, new = (expected + other) / 2, torch.cat([new, keys(view_b)])
    torch.testing.assert_close(method(view_a, view_b, mix)["loss"], expected)
    torch.testing.assert_close(method.queue[: len(new)], new)


@pytest.mark.parametrize(
    ("batch", "expected"), [(128, 8), (20, 5), (12, 3), (62, 2), (127, 1), (6, 1)]
)
def test_they_are_of_one_size_and_of_four_images_at_least(batch: int, expected: int) -> None:
    assert tiny_method(groups=8)._groups(batch) == expected


def test_evaluation_is_by_running_statistics() -> None:
    method, plain = tiny_method(groups=3).eval(), tiny_method().eval()
    torch.testing.assert_close(method(*views(12))["loss"], plain(*views(12))["loss"])


def test_a_standardised_head_would_undo_them() -> None:
    with pytest.raises(UserError, match=r"set projector\.standardize=false, or method"):
        tiny_method(groups=2, standardize=True)
    tiny_method(groups=1, standardize=True)
