"""Characters drawn from fonts: fixed classes, no twins across splits, the same from one seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from eigenshot.data.cache import cache_folder, load_cached, store_cached
from eigenshot.data.glyphs import SPLITS, draw_character, glyph_classes, load_glyphs, split_classes
from eigenshot.errors import UserError
from eigenshot.randomness import numpy_generator


def test_homoglyphs_are_one_class() -> None:
    classes = glyph_classes()
    assert len(classes) > 1000
    assert "A" in classes
    assert not {"Α", "А"} & set(classes), "Greek and Cyrillic capital A look like the Latin one"
    assert {"Ж", "Ω", "ß", "∑", "Ա"} <= set(classes)


def test_splits_are_disjoint_complete_and_of_the_stated_sizes() -> None:
    splits = {name: set(split_classes(name)) for name in SPLITS}
    everything = set(glyph_classes())
    assert set.union(*splits.values()) == everything
    assert sum(len(members) for members in splits.values()) == len(everything)
    shares = {name: len(members) / len(everything) for name, members in splits.items()}
    assert shares == pytest.approx({"train": 0.64, "validation": 0.16, "test": 0.20}, abs=0.001)
    with pytest.raises(UserError, match="unknown split 'tests'; did you mean 'test'"):
        split_classes("tests")


def test_a_seed_decides_the_drawings_and_drawings_differ() -> None:
    one = load_glyphs("validation", per_class=3)
    assert one.shape == (1, 28, 28)
    assert torch.equal(one.pixels, load_glyphs("validation", per_class=3).pixels)
    other = load_glyphs("validation", per_class=3, seed=1)
    assert not torch.equal(one.pixels, other.pixels)
    assert one.labels is not None
    assert np.bincount(one.labels).tolist() == [3] * len(one.class_names)
    drawings = one.pixels[:3, 0]
    assert not torch.equal(drawings[0], drawings[1])
    # More drawings begin with the same ones.
    assert torch.equal(load_glyphs("validation", per_class=5).pixels[:3], one.pixels[:3])


def test_ink_is_inside_the_picture_and_near_its_middle() -> None:
    pixels = load_glyphs("validation", per_class=4).pixels[:, 0].float()
    ink = pixels.sum(dim=(1, 2))
    assert (ink > 0).all()
    rows = torch.arange(28.0)
    centre = (pixels.sum(dim=2) * rows).sum(dim=1) / ink
    assert abs(float(centre.mean()) - 13.5) < 1
    edge = pixels[:, 0].sum() + pixels[:, -1].sum() + pixels[:, :, 0].sum() + pixels[:, :, -1].sum()
    assert float(edge / pixels.sum()) < 0.01


def test_a_damaged_cache_is_drawn_anew(own_cache: Path) -> None:
    whole = load_glyphs("validation", per_class=1, seed=7).pixels
    (file,) = own_cache.glob("glyphs-validation-1-7-*.npz")
    for content in (file.read_bytes()[:500], b"", b"not a cache"):
        file.write_bytes(content)
        assert torch.equal(load_glyphs("validation", per_class=1, seed=7).pixels, whole)


def test_a_cache_that_cannot_be_written_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("EIGENSHOT_CACHE", str(blocked))
    store_cached("key", np.zeros(3, np.uint8))
    assert load_cached("key", shape=(3,)) is None
    assert cache_folder() == blocked


def test_a_character_in_every_face_it_has() -> None:
    generator = numpy_generator(0, "faces")
    drawings = {draw_character("R", generator).tobytes() for _ in range(20)}
    assert len(drawings) == 20
    with pytest.raises(UserError, match="per_class must be at least 1, found 0"):
        load_glyphs(per_class=0)
