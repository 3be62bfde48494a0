"""What the commands share."""

from __future__ import annotations

import os
import sys

DATA_HELP = (
    "A folder of images, a benchmark (see 'eigenshot data list'), a folder or file of parquet "
    "shards, a hub repository owner/name, or an .npz file."
)


def find_own_code(*names: str | None) -> None:
    """Let ``package.module:Name`` be found beside the user; what is installed still comes first."""
    if any(name is not None and ":" in name for name in names):
        sys.path.append(os.getcwd())
