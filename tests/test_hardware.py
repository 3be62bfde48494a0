"""The precision that a device works in."""

from __future__ import annotations

import pytest
import torch

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
