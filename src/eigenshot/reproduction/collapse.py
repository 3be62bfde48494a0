"""When an encoder counts as collapsed: it tells images apart no better than guessing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eigenshot.training.diagnostics import COLLAPSED_RANK


def collapse(
    effective_rank: float, fewshot: Mapping[str, Mapping[str, Any]], ways: int
) -> str | None:
    """What says that an encoder has collapsed, or None.

    It has if the effective rank of its embedding is below 2, or if its few-shot accuracy lies
    within its 95 % interval of chance, or below it, for every number of shots that was measured.

    Parameters
    ----------
    fewshot : ``{"1": {"accuracy": …, "ci95": …}, …}`` in percent; empty for other measures.
    ways : classes a task, so that chance is ``100 / ways`` percent.
    """
    if effective_rank < COLLAPSED_RANK:
        return f"the effective rank of the embedding is {effective_rank:.2f}"
    chance = 100 / ways
    at_chance = [
        abs(figure["accuracy"] - chance) <= figure["ci95"] or figure["accuracy"] < chance
        for figure in fewshot.values()
    ]
    if at_chance and all(at_chance):
        return f"the accuracy is that of guessing, {chance:g} %"
    return None
