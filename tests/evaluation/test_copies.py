"""Images that are there twice are known by their features, whatever rounding does to these."""

from __future__ import annotations

import numpy as np
import pytest

from eigenshot.evaluation.copies import copies_among, twins_across
from tests.evaluation.test_classifier import small_encoder


def features(count: int = 500, width: int = 64, seed: int = 0) -> np.ndarray:
    """Feature vectors ``(count, width)`` that are much alike, as those of photographs are."""
    generator = np.random.default_rng(seed)
    return (3 + 0.1 * generator.normal(size=(count, width))).astype(np.float32)


@pytest.mark.parametrize("width", [2, 64, 512])
def test_copies_are_found_where_they_stand(width: int) -> None:
    table, queries = features(width=width), features(40, width, seed=1)
    rows = np.random.default_rng(2).permutation(500)[:20]
    queries[10:30] = table[rows]
    expected = np.full(40, -1)
    expected[10:30] = rows
    np.testing.assert_array_equal(copies_among(queries, table), expected)


def test_rounding_makes_no_difference_and_another_image_does() -> None:
    table = features()
    noise = np.random.default_rng(3).normal(size=table.shape)
    rounded = (table * (1 + 1e-6 * noise)).astype(np.float32)
    assert (rounded != table).any(axis=1).all()
    np.testing.assert_array_equal(copies_among(rounded, table), np.arange(len(table)))
    assert (copies_among(table * (1 + 1e-3 * noise), table) == -1).all()


def test_the_company_in_which_an_image_is_looked_at_does_not_matter() -> None:
    encoder = small_encoder()
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), dtype=np.uint8)
    table = encoder.transform(images)
    for count in (1, 7, 33):
        alone = encoder.transform(images[:count])
        np.testing.assert_array_equal(copies_among(alone, table), np.arange(count))


def test_nothing_is_a_copy_of_nothing() -> None:
    assert copies_among(features(3), features(0)).tolist() == [-1, -1, -1]
    assert copies_among(features(0), features(3)).tolist() == []


def test_twins_stand_in_two_classes() -> None:
    table, labels = features(12), np.arange(12) % 3
    table[4] = table[0]  # of class 1 and 0
    table[11] = table[7]  # of class 2 and 1
    table[9] = table[3]  # both of class 0
    assert twins_across(table, labels) == [(0, 4), (7, 11)]
    assert twins_across(features(12), labels) == []
    alike = np.repeat(features(1), 6, axis=0)
    pairs = twins_across(alike, np.arange(6) // 2)
    assert [row for _, row in pairs] == [2, 3, 4, 5]
    assert all(one // 2 < row // 2 for one, row in pairs)
