"""Whether what a run is to be measured on will do, said before hours are spent on training."""

from __future__ import annotations

import re

import numpy as np

from eigenshot.data.naming import (
    choose_split,
    is_npz,
    label_advice,
    open_named,
    splits_of,
)
from eigenshot.data.opening import open_source
from eigenshot.data.source import Source
from eigenshot.data.tables.encoded import Encoded
from eigenshot.errors import UserError
from eigenshot.evaluation.episodes import draw_episodes
from eigenshot.methods import learns_from_labels
from eigenshot.reproduction.plan import PlannedRun

# Options of other commands, and what stands for them here.
_HERE = {
    r"(?<!\S)--out\b": "--runs",
    r"(?<!\S)--(ways|queries) (\d+)": r"--set evaluation.\1=\2",
    r"\(--queries\)": "(--set evaluation.queries=…)",
    r"(?<!\S)--batch-size (\d+)": r"--set training.batch_size=\1",
}


def in_words_of_reproduce(text: str) -> str:
    """A sentence of another command with the options that this one has."""
    for pattern, instead in _HERE.items():
        text = re.sub(pattern, instead, text)
    return text


def check_measurable(run: PlannedRun) -> None:
    """A UserError where the encoder of ``run`` could not be measured as its part asks.

    Labels alone are looked at; no picture is decoded. Data that are not here are no concern of it.
    """
    part, settings = run.part, run.config.evaluation
    if learns_from_labels(run.row.method) and _same_images(part.evaluate, part.data):
        raise UserError(
            f"'{run.row.name}' would learn the labels of the very images that it is tested on; "
            "give 'evaluate' other classes"
        )
    tested, names = _labels(run, part.evaluate, "test")
    if part.measure == "linear":
        _labels(run, part.train, "train")
        _refuse_same(part.train, part.evaluate, "'train' and 'evaluate'", "images")
        return
    for shots in part.shots:
        draw_episodes(
            tested,
            ways=settings.ways,
            shots=shots,
            queries=settings.queries,
            episodes=1,
            seed=settings.seed,
            class_names=names,
        )
    if settings.select:
        _labels(run, part.data, "validation")
        _refuse_same(part.data, part.evaluate, "evaluation.select and 'evaluate'", "classes")


def _same_images(one: str, other: str) -> bool:
    """Whether two names stand for one set of images, which is not divided."""
    return one == other and not splits_of(one)


def _refuse_same(one: str, other: str, which: str, what: str) -> None:
    if _same_images(one, other):
        raise UserError(
            f"{which} have the same images, '{one}', which would flatter the result; "
            f"give 'evaluate' other {what}"
        )


def _labels(run: PlannedRun, data: str, default: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """The known labels of ``data``, ``(N,)``, and the names of the classes."""
    split = choose_split(data, default)
    table: Source | Encoded
    if data == "glyphs" or is_npz(data):
        table = open_source(data, image_size=None, channels=run.config.data.channels, split=split)
    else:
        table = open_named(data, split)
    if table.labels is None:
        raise UserError(f"'{table.name}' has no labels; evaluation needs {label_advice(data)}")
    return table.labels[table.labels >= 0], table.class_names
