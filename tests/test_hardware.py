"""The precision that a device works in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import torch

from eigenshot import hardware
from eigenshot.errors import UserError
from eigenshot.hardware import choose_device, exact_device, resolve_precision, widest_float


def gpu(monkeypatch: pytest.MonkeyPatch, *, own: bool) -> None:
    """A GPU that emulates bf16, or computes in it of its ``own``."""
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: own or including_emulation
    )


def test_auto_is_bf16_only_on_a_gpu_that_computes_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_precision("auto", "cpu") == "float32"
    gpu(monkeypatch, own=True)
    assert resolve_precision("auto", "cuda") == "bf16"
    assert resolve_precision("bf16", "cuda") == "bf16"
    assert resolve_precision("float32", "cuda") == "float32"
    gpu(monkeypatch, own=False)
    assert resolve_precision("auto", "cuda") == "float32"


def test_a_torch_that_does_not_tell_of_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert resolve_precision("auto", "cuda") == "bf16"


def test_bf16_is_refused_where_it_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="found the device 'cpu'; use the precision float32"):
        resolve_precision("bf16", "cpu")
    gpu(monkeypatch, own=False)
    with pytest.raises(UserError, match="found one that does not"):
        resolve_precision("bf16", "cuda")


def test_an_unknown_one() -> None:
    with pytest.raises(UserError, match="unknown precision 'half'; known: auto, float32, bf16"):
        resolve_precision("half", "cpu")  # type: ignore[arg-type]


def test_apples_gpu_is_chosen_when_asked_for_and_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device("mps") == "mps"
    assert choose_device("auto") != "mps"
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match="no MPS device is available here; use --device cpu"):
        choose_device("mps")
    with pytest.raises(UserError, match="unknown device 'tpu'; known: auto, cpu, cuda, mps"):
        choose_device("tpu")


def test_work_in_float64_is_done_where_it_can_be() -> None:
    assert widest_float("cuda") == widest_float("cpu") == torch.float64
    assert widest_float("mps") == torch.float32
    assert [exact_device(name) for name in ("cpu", "cuda", "mps")] == ["cpu", "cuda", "cpu"]


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    run = subprocess.run(
        ["git", *own, *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def test_the_commit_is_that_of_the_source_and_of_no_project_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EIGENSHOT_COMMIT", raising=False)
    for name in [name for name in os.environ if name.startswith("GIT_")]:  # as in a hook
        monkeypatch.delenv(name)
    package = tmp_path / "site-packages" / "eigenshot"
    package.mkdir(parents=True)
    installed = package / "hardware.py"
    installed.write_text("")
    monkeypatch.setattr(hardware, "__file__", str(installed))

    def commit() -> str | None:
        found = hardware.environment(torch.device("cpu"))["commit"]
        assert found is None or isinstance(found, str)
        return found

    assert commit() is None
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "--message", "a project of one's own")
    assert commit() is None
    git(tmp_path, "add", "--force", str(installed))
    git(tmp_path, "commit", "--message", "its source")
    assert commit() == git(tmp_path, "rev-parse", "--short=12", "HEAD")
    monkeypatch.setenv("EIGENSHOT_COMMIT", "stated")
    assert commit() == "stated"
