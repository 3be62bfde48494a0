"""What a run runs on: the device, and the record of versions, hardware and commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eigenshot.errors import UserError


def choose_device(name: str) -> str:
    """``"auto"`` is CUDA where there is one, else the CPU."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name not in ("cpu", "cuda"):
        raise UserError(f"unknown device '{name}'; known: auto, cpu, cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device is available here; use --device cpu")
    return name


def package_version() -> str:
    """Version of eigenshot, also from a source tree that is not installed."""
    try:
        return version("eigenshot")
    except PackageNotFoundError:
        return "source"


def environment(device: torch.device) -> dict[str, Any]:
    """What a result needs to be understood later: versions, hardware, commit."""
    return {
        "versions": {
            "eigenshot": package_version(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "hardware": _hardware(device),
        "commit": _commit(),
    }


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads"


def _commit() -> str | None:
    """Commit of the source tree that is running, where it is one.

    ``$EIGENSHOT_COMMIT`` says it for a copy that has lost its history.
    """
    if stated := os.environ.get("EIGENSHOT_COMMIT"):
        return stated
    folder = Path(__file__).parent
    try:
        run = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None
