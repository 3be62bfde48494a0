"""Work for processes: what travels, how much at a time, and who may quieten Pillow."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from eigenshot.data.reading import workers as decoding
from eigenshot.data.reading.streamed import StreamedSource
from eigenshot.data.reading.workers import decode_rows, run_tasks
from eigenshot.data.tables.encoded import Selection
from tests.data.list_table import ListTable, noise_pngs, read_places


def test_few_tasks_are_on_their_way_at_a_time() -> None:
    table = ListTable(noise_pngs(40))
    handed_out = 0

    def tasks() -> Iterator[tuple[list[int]]]:
        nonlocal handed_out
        for row in range(40):
            handed_out += 1
            yield ([row],)

    results = run_tasks(table, read_places, tasks(), workers=1)
    assert next(results) == 1
    assert handed_out <= 5
    assert sum(results) == 39


def test_rows_of_a_selection_are_named_as_they_are_asked_for() -> None:
    images = noise_pngs(6)
    images[4] = b"no picture"
    selection = Selection(ListTable(images), np.array([1, 4, 5]), None, (), "some")
    pixels, failures = decode_rows(selection, [2, 1], size=8, channels=3)
    assert list(failures) == [1]
    whole, _ = decode_rows(selection.table, [5], size=8, channels=3)
    np.testing.assert_array_equal(pixels[0], whole[0])


def test_warnings_are_turned_off_in_the_calling_thread_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Filters belong to the process: of two threads each would restore what the other has set."""
    entered = []
    original = warnings.catch_warnings

    class Watched(original):  # type: ignore[misc, valid-type]
        def __enter__(self) -> object:
            entered.append(threading.current_thread())
            return super().__enter__()

    monkeypatch.setattr(decoding.warnings, "catch_warnings", Watched)
    monkeypatch.setattr("eigenshot.data.reading.streamed.cores", lambda: 4)
    source = StreamedSource(ListTable(noise_pngs(40)), size=8, channels=3, window=8)
    source.images(range(40))
    assert set(entered) == {threading.current_thread()}
