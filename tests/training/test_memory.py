"""A step for which memory does not suffice is refused with advice, and leaves nothing behind."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eigenshot.configfile import load_config
from eigenshot.errors import UserError
from eigenshot.hardware import is_out_of_memory
from eigenshot.methods import Method
from eigenshot.training.pretrain import pretrain
from tests.training.test_pretrain import TINY


class Large(Method):
    """Asks for more memory than there is."""

    def forward(self, view_a: Tensor, view_b: Tensor) -> dict[str, Tensor]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {},
            "cpu has too little memory for batches of 128 images of 28×28 at once. What takes "
            "less: --set training.micro_batches=2, the same batch in parts, a --batch-size under "
            "128, or a smaller --backbone",
        ),
        ({"training.micro_batches": 4}, "of 28×28 in 4 parts. What .*micro_batches=8, the same"),
        ({"training.batch_size": 127}, "What takes less: a --batch-size under 127, or a smaller"),
        (
            {"training.resolution": [[0, 28], [0.5, 40]]},
            "of 40×40 at once. What takes less: smaller sides in training.resolution, --set",
        ),
    ],
)
def test_advice(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    own = {"method.name": "tests.training.test_memory:Large", "method.options": {}}
    config = load_config("glyphs", {**TINY, **own, **settings})
    with pytest.raises(UserError, match=said):
        pretrain("glyphs", config, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_every_device_s_own_words() -> None:
    words = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 3 bytes."
    assert is_out_of_memory(RuntimeError(words))
    assert is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA ran out"))
    assert is_out_of_memory(OSError(errno.ENOMEM, "Cannot allocate memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


@pytest.mark.parametrize(
    "error",
    [
        ImportError("libgomp.so.1: cannot allocate memory in static TLS block"),
        FileNotFoundError(errno.ENOENT, "No such file or directory", "talks/out of memory.npz"),
        OSError(errno.ENOSPC, "No space left on device", "out of memory"),
        KeyError("out of memory"),
    ],
)
def test_words_alone_do_not_tell_of_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)
