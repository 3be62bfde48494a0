"""Whether what a run is to be measured on will do, said before hours are spent on training."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from eigenshot.data.labelled import known_rows
from eigenshot.data.naming import (
    choose_split,
    is_here,
    pretraining_split,
    require_labels,
)
from eigenshot.errors import UserError
from eigenshot.evaluation.episodes import check_episodes
from eigenshot.evaluation.tables import aligned_labels
from eigenshot.methods import learns_from_labels
from eigenshot.reproduction.images import open_kept
from eigenshot.reproduction.plan import PlannedRun

# Options of other commands, and what stands for them here; the longer ones first.
_HERE = {
    r"or start anew without --lengthen": "or choose another --runs",
    r"name that run again with --lengthen": "remove its folder to begin anew",
    r"--select-on and --data are": "evaluation.select and 'evaluate' have",
    r"--train and --test are": "'train' and 'evaluate' have",
    r"(?<!\S)--resume goes on": "the same command goes on",
    r"(?<!\S)--force replaces": "'eigenshot data fetch' with --force replaces",
    r"(?<!\S)--out\b": "--runs",
    r"(?<!\S)--shots (\d+) --queries (\d+)": r"\1 shots and --queries \2",
    r"(?<!\S)--(ways|queries) (\d+)": r"--set evaluation.\1=\2",
    r"\(--queries\)": "(--set evaluation.queries=…)",
    r"(?<!\S)--batch-size (\d+)": r"--set training.batch_size=\1",
    r"(?<!\S)--batch-size\b": "training.batch_size",
    r"(?<!\S)--backbone\b": "backbone.name",
}


def in_words_of_reproduce(text: str) -> str:
    """A sentence of another command with the options that this one has."""
    for pattern, instead in _HERE.items():
        text = re.sub(pattern, instead, text)
    return text


def check_measurable(run: PlannedRun) -> None:
    """A UserError where the encoder of ``run`` could not be measured as its part asks.

    Labels alone are looked at; no picture of a folder or shard is decoded, and nothing is fetched:
    where data are not here yet, nothing is said.
    """
    part, settings = run.part, run.config.evaluation
    if not all(is_here(data) for data in (part.data, part.evaluate, part.train)):
        return
    tested = _labelled(part.evaluate, "test")
    learned = (part.data, pretraining_split(part.data))
    if learns_from_labels(run.row.method) and _same(learned, (part.evaluate, tested.split)):
        raise UserError(
            f"'{run.row.name}' would learn the labels of the very images that it is tested on; "
            "give 'evaluate' other classes"
        )
    if part.measure == "linear":
        known = _labelled(part.train, "train")
        _refuse_same(known, tested, "'train' and 'evaluate'", "images")
        aligned_labels(known, tested)
        return
    tasks: dict[str, Any] = {
        "ways": settings.ways,
        "shots": part.shots,
        "queries": settings.queries,
    }
    check_episodes(tested.labels, **tasks, class_names=tested.class_names)
    if settings.select:
        chosen = _labelled(part.data, "validation")
        _refuse_same(chosen, tested, "evaluation.select and 'evaluate'", "classes")
        check_episodes(chosen.labels, **tasks, class_names=chosen.class_names)


@dataclass(frozen=True)
class _Labelled:
    """The known labels of data: ``labels`` is int64 ``(N,)``."""

    data: str
    split: str | None
    name: str
    labels: np.ndarray
    class_names: tuple[str, ...]


def _same(one: tuple[str, str | None], other: tuple[str, str | None]) -> bool:
    """Whether two names, each with its split, stand for one set of images."""
    names = [os.path.normpath(data) for data, _ in (one, other)]
    return names[0] == names[1] and one[1] == other[1]


def _refuse_same(one: _Labelled, other: _Labelled, which: str, what: str) -> None:
    if _same((one.data, one.split), (other.data, other.split)):
        raise UserError(
            f"{which} have the same images, '{one.data}', which would flatter the result; "
            f"give 'evaluate' other {what}"
        )


def _labelled(data: str, default: str) -> _Labelled:
    split = choose_split(data, default)
    table = open_kept(data, split)
    labels = require_labels(table, data)
    known = labels[known_rows(table, labels)]
    return _Labelled(data, split, table.name, known, table.class_names)
