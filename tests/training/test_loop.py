"""Processes go on from one checkpoint together, or none of them does."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from eigenshot.collective import rank
from eigenshot.config import Config
from eigenshot.configfile import load_config
from eigenshot.data.source import ArraySource
from eigenshot.errors import UserError
from eigenshot.reporter import Reporter
from eigenshot.training.choices import resolve_batch, resolve_size
from eigenshot.training.loop import train
from eigenshot.training.pretrain import pretrain
from eigenshot.training.runfolder import RunFolder
from eigenshot.training.setup import build
from tests.test_collective import Results, on_two_ranks


def settings(epochs: int) -> Config:
    return load_config(
        "glyphs",
        {
            "training.epochs": epochs,
            "training.batch_size": 8,
            "backbone.options.widths": [4, 4, 4, 8],
            "projector.width": 16,
            "probe.kind": "none",
        },
    )


def images() -> ArraySource:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 28, 28), dtype=np.uint8)
    return ArraySource.from_array(pixels)


def broadcast(value: Any) -> Any:
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def going_on(folder: Path) -> str:
    """What keeps this process, whose folder has its number as its name, from going on."""
    fabric = SimpleNamespace(device=torch.device("cpu"), broadcast=broadcast, world_size=2)
    source = images()
    config = resolve_batch(resolve_size(settings(4), source, "cpu"), source, "cpu", 2)
    parts = build(config, source, "cpu", fabric=fabric)
    try:
        train(parts, RunFolder(folder / str(rank())), None, Reporter(), going_on=True)
    except UserError as error:
        return str(error)
    return "nothing"


def on_rank(folder: Path) -> Results:
    return {name: going_on(folder / name) for name in ("other", "damaged")}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    folder = tmp_path_factory.mktemp("ranks")
    for number in range(2):
        pretrain(images(), settings(number + 1), folder / "other" / str(number), device="cpu")
    shutil.copytree(folder / "other", folder / "damaged")
    damaged = RunFolder(folder / "damaged" / "1").last
    damaged.write_bytes(damaged.read_bytes()[:-8])
    return on_two_ranks(on_rank, folder, folder)


def test_another_checkpoint_stops_all(results: list[Results]) -> None:
    for found in results:
        assert "the processes see different checkpoints" in found["other"]


def test_what_one_cannot_read_stops_all(results: list[Results]) -> None:
    assert results[0]["damaged"].startswith("process 1 cannot go on: ")
    assert "Deleting the file starts the run afresh" in results[1]["damaged"]
