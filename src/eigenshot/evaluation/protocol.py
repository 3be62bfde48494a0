"""The protocols as the command line runs them: an encoder, a data set, a table of results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eigenshot.data.opening import is_benchmark, open_source
from eigenshot.data.source import Source
from eigenshot.encoder import Encoder, load_encoder
from eigenshot.errors import UserError
from eigenshot.evaluation.features import extract_features
from eigenshot.evaluation.fewshot import FewShotResult, evaluate_fewshot
from eigenshot.hardware import choose_device
from eigenshot.reporter import Reporter


def open_labelled(
    data: Any, encoder: Encoder, split: str | None, reporter: Reporter
) -> tuple[Source, Any]:
    """A labelled source in the encoder's own shape, and its labels; test classes by default."""
    source = open_source(
        data,
        image_size=encoder.preprocessing.image_size,
        channels=encoder.preprocessing.channels,
        split=split or ("test" if is_benchmark(data) else None),
        progress=reporter.counting("reading images"),
    )
    if source.labels is None:
        raise UserError(
            f"'{data}' has no labels; evaluation needs a sub-folder a class, "
            "or an .npz file with 'labels'"
        )
    return source, source.labels


def fewshot_of_run(
    run: str | Path,
    data: Any,
    *,
    split: str | None = None,
    ways: int = 5,
    shots: tuple[int, ...] = (1, 5),
    queries: int = 15,
    episodes: int = 1000,
    C: float = 1.0,
    seed: int = 0,
    backbone: str | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
) -> list[FewShotResult]:
    """Few-shot accuracy of the encoder in ``run`` on labelled ``data``, one result a shot."""
    reporter = reporter or Reporter()
    chosen = choose_device(device)
    encoder = load_encoder(run, backbone=backbone)
    source, labels = open_labelled(data, encoder, split, reporter)
    features = extract_features(encoder, source, device=chosen, reporter=reporter)
    return [
        evaluate_fewshot(
            features,
            labels,
            ways=ways,
            shots=count,
            queries=queries,
            episodes=episodes,
            C=C,
            seed=seed,
            class_names=source.class_names,
        )
        for count in shots
    ]
