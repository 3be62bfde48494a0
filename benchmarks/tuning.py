"""What moves the number: short runs of a recipe with one thing changed, scored on validation.

    python benchmarks/tuning.py benchmarks/tuning-fc100.toml --epochs 40 --side-by-side 4

A TOML file names the recipe, the settings that all runs share (``[base]``) and the variations.
Each run is trained on the train classes and scored on the validation classes only, by few-shot
accuracy under several transforms of the features, strengths C and crops of the images; the test
classes are not looked at. With ``score = "held-out"`` in the file, which is for methods that learn
without labels, the score is what a linear classifier and a nearest-neighbour vote, with the labels
of nine tenths of the training images, say of every tenth; the test images are not looked at.

One line of JSON a run is added to ``--out``; a variation that has a line for these epochs, this
seed and this score, and the same settings, is not run again.

With ``--encoders`` a folder keeps the encoder of each run.

Several runs side by side share one GPU; under NVIDIA's multi-process service they take the time of
fewer. A run that would not end within ``--minutes``, going by the slowest so far, is not begun.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eigenshot.config import Config, flatten
from eigenshot.configfile import load_config
from eigenshot.data.opening import open_source
from eigenshot.encoder import Encoder
from eigenshot.errors import UserError
from eigenshot.evaluation.fewshot import evaluate_fewshot
from eigenshot.evaluation.knn import knn_accuracy
from eigenshot.evaluation.linear import linear_exact
from eigenshot.hardware import choose_device, environment
from eigenshot.methods import learns_from_labels
from eigenshot.reproduction.curves import curve_of
from eigenshot.training.pretrain import pretrain
from eigenshot.training.runfolder import RunFolder

_SETTINGS = [(transform, C) for transform in ("l2", "centre", "power") for C in (1.0, 10.0)]
_SHOTS = (1, 5)
_EPISODES = 2000
_BASE_IMAGES = 4000  # training images whose mean is taken off by "centre"
_STRENGTHS = (1.0, 10.0)  # of the linear classifier
Scores = dict[str, dict[str, float]]


def configured(table: dict[str, Any], name: str, *, epochs: int, seed: int, compile: str) -> Config:
    """The settings of one variation."""
    changes = {**flatten(table.get("base", {})), **flatten(table["variations"][name])}
    return load_config(
        table["recipe"],
        {
            **changes,
            "training.epochs": epochs,
            "training.seed": seed,
            "checkpoint.every_minutes": 0.0,
            "engine.compile": compile,
        },
    )


def fewshot_scores(encoder: Encoder, data: str, device: str) -> Scores:
    """Validation accuracy in percent by shots and ``transform C``, of whole images and of crops."""
    size, channels = encoder.preprocessing.image_size, encoder.preprocessing.channels
    train, validation = (
        open_source(data, split=split, image_size=size, channels=channels)
        for split in ("train", "validation")
    )
    some = train.images(np.arange(0, len(train), max(1, len(train) // _BASE_IMAGES)))
    assert validation.labels is not None
    found: dict[str, dict[str, float]] = {str(shots): {} for shots in _SHOTS}
    for crops, suffix in (("whole", ""), ("ten", " ten")):
        cropped = encoder.with_crops(crops)  # type: ignore[arg-type]
        base_mean = cropped.transform(some, device=device).mean(axis=0)
        features = cropped.transform(validation, device=device)
        for shots, (transform, C) in product(_SHOTS, _SETTINGS):
            result = evaluate_fewshot(
                features,
                validation.labels,
                shots=shots,
                episodes=_EPISODES,
                C=C,
                transform=transform,  # type: ignore[arg-type]
                base_mean=base_mean,
                device=device,
                class_names=validation.class_names,
            )
            found[str(shots)][f"{transform} {C:g}{suffix}"] = round(result.accuracy, 2)
    return found


def held_out_scores(encoder: Encoder, data: str, device: str) -> Scores:
    """Accuracy in percent on every tenth training image, by classifiers that know the others."""
    size, channels = encoder.preprocessing.image_size, encoder.preprocessing.channels
    train = open_source(data, split="train", image_size=size, channels=channels)
    assert train.labels is not None
    features = encoder.transform(train, device=device)
    held = np.arange(len(train)) % 10 == 9
    split = (features[~held], train.labels[~held], features[held], train.labels[held])
    linear = {
        f"C {C:g}": linear_exact(*split, C=C, tol=1e-4, device=device).accuracy for C in _STRENGTHS
    }
    found = {"linear": linear, "knn": {"200": knn_accuracy(*split, device=device)}}
    return {name: {k: round(v, 2) for k, v in values.items()} for name, values in found.items()}


SCORES = {"fewshot": fewshot_scores, "held-out": held_out_scores}


def score_of(table: dict[str, Any]) -> str:
    """The kind of score that the file asks for."""
    return str(table.get("score", "fewshot"))


def measure(table: dict[str, Any], name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train and score one variation."""
    config = configured(
        table, name, epochs=options.epochs, seed=options.seed, compile=options.compile
    )
    device = choose_device("auto")
    with tempfile.TemporaryDirectory() as folder:
        run = pretrain(table["data"], config, Path(folder) / "run", device=device)
        curve = curve_of(RunFolder(run.folder).metrics())
    if options.encoders is not None:
        options.encoders.mkdir(parents=True, exist_ok=True)
        file = f"{name.replace(' ', '-')}-{options.epochs}ep-seed{options.seed}.safetensors"
        run.encoder.save(options.encoders / file)
    final = run.summary["final"]
    return {
        "name": name,
        "base": flatten(table.get("base", {})),
        "settings": flatten(table["variations"][name]),
        "epochs": options.epochs,
        "seed": options.seed,
        "side_by_side": options.side_by_side,
        "seconds": run.summary["seconds"],
        "final": {key: float(f"{value:.6g}") for key, value in final.items()},
        "curve": curve,
        "score": score_of(table),
        "validation": SCORES[score_of(table)](run.encoder, table["data"], device),
        **environment(torch.device(device)),
    }


def done(table: dict[str, Any], options: argparse.Namespace) -> set[str]:
    """The variations that have a line, with the settings that they have now."""
    if not options.out.exists():
        return set()
    lines = [json.loads(line) for line in options.out.read_text(encoding="utf-8").splitlines()]
    known = table["variations"]
    return {
        line["name"]
        for line in lines
        if (line["epochs"], line["seed"]) == (options.epochs, options.seed)
        and line["name"] in known
        and line.get("score", "fewshot") == score_of(table)
        and line["settings"] == flatten(known[line["name"]])
        and line["base"] == flatten(table.get("base", {}))
    }


def work(table: dict[str, Any], names: list[str], options: argparse.Namespace) -> None:
    """Measure ``names`` one after the other, as far as the minutes go."""
    began, slowest = time.monotonic(), 0.0
    for name in names:
        start = time.monotonic()
        if options.minutes and start - began + slowest > 60 * options.minutes:
            print(f"{name}: no time left", flush=True)
            continue
        line = json.dumps(measure(table, name, options)) + "\n"
        with options.out.open("a", encoding="utf-8") as file:  # one write: others add lines too
            file.write(line)
        slowest = max(slowest, time.monotonic() - start)
        print(f"{name}: {_in_words(json.loads(line)['validation'])}", flush=True)


def _in_words(found: Scores) -> str:
    """The first score of each kind."""
    kinds = {"1": "1 shot", "5": "5 shots"}
    firsts = (
        (kinds.get(kind, kind), next(iter(values.values()))) for kind, values in found.items()
    )
    return ", ".join(f"{kind} {value}" for kind, value in firsts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0.0, help="0: no limit")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--compile", default="auto", choices=("auto", "on", "off"))
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--encoders", type=Path, help="a folder in which encoders are kept")
    parser.add_argument("--share", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    table = tomllib.loads(options.table.read_text(encoding="utf-8"))
    options.out = options.out or Path("results") / table["data"] / f"{options.table.stem}.jsonl"
    options.out.parent.mkdir(parents=True, exist_ok=True)
    names = options.only or list(table["variations"])
    try:
        for name in names:  # what cannot be is said before anything is trained
            if name not in table["variations"]:
                raise UserError(f"no variation '{name}' in {options.table}")
            config = configured(table, name, epochs=options.epochs, seed=0, compile="off")
            if score_of(table) == "held-out" and learns_from_labels(config.method.name):
                raise UserError(f"'{name}' learns from the labels that are held out")
        if score_of(table) not in SCORES:
            raise UserError(f"unknown score '{score_of(table)}'; known: {', '.join(SCORES)}")
    except UserError as error:
        parser.error(str(error))
    if options.share is None and options.side_by_side > 1:
        shares = range(options.side_by_side)
        command = [sys.executable, *sys.argv]
        started = [subprocess.Popen([*command, "--share", str(k)], env=os.environ) for k in shares]
        sys.exit(max(process.wait() for process in started))
    left = [name for name in names if name not in done(table, options)]
    work(table, left[options.share or 0 :: options.side_by_side], options)


if __name__ == "__main__":
    main()
