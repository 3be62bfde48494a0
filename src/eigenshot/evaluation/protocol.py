"""The protocols as the command line runs them: an encoder, a data set, a table of results.

Several processes that evaluate together all call these functions, with the same arguments: they
share out images and episodes, and all return the same result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from eigenshot.data.naming import choose_split, pretraining_split
from eigenshot.data.source import Source
from eigenshot.data.views.views import View
from eigenshot.encoder import Encoder
from eigenshot.errors import UserError, check_at_least, check_positive, check_strength
from eigenshot.evaluation.bench import Bench
from eigenshot.evaluation.classifiers import get_classifier
from eigenshot.evaluation.copies import copies_among
from eigenshot.evaluation.episodes import check_episodes
from eigenshot.evaluation.fewshot import (
    FewShotResult,
    Interval,
    check_interval,
    evaluate_fewshot,
)
from eigenshot.evaluation.knn import KnnResult, knn_accuracy
from eigenshot.evaluation.linear import LinearResult, linear_exact, linear_probe, probe_view
from eigenshot.evaluation.selection import Selected, select_settings
from eigenshot.evaluation.tables import aligned_labels
from eigenshot.evaluation.transforms import Transform, check_transform
from eigenshot.evaluation.views import extract_views, training_view
from eigenshot.hardware import exact_device
from eigenshot.reporter import Reporter


def fewshot_of_run(
    bench: Bench,
    data: Any,
    *,
    split: str | None = None,
    ways: int = 5,
    shots: tuple[int, ...] = (1, 5),
    queries: int = 15,
    episodes: int = 10_000,
    C: float = 1.0,
    seed: int = 0,
    classifier: str = "logistic",
    transform: Transform = "l2",
    base: Any = None,
    support_views: int = 0,
    select_on: Any = None,
    interval: Interval = "normal",
) -> list[tuple[FewShotResult, Selected | None]]:
    """Few-shot accuracy on labelled ``data``, one result a shot; test classes by default.

    Parameters
    ----------
    base : images whose mean feature the transform ``"centre"`` takes away (a benchmark's train
        classes), as a rule those of the training.
    support_views : random views of each support image that join the support.
    select_on : validation images (a benchmark's validation classes): C and transform are chosen
        there, for each number of shots, and used here once.
    """
    get_classifier(classifier, {})
    check_strength(C)
    check_transform(transform)
    check_interval(interval, episodes)
    if transform == "centre" and base is None:
        raise UserError("the transform 'centre' needs --base, the images of the training")
    split = split or choose_split(data, "test", bench.reporter)
    source, labels = bench.open_labelled(data, split, "test")
    tasks: dict[str, Any] = {"ways": ways, "shots": shots, "queries": queries}
    check_at_least(0, seed=seed, support_views=support_views)
    check_episodes(labels, **tasks, class_names=source.class_names)
    if select_on is not None:
        others, other_labels = bench.open_labelled(select_on, None, "validation")
        if others.fingerprint == source.fingerprint:
            raise UserError(
                "--select-on and --data are the same images: settings chosen on what is then "
                "reported would flatter the result; give validation images of other classes"
            )
        check_episodes(other_labels, **tasks, class_names=others.class_names)
    features = bench.features(source)
    base_mean = None
    if base is not None:
        train = bench.open(base, pretraining_split(base, bench.reporter))
        base_mean = bench.features(train).mean(axis=0)
    views = None
    if support_views:
        suited = bench.suited(source)
        views = extract_views(suited, source, support_views, seed=seed, **bench.how)
    common: dict[str, Any] = {
        "ways": ways,
        "queries": queries,
        "seed": seed,
        "classifier": classifier,
        "base_mean": base_mean,
        "device": exact_device(bench.device),
        "together": True,
    }
    if select_on is not None:
        other_features = bench.features(others)
    results = []
    for count in shots:
        selected = None
        if select_on is not None:
            selected = select_settings(
                other_features,
                other_labels,
                shots=count,
                class_names=others.class_names,
                **common,
            )
        result = evaluate_fewshot(
            features,
            labels,
            shots=count,
            episodes=episodes,
            C=selected.C if selected else C,
            transform=selected.transform if selected else transform,
            support_views=views,
            interval=interval,
            class_names=source.class_names,
            **common,
        )
        results.append((result, selected))
    return results


def _open_pair(bench: Bench, train: Any, test: Any) -> tuple[Source, Source]:
    """Images to learn from and others to test on."""
    train_source, _ = bench.open_labelled(train, None, "train")
    test_source, _ = bench.open_labelled(test, None, "test")
    if train_source.fingerprint == test_source.fingerprint:
        raise UserError(
            f"--train and --test are the same images ({train_source.name}): accuracy on what was "
            "learned from says nothing; give other images to test on"
        )
    return train_source, test_source


def linear_of_run(
    bench: Bench,
    train: Any,
    test: Any,
    *,
    exact: bool = False,
    C: float = 1.0,
    epochs: int = 100,
    lr: float = 30.0,
    momentum: float = 0.9,
    seed: int = 0,
) -> LinearResult:
    """Linear evaluation: trained on ``train``, measured on ``test``, both of the same classes."""
    check_strength(C)  # before the features are computed
    train_source, test_source = _open_pair(bench, train, test)
    if exact:
        train_labels, test_labels = aligned_labels(train_source, test_source)
        learned, tested = bench.features(train_source), bench.features(test_source)
        result = linear_exact(
            learned,
            train_labels,
            tested,
            test_labels,
            C=C,
            device=exact_device(bench.device),
            class_names=train_source.class_names,
        )
        copies = _count_copies(tested, learned, bench.reporter)
        return replace(result, details={**result.details, "copies": copies})
    return linear_probe(
        bench.encoder,
        train_source,
        test_source,
        view=_probe_view(bench.encoder),
        epochs=epochs,
        lr=lr,
        momentum=momentum,
        seed=seed,
        progress=bench.reporter.counting("training the linear classifier"),
        **bench.how,
    )


def _probe_view(encoder: Encoder) -> View:
    """Crops and flips, as is customary; the training's own views for what must not be flipped."""
    kind = encoder.provenance.get("config", {}).get("augment", {}).get("kind", "simclr")
    return probe_view(encoder) if kind == "simclr" else training_view(encoder)


def knn_of_run(
    bench: Bench, train: Any, test: Any, *, neighbours: int = 200, temperature: float = 0.1
) -> KnnResult:
    """Accuracy on ``test`` of the weighted vote of the nearest ``train`` images, or of all."""
    check_positive(neighbours=neighbours, temperature=temperature)
    train_source, test_source = _open_pair(bench, train, test)
    train_labels, test_labels = aligned_labels(train_source, test_source)
    learned, tested = bench.features(train_source), bench.features(test_source)
    accuracy = knn_accuracy(
        learned,
        train_labels,
        tested,
        test_labels,
        neighbours=neighbours,
        temperature=temperature,
        device=exact_device(bench.device),
        class_names=train_source.class_names,
    )
    copies = _count_copies(tested, learned, bench.reporter)
    voters = min(neighbours, len(learned))
    if 2 * voters > len(learned):
        bench.reporter.note(
            f"{voters:,} of the {len(learned):,} training images vote on every test image, so that "
            "it is hardly the nearest that decide; fewer do with --neighbours "
            f"{max(1, len(learned) // 10)}"
        )
    return KnnResult(accuracy, voters, temperature, copies)


def _count_copies(tested: np.ndarray, learned: np.ndarray, reporter: Reporter) -> int:
    """How many rows of ``(M, d)`` are copies of rows of ``(N, d)``, which is said if any are."""
    copies = int((copies_among(tested, learned) >= 0).sum())
    if copies:
        reporter.note(
            f"{copies:,} of the {len(tested):,} test images have the very features of a training "
            "image, as copies have: accuracy on what was learned from says little"
        )
    return copies
