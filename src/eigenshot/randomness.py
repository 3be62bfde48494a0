"""Random numbers as a function of a seed and a place, not of what was drawn before.

Every draw of a run comes from a generator made for its purpose and its step. Nothing has to be
remembered between steps, so a run resumed in the middle of an epoch draws exactly what the
unbroken run drew.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch


def derive_seed(seed: int, *place: int | str) -> int:
    """A 63-bit seed for one place in a run, e.g. ``derive_seed(0, "augment", 1200)``."""
    text = "/".join([str(seed), *(str(part) for part in place)])
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def torch_generator(
    seed: int, *place: int | str, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A torch generator for one place, on ``device``."""
    generator = torch.Generator(device=device)
    generator.manual_seed(derive_seed(seed, *place))
    return generator


def numpy_generator(seed: int, *place: int | str) -> np.random.Generator:
    """A NumPy generator for one place; the same stream on every platform."""
    return np.random.Generator(np.random.PCG64(derive_seed(seed, *place)))
