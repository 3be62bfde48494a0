"""Small views beside the two."""

from __future__ import annotations

import torch

from eigenshot.data.views.views import Local, TwoViews
from tests.data.views.test_views import STILL_SIMCLR, random_pictures, seeded, view_of


def test_the_two_views_are_the_same_with_small_ones_and_without() -> None:
    images = random_pictures()
    alone = TwoViews(view_of("simclr"), view_of("simclr"))(images, seeded())
    small = Local(view_of("simclr"), count=3)
    *pair, local = TwoViews(view_of("simclr"), view_of("simclr"), small)(images, seeded())
    assert all(torch.equal(one, other) for one, other in zip(pair, alone, strict=True))
    assert local.shape == (8, 3, 3, 10, 10)


def test_small_views_are_of_their_picture_and_each_has_a_crop_of_its_own() -> None:
    flat = torch.arange(0, 80, 10, dtype=torch.uint8).view(8, 1, 1, 1).expand(8, 3, 20, 20)
    still = Local(view_of("simclr", **STILL_SIMCLR), count=3)
    *_, local = TwoViews(view_of("none"), view_of("none"), still)(flat, seeded())
    expected = flat[:, None, :, :10, :10].float().expand(8, 3, 3, 10, 10) / 255
    torch.testing.assert_close(local, expected)

    cropped = Local(view_of("simclr"), count=3)
    *_, local = TwoViews(view_of("none"), view_of("none"), cropped)(random_pictures(), seeded())
    assert not torch.allclose(local[:, 0], local[:, 1], atol=0.05)
    assert not torch.allclose(local[:, 1], local[:, 2], atol=0.05)


def test_small_views_grow_with_the_others_and_are_never_too_small() -> None:
    small = Local(view_of("simclr"), count=2, share=0.4, least=16)
    both = TwoViews(view_of("simclr"), view_of("simclr"), small)
    sides = []
    for size in (20, 32, 48, 84):
        both.resize(size)
        view_a, view_b, local = both(random_pictures(), seeded())
        assert view_a.shape[-1] == view_b.shape[-1] == size
        sides.append(local.shape[-1])
    assert sides == [16, 16, 19, 34]


def test_small_views_move_with_their_module_and_have_nothing_to_save() -> None:
    both = TwoViews(view_of("simclr"), view_of("simclr"), Local(view_of("simclr"), count=2))
    assert both.state_dict() == {}
    assert both.to("meta").local_view.mean.device.type == "meta"
    assert len(list(both.children())) == 3  # each is compiled where that is asked
