"""What a process may take of its machine."""

from __future__ import annotations

import os

import pytest

from eigenshot.machine import PROCESSES_VARIABLE, available_memory, cores, local_processes


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("text", "expected"), [("4", 4), ("0", 1), ("-2", 1), ("", 1), ("many", 1), ("2.5", 1)]
)
def test_what_is_no_number_of_processes_counts_as_one(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    monkeypatch.setenv(PROCESSES_VARIABLE, text)
    assert local_processes() == expected


@pytest.mark.usefixtures("eight_cores")
class TestCores:
    @pytest.mark.parametrize(("processes", "expected"), [(1, 8), (2, 4), (3, 2), (16, 1)])
    def test_a_whole_machine_is_shared(
        self, monkeypatch: pytest.MonkeyPatch, processes: int, expected: int
    ) -> None:
        monkeypatch.setenv(PROCESSES_VARIABLE, str(processes))
        assert cores() == expected

    def test_a_process_that_is_bound_to_some_has_its_share_already(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(PROCESSES_VARIABLE, "4")
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3}, raising=False)
        assert cores() == 2

    def test_where_the_system_does_not_tell(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(os, "sched_getaffinity")
        monkeypatch.setenv(PROCESSES_VARIABLE, "2")
        assert cores() == 4
        monkeypatch.setattr(os, "cpu_count", lambda: None)
        assert cores() == 1


def test_memory_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROCESSES_VARIABLE, raising=False)
    alone = available_memory()
    if alone is None:
        pytest.skip("the system does not tell its memory")
    monkeypatch.setenv(PROCESSES_VARIABLE, "1000")
    shared = available_memory()
    assert shared is not None
    assert 0 < shared < alone / 100
