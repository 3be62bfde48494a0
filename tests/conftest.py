"""What all tests share: one thread, a cache of their own, and the reasons for skipping."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

# Tensors here are too small to be worth a second thread, and beside other work on the machine
# threads that wait for one another at every operation make a test ten times as long.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # of the processes that tests start

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reasons = {
        "slow": None if os.environ.get("EIGENSHOT_SLOW") else "slow: set EIGENSHOT_SLOW=1",
        "gpu": None if torch.cuda.is_available() else "needs a CUDA device",
        "realdata": None if os.environ.get("EIGENSHOT_DATA") else "needs EIGENSHOT_DATA",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tests neither use nor fill the user's cache; child processes inherit theirs."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EIGENSHOT_CACHE", str(folder))
        yield folder


@pytest.fixture
def deny(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Takes all rights to a file or folder away; root, as whom tests may run, has them always."""

    def without_rights(place: Path) -> None:
        def guarded(original: Any, itself: bool) -> Any:
            def ask(path: Any, *arguments: Any, **options: Any) -> Any:
                if place in Path(path).parents or (itself and Path(path) == place):
                    raise PermissionError(13, "Permission denied", os.fspath(path))
                return original(path, *arguments, **options)

            return ask

        monkeypatch.setattr(Path, "stat", guarded(Path.stat, itself=False))
        monkeypatch.setattr(Path, "open", guarded(Path.open, itself=True))
        monkeypatch.setattr(os, "scandir", guarded(os.scandir, itself=True))

    return without_rights
