"""Where the cache folder is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from eigenshot.data.cache import (
    CacheUnavailable,
    cache_folder,
    load_cached,
    mebibytes,
    store_cached,
)


def test_the_variable_may_begin_with_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EIGENSHOT_CACHE", "~/kept")
    assert cache_folder() == tmp_path / "kept"
    monkeypatch.delenv("EIGENSHOT_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "eigenshot"


def test_a_user_without_a_home_folder_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("EIGENSHOT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(CacheUnavailable, match=r"no home folder .* set EIGENSHOT_CACHE"):
        cache_folder()
    store_cached("array", np.zeros(3, np.uint8))
    assert load_cached("array") is None


def test_sizes_are_rounded_up() -> None:
    assert [mebibytes(count) for count in (0, 1, 2**20, 2**20 + 0.5, 3e9)] == [
        "0 MiB",
        "1 MiB",
        "1 MiB",
        "2 MiB",
        "2,862 MiB",
    ]
