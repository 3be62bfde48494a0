"""One pass over all pictures, alone or together."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from eigenshot.data.benchmarks import examine
from tests.data.list_table import ListTable, noise_pngs, png


def test_processes_find_the_same_as_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    images = noise_pngs(40)
    images[7] = b"broken"
    images[9] = None
    table = ListTable(images, group=4)
    alone = examine.examine(table)
    monkeypatch.setattr(examine, "_SERIAL", 1)
    monkeypatch.setattr(examine, "_CHUNK", 8)
    together = examine.examine(table)
    assert alone.failures == together.failures
    assert sorted(alone.failures) == [7, 9]
    for name in ("digests", "extents", "pixels", "sums", "squares"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(together, name))
    assert len(np.unique(alone.digests)) == 39  # 38 pictures, and nothing for two


def test_every_row_is_looked_at_once_whatever_the_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examine, "_CHUNK", 5)
    for group in (1, 3, 7, 100):
        log = tmp_path / f"{group}.log"
        examine.examine(ListTable(noise_pngs(53, side=2), group=group, log=log))
        assert sorted(map(int, log.read_text().split())) == list(range(53))


def test_facts_are_those_of_the_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    facts = examine.examine(ListTable([png(pixels)]))
    assert facts.extents.tolist() == [[6, 6]]
    assert facts.pixels.tolist() == [36]
    assert facts.sums[0].tolist() == pixels.sum(axis=(0, 1), dtype=int).tolist()
    assert facts.squares[0].tolist() == np.square(pixels.astype(int)).sum(axis=(0, 1)).tolist()


def test_the_same_pixels_have_one_digest_and_the_same_values_in_another_shape_another() -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8)
    webp = io.BytesIO()
    Image.fromarray(grey).convert("RGB").save(webp, "WEBP", lossless=True)
    constant = [png(np.full(shape, 7, np.uint8)) for shape in ((4, 4), (4, 5), (5, 4))]
    facts = examine.examine(ListTable([png(grey), webp.getvalue(), *constant]))
    assert facts.digests[0] == facts.digests[1]
    assert len(set(facts.digests.tolist())) == 4


def test_a_large_photograph_is_summed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "_COUNTED", 7)
    pixels = np.random.default_rng(0).integers(0, 256, (9, 9, 3), dtype=np.uint8)
    facts = examine.examine(ListTable([png(pixels)]))
    assert facts.sums[0].tolist() == pixels.sum(axis=(0, 1), dtype=int).tolist()
    assert facts.squares[0].tolist() == np.square(pixels.astype(int)).sum(axis=(0, 1)).tolist()
