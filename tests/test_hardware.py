"""The precision that a device works in."""

from __future__ import annotations

import pytest
import torch

from eigenshot.errors import UserError
from eigenshot.hardware import resolve_precision


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
