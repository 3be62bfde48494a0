"""Too little memory for a step, in words that a person can act on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from eigenshot.errors import UserError
from eigenshot.hardware import is_out_of_memory
from eigenshot.training.parts import Parts


@contextlib.contextmanager
def memory_explained(parts: Parts) -> Iterator[None]:
    """Turn a device's refusal to give memory into advice on the settings of ``parts``."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(_advice(parts)) from error


def _advice(parts: Parts) -> str:
    settings = parts.config.training
    batch, pieces = int(settings.batch_size), settings.micro_batches
    side = max((size for _, size in settings.resolution), default=parts.source.shape[1])
    whole = "at once" if pieces == 1 else f"in {pieces} parts"
    ways = [f"a --batch-size under {batch}", "a smaller --backbone"]
    if batch % (2 * pieces) == 0 and batch // (2 * pieces) > 1:
        ways.insert(0, f"--set training.micro_batches={2 * pieces}, the same batch in parts")
    if settings.resolution:
        ways.insert(0, "smaller sides in training.resolution")
    return (
        f"{parts.fabric.device.type} has too little memory for batches of {batch} images of "
        f"{side}×{side} {whole}. What takes less: {', '.join(ways[:-1])}, or {ways[-1]}"
    )
