"""What the tests of tables share: a command line, and a small table where they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reproduction.miniature import write_miniature
from tests.test_cli import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small table in the folder that one is in."""
    monkeypatch.chdir(tmp_path)
    return write_miniature(tmp_path)
