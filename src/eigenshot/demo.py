"""The whole story on embedded data: learn from unlabelled characters, read unseen ones."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from eigenshot.config import Config
from eigenshot.configfile import load_config
from eigenshot.data.glyphs import load_glyphs
from eigenshot.data.source import ArraySource
from eigenshot.errors import UserError
from eigenshot.evaluation.classifiers import logistic
from eigenshot.evaluation.episodes import draw_episodes
from eigenshot.evaluation.fewshot import FewShotResult, evaluate_fewshot
from eigenshot.evaluation.tables import unit_length
from eigenshot.files import write_json
from eigenshot.hardware import choose_device
from eigenshot.reporter import ConsoleReporter
from eigenshot.reports.demo_picture import Example, draw_demo
from eigenshot.training.choices import resolve_batch
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from eigenshot.training.setup import build

SHOTS = (1, 5)
NAMES = {"pixels": "raw pixels", "untrained": "untrained network", "learned": "learned encoder"}


@dataclass(frozen=True)
class DemoResult:
    """Accuracies in percent of ``"pixels"``, ``"untrained"`` and ``"learned"``, by shots."""

    results: dict[str, dict[int, FewShotResult]]
    seconds: float

    def table(self) -> str:
        """The accuracies as text."""
        lines = ["5-way accuracy on unseen characters      1 example      5 examples"]
        for key, name in NAMES.items():
            cells = "   ".join(f"{self.results[key][shots]!s:>14}" for shots in SHOTS)
            lines.append(f"  {name:<32}{cells}")
        return "\n".join(lines)


def run_demo(
    out: str | Path,
    *,
    seed: int = 0,
    device: str = "auto",
    episodes: int = 1000,
    settings: dict[str, Any] | None = None,
    console: Console | None = None,
) -> DemoResult:
    """Learn from the train characters, measure on the test characters, write json and png.

    Parameters
    ----------
    out : folder for ``demo.json``, ``demo.png`` and the run itself. An unfinished run there is
        gone on with, a finished one is not learned again.
    settings : overrides of the recipe ``glyphs``.
    """
    out = Path(out).expanduser()
    console = console or Console(stderr=True, quiet=True)
    began = time.perf_counter()
    if out.exists() and not out.is_dir():
        raise UserError(f"'{out}' is a file; --out needs a folder")
    config = load_config("glyphs", {"training.seed": seed, **(settings or {})})
    chosen = choose_device(device)
    reporter = ConsoleReporter(console, config.training.epochs)
    reporter.note("drawing characters from matplotlib's fonts")
    test = load_glyphs("test", seed=config.data.seed)
    reporter.note("learning without labels; the test characters are not among these")
    before_learning = time.perf_counter() - began
    try:
        run = pretrain(
            "glyphs",
            config,
            out / "run",
            resume=(out / "run").exists(),
            device=device,
            reporter=reporter,
        )
    except Interrupted:
        raise Interrupted("the same command goes on from here") from None
    learned = time.perf_counter()
    reporter.note(f"reading {len(test.class_names)} unseen characters, {episodes} tasks each")
    features = {
        "pixels": test.pixels.reshape(len(test), -1).numpy() / 255.0,
        "untrained": _untrained_features(config, test, device),
        "learned": run.encoder.transform(test, device=chosen),
    }
    labels = test.labels if test.labels is not None else np.empty(0)
    results = {
        key: {
            shots: evaluate_fewshot(table, labels, shots=shots, episodes=episodes)
            for shots in SHOTS
        }
        for key, table in features.items()
    }
    draw_demo(out / "demo.png", _example(test, labels, features), results, NAMES)
    # A run that was there already counts with the time it took then.
    ended = time.perf_counter()
    beside_learning = before_learning + ended - learned
    seconds = max(ended - began, float(run.summary["seconds"]) + beside_learning)
    write_json(
        out / "demo.json",
        {
            **{
                key: {str(shots): result.summary() for shots, result in by_shots.items()}
                for key, by_shots in results.items()
            },
            "seconds": round(seconds, 1),
            "benchmark": "glyphs",
            "method": config.method.name,
            "split": "test",
            "classes": len(test.class_names),
            **{
                key: value for key, value in run.summary.items() if key not in ("seconds", "method")
            },
            "config": run.encoder.provenance["config"],
        },
    )
    return DemoResult(results, seconds)


def _untrained_features(config: Config, test: ArraySource, device: str) -> np.ndarray:
    """Features of the network with the weights that the run started from."""
    train = load_glyphs("train", per_class=config.data.per_class, seed=config.data.seed)
    chosen = choose_device(device)
    with torch.random.fork_rng():
        parts = build(resolve_batch(config, train, chosen), train, chosen)
    return parts.encoder.transform(test, device=parts.fabric.device)


def _example(test: ArraySource, labels: np.ndarray, features: dict[str, np.ndarray]) -> Example:
    """One task to look at, the first of its seed, with what each representation makes of it."""
    task = draw_episodes(labels, ways=5, shots=1, queries=7, episodes=1, seed=1)
    support, query = task.support[0], task.query[0]
    return Example(
        support=test.pixels[support.ravel(), 0].numpy(),
        query=test.pixels[query.ravel(), 0].numpy().reshape(*query.shape, *test.shape[1:]),
        predictions={
            key: _answers(unit_length(table), support, query) for key, table in features.items()
        },
    )


def _answers(features: np.ndarray, support: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Predicted class of every query of one task, ``(ways, queries)``."""
    table = torch.from_numpy(features)
    labels = torch.arange(len(support)).repeat_interleave(support.shape[1])
    scores = logistic(table[support.ravel()][None], labels, table[query.ravel()][None])
    answers: np.ndarray = scores[0].argmax(dim=1).numpy().reshape(query.shape)
    return answers
