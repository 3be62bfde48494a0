"""What a run runs on: the device, its precision, the record of versions, hardware and commit."""

from __future__ import annotations

import errno
import os
import platform
import re
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from eigenshot.errors import UserError

Precision: TypeAlias = Literal["auto", "float32", "bf16"]


def choose_device(name: str) -> str:
    """``"auto"`` is CUDA where there is one, else the CPU; Apple's ``"mps"`` is to be asked for."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda", "mps"):
        raise UserError(f"unknown device '{name}'; known: auto, cpu, cuda, mps")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": _mps_is_available()}
    if not available[name]:
        raise UserError(f"no {name.upper()} device is available here; use --device cpu")
    return name


def _mps_is_available() -> bool:
    return torch.backends.mps.is_available()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether ``error`` says that memory ran out; on a CPU and on MPS only torch's words tell.

    Those of other errors may be the name of a file, or speak of other memory.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    words = re.search(r"can(no|')t allocate memory|out of memory", str(error), re.I)
    return isinstance(error, RuntimeError) and words is not None


def widest_float(device: torch.device | str) -> torch.dtype:
    """The most precise type that ``device`` has: float64, but on Apple's GPUs float32."""
    return torch.float32 if torch.device(device).type == "mps" else torch.float64


def exact_device(device: str) -> str:
    """Where work in float64 is done for features that are made on ``device``."""
    return device if widest_float(device) == torch.float64 else "cpu"


def resolve_precision(precision: Precision, device_type: str) -> Precision:
    """``"auto"`` is bf16 on a CUDA device that computes in it, else float32.

    bf16 is refused elsewhere: a CPU without it may end the process.
    """
    if precision not in ("auto", "float32", "bf16"):
        raise UserError(f"unknown precision '{precision}'; known: auto, float32, bf16")
    if precision == "float32":
        return precision
    if device_type == "cuda" and _cuda_computes_in_bf16():
        return "bf16"
    if precision == "bf16":
        found = "one that does not" if device_type == "cuda" else f"the device '{device_type}'"
        raise UserError(
            f"the precision bf16 needs a GPU that computes in it, found {found}; use the precision "
            "float32 or auto"
        )
    return "float32"


def _cuda_computes_in_bf16() -> bool:
    """Whether the device has bf16 itself; emulated it is slower than float32."""
    try:
        return torch.cuda.is_bf16_supported(including_emulation=False)
    except TypeError:  # an older torch, which counts no emulation
        return torch.cuda.is_bf16_supported()


def package_version() -> str:
    """Version of eigenshot, also from a source tree that is not installed."""
    try:
        return version("eigenshot")
    except PackageNotFoundError:
        return "source"


def device_time(device: torch.device) -> float:
    """Seconds on a running clock, once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
    return time.perf_counter()


def environment(device: torch.device) -> dict[str, Any]:
    """What a result needs to be understood later: versions, hardware, commit."""
    return {
        "versions": {
            "eigenshot": package_version(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "hardware": hardware_name(device),
        "commit": _commit(),
    }


def hardware_name(device: torch.device | str) -> str:
    """What ``device`` is, as it stands in results."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return f"{platform.processor() or platform.machine()} GPU (MPS)"
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'' if threads == 1 else 's'}"


def _commit() -> str | None:
    """Commit of the source tree that is running, where it is one.

    ``$EIGENSHOT_COMMIT`` says it for a copy that has lost its history.
    """
    if stated := os.environ.get("EIGENSHOT_COMMIT"):
        return stated
    file = Path(__file__)
    # Installed inside a project of the user's, which has a commit of its own, it is not tracked.
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return None
    return _git(file.parent, "describe", "--always", "--dirty", "--abbrev=12")


def _git(folder: Path, *words: str) -> str | None:
    """What git answers in ``folder``; None where it refuses, or is not there."""
    try:
        run = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None
