"""What the commands share."""

from __future__ import annotations

import os
import sys


def find_own_code(*names: str | None) -> None:
    """Let ``package.module:Name`` be found beside the user; what is installed still comes first."""
    if any(name is not None and ":" in name for name in names):
        sys.path.append(os.getcwd())
