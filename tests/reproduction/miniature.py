"""A table of one's own with tiny networks and few images: every run takes about a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eigenshot.reproduction.results import Result, write_result
from eigenshot.reproduction.table import Table
from eigenshot.reproduction.tablefile import read_table

RECIPE = """
base = "glyphs"
[backbone]
options = { widths = [4, 4, 4, 8] }
[projector]
width = 16
[training]
epochs = 2
batch_size = 32
[evaluation]
episodes = 40
linear_epochs = 1
"""

TABLE = """
title = "A miniature"
compare = "ours"

[[part]]
title = "Shapes, 5-way"
data = "{folder}/train.npz"
evaluate = "{folder}/test.npz"
benchmark = "shapes"
recipe = "tiny.toml"
measure = "fewshot"
shots = [1, 5]

[[row]]
name = "maml"
label = "MAML"
backbone = "Conv4"
supervised = true
paper = ["50.0 ± 0.5", ""]
cannot = "not implemented: meta-learning"

[[row]]
name = "rival"
label = "No mixup"
backbone = "Conv4"
paper = ["30.0", "40.0"]
method = "dle"
settings = {{ method.options.mixup = "none" }}
order = 2

[[row]]
name = "ours"
label = "Ours"
backbone = "Conv4"
paper = ["45.0 ± 0.5", "60.0 ± 0.5"]
method = "dle"
order = 1

[[row]]
name = "short"
label = "Shorter"
backbone = "Conv4"
method = "dle"
settings = {{ "training.epochs" = 1 }}
order = 3
"""


def table_with(found: str, instead: str) -> str:
    """The table with one thing in it replaced, which must be there."""
    assert found in TABLE
    return TABLE.replace(found, instead, 1)


def write_miniature(folder: Path, table: str = TABLE) -> Path:
    """Images, recipe and table; the path of the table."""
    generator = np.random.default_rng(0)
    shapes = generator.integers(0, 256, (6, 28, 28))
    for name in ("train", "test"):
        noisy = shapes[:, None] * 0.6 + generator.normal(60, 40, (6, 20, 28, 28))
        images = noisy.clip(0, 255).astype(np.uint8).reshape(-1, 28, 28)
        np.savez(folder / f"{name}.npz", images=images, labels=np.repeat(np.arange(6), 20))
    (folder / "tiny.toml").write_text(RECIPE)
    path = folder / "mini.toml"
    path.write_text(table.format(folder=folder.as_posix()))
    return path


def miniature(folder: Path) -> Table:
    """The table, read."""
    return read_table(str(write_miniature(folder)))


def made_up(**changes: Any) -> Result:
    """A result that nobody measured."""
    values: dict[str, Any] = {
        "benchmark": "shapes",
        "method": "dle",
        "backbone": "conv4",
        "epochs": 2,
        "seed": 0,
        "commit": "abc",
        "hardware": "a machine",
        "seconds": 12.0,
        "split": "test",
        "classifier": "logistic",
        "transductive": False,
        "config": {},
        "recipe": "tiny",
        "variant": "tiny",
        "row": "mini/ours",
        "effective_rank": 7.0,
        "collapsed": False,
        "images_per_second": 100.0,
        "evaluation_seconds": 1.0,
        "command": "eigenshot reproduce mini.toml",
        "versions": {"eigenshot": "0", "torch": "0"},
        "fewshot": {
            "1": {"accuracy": 44.0, "ci95": 0.5, "episodes": 40},
            "5": {"accuracy": 61.0, "ci95": 0.4, "episodes": 40},
        },
    }
    return Result(**{**values, **changes})


def keep(folder: Path, **changes: Any) -> Path:
    """Write a made-up result."""
    return write_result(folder, made_up(**changes))
