"""The part of a run before its rate falls, in epochs, and what its views do until then."""

from __future__ import annotations

from eigenshot.config import Config

EXACT = 1e-9  # of an epoch


def _warmup_epochs(config: Config) -> float:
    return min(config.optimizer.warmup_epochs, config.training.epochs / 2)


def plateau_epochs(config: Config) -> float:
    """Epochs until the rate of a trapezoid falls."""
    return max(_warmup_epochs(config), config.training.epochs * (1 - config.optimizer.cooldown))


def size_changes(config: Config, *, until: float) -> list[tuple[float, int]]:
    """Epochs before ``until`` from which on views have another side, and that side."""
    epochs = config.training.epochs
    stages = [(share * epochs, side) for share, side in config.training.resolution]
    return [(round(epoch, 8), side) for epoch, side in stages if epoch < until - EXACT]


def sizes_in_words(changes: list[tuple[float, int]]) -> str:
    """What `size_changes` returned, for a person."""
    texts = [f"{side} px from epoch {epoch:g} on" for epoch, side in changes]
    return ", ".join(texts) or "the images' own size"


def stretched(old: Config, new: Config) -> tuple[tuple[float, int], ...]:
    """The sizes of the views of ``old``, in shares of a run with the length of ``new``."""
    ratio = old.training.epochs / new.training.epochs
    falls, falls_now = (plateau_epochs(each) / each.training.epochs for each in (old, new))
    stages = []
    for share, side in old.training.resolution:
        if share < falls - EXACT:
            moved = share * ratio
        else:
            along = (share - falls) / (1 - falls)
            moved = falls_now + along * (1 - falls_now)
        stages.append((round(moved, 12), side))
    return tuple(stage for stage in stages if stage[0] < 1)  # none where nothing falls any more
