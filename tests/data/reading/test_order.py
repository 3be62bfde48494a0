"""The order of an epoch: permutations, windows, groups, and where to go on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenshot.data.reading.order import Order, epoch_batches, window_in_use
from eigenshot.data.source import ArraySource
from eigenshot.errors import UserError
from eigenshot.randomness import numpy_generator


def boundaries(*sizes: int) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)])


def source_of(length: int) -> ArraySource:
    return ArraySource(torch.zeros(length, 1, 1, 1, dtype=torch.uint8))


@pytest.mark.parametrize("window", [None, 23, 1000])
def test_a_window_that_covers_all_is_a_plain_permutation(window: int | None) -> None:
    order = Order(23, 5, window, boundaries(10, 10, 3))
    assert order.windows == 1
    for epoch in range(3):
        expected = numpy_generator(5, "order", epoch).permutation(23)
        np.testing.assert_array_equal(order.rows(epoch, 0), expected)


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(lambda sizes: sum(sizes) > 0),
    window=st.integers(1, 70),
    epoch=st.integers(0, 3),
)
@settings(max_examples=100, deadline=None)
def test_the_windows_of_an_epoch_have_every_row_once(sizes, window: int, epoch: int) -> None:
    length = sum(sizes)
    order = Order(length, 0, window, boundaries(*sizes))
    windows = [order.rows(epoch, number) for number in range(order.windows)]
    assert all(len(rows) == order.rows_a_window for rows in windows[:-1])
    assert 0 < len(windows[-1]) <= order.rows_a_window
    np.testing.assert_array_equal(np.sort(np.concatenate(windows)), np.arange(length))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    groups = boundaries(*[10] * 20)
    first, again, later, other = (
        Order(200, seed, 100, groups).rows(epoch, 0)
        for seed, epoch in [(0, 0), (0, 0), (0, 1), (1, 0)]
    )
    np.testing.assert_array_equal(first, again)
    # Not only the order within the window: other rows are together.
    assert set(first) != set(later)
    assert set(first) != set(other)


def test_a_window_is_made_of_whole_groups_where_they_are_short() -> None:
    order = Order(400, 0, 80, boundaries(*[10] * 40))
    for number in range(order.windows):
        taken, counts = np.unique(order.rows(0, number) // 10, return_counts=True)
        assert len(taken) == 8
        assert set(counts) == {10}


def test_a_long_group_does_not_make_a_window_of_neighbours() -> None:
    order = Order(10_000, 0, 800, boundaries(10_000))
    rows = np.sort(order.rows(0, 0))
    stretches = 1 + int((np.diff(rows) > 1).sum())
    assert stretches > 4
    assert np.ptp(rows) > 5_000


def test_a_window_is_shuffled_wholly() -> None:
    rows = Order(1000, 0, 200, boundaries(*[10] * 100)).rows(0, 1)
    assert np.mean(np.diff(rows) == 1) < 0.1


def test_what_cannot_be_ordered_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1 image, found 0"):
        Order(10, 0, 0)
    with pytest.raises(UserError, match="found 0"):
        Order(0, 0)
    with pytest.raises(ValueError, match="needs groups"):
        Order(10, 0, 5).rows(0, 0)
    with pytest.raises(ValueError, match="groups that do"):
        Order(10, 0, 5, boundaries(4, 4)).rows(0, 0)


def test_batches_of_an_ordinary_source_are_slices_of_one_permutation() -> None:
    source = source_of(50)
    expected = numpy_generator(3, "order", 2).permutation(50)
    batches = list(epoch_batches(source, seed=3, epoch=2, batch_size=16))
    assert len(batches) == 3
    np.testing.assert_array_equal(np.concatenate(batches), expected[:48])


@pytest.mark.parametrize("first", range(5))
def test_an_epoch_can_be_entered_at_any_batch(first: int) -> None:
    source = source_of(50)
    whole = list(epoch_batches(source, seed=3, epoch=2, batch_size=16))
    tail = list(epoch_batches(source, seed=3, epoch=2, batch_size=16, first=first))
    assert [rows.tolist() for rows in tail] == [rows.tolist() for rows in whole[first:]]


def test_fewer_images_than_a_batch_make_no_batch() -> None:
    assert list(epoch_batches(source_of(5), seed=0, epoch=0, batch_size=6)) == []
    with pytest.raises(UserError, match="found 0"):
        next(epoch_batches(source_of(5), seed=0, epoch=0, batch_size=0))


class Windows(ArraySource):
    """A source that only writes down which windows it is told to hold, and which comes next."""

    def __init__(self, length: int, window: int) -> None:
        super().__init__(torch.zeros(length, 1, 1, 1, dtype=torch.uint8))
        self.window, self.groups = window, np.arange(length + 1)
        self.held: list[tuple[set[int], set[int] | None]] = []

    def hold(self, rows: np.ndarray, then: np.ndarray | None = None) -> None:
        self.held.append((set(rows), None if then is None else set(then)))


def test_nothing_is_read_ahead_after_the_last_epoch() -> None:
    source = Windows(40, 20)
    for epoch in range(2):
        list(epoch_batches(source, seed=0, epoch=epoch, batch_size=5, epochs=2))
    current = [rows for rows, _ in source.held]
    following = [then for _, then in source.held]
    assert following == [*current[1:], None]
    assert current[0] | current[1] == set(range(40))


def test_the_window_in_use_is_of_whole_batches() -> None:
    assert window_in_use(Windows(40, 22), 5) == 20
    assert window_in_use(Windows(40, 3), 5) == 5
    assert window_in_use(Windows(40, 40), 7) == 40
    assert window_in_use(source_of(40), 7) == 40


def test_an_epoch_is_put_in_order_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of many files has as many groups, and a small window many windows."""
    order = Order(1000, 0, 10, np.arange(1001))
    calls = []
    stretches = Order._stretches
    monkeypatch.setattr(Order, "_stretches", lambda self: calls.append(1) or stretches(self))
    rows = np.concatenate([order.rows(3, number) for number in range(order.windows)])
    assert sorted(rows.tolist()) == list(range(1000))
    assert len(calls) == 1
