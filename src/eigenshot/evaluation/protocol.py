"""The protocols as the command line runs them: an encoder, a data set, a table of results.

Several processes that evaluate together all call these functions, with the same arguments: they
share out images and episodes, and all return the same result.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eigenshot.data.labelled import with_known_labels
from eigenshot.data.naming import choose_split, label_advice, pretraining_split
from eigenshot.data.opening import (
    channel_statistics,
    open_source,
    tell_passed_over,
    tell_unreadable,
)
from eigenshot.data.reading.reader import Reading
from eigenshot.data.source import Source
from eigenshot.data.views.crops import Crops
from eigenshot.data.views.views import View
from eigenshot.encoder import Encoder, load_encoder
from eigenshot.errors import UserError
from eigenshot.evaluation.classifiers import get_classifier
from eigenshot.evaluation.episodes import draw_episodes
from eigenshot.evaluation.features import extract_features
from eigenshot.evaluation.fewshot import FewShotResult, Interval, evaluate_fewshot
from eigenshot.evaluation.knn import knn_accuracy
from eigenshot.evaluation.linear import LinearResult, linear_exact, linear_probe, probe_view
from eigenshot.evaluation.selection import Selected, select_settings
from eigenshot.evaluation.tables import aligned_labels
from eigenshot.evaluation.transforms import Transform, check_transform
from eigenshot.evaluation.views import extract_views, training_view
from eigenshot.hardware import Precision, choose_device, exact_device, resolve_precision
from eigenshot.reporter import Reporter

Normalisation = Literal["encoder", "data"]


@dataclass
class Bench:
    """An encoder on a device, with what it takes to get features of named data.

    ``normalisation`` ``"data"`` standardises the channels of every data set by its own mean and
    deviation, which helps across domains; ``"encoder"`` uses those that it was trained with.
    ``precision`` is that of the network's work. ``crops`` are what features are made of, as
    `Encoder.with_crops` takes them; None leaves the encoder its own.
    """

    run: str | Path
    device: str = "auto"
    backbone: str | None = None
    normalisation: Normalisation = "encoder"
    reporter: Reporter = dataclasses.field(default_factory=Reporter)
    precision: Precision = "auto"
    crops: Crops | None = None

    def __post_init__(self) -> None:
        if self.normalisation not in ("encoder", "data"):
            raise UserError(f"unknown normalisation '{self.normalisation}'; known: encoder, data")
        self.device = choose_device(self.device)
        self.precision = resolve_precision(self.precision, self.device)
        self.how: dict[str, Any] = {"device": self.device, "precision": self.precision}
        self.encoder = load_encoder(self.run, backbone=self.backbone).with_crops(self.crops)

    def open(self, data: Any, split: str | None) -> Source:
        """``data`` in the encoder's own shape; ``split`` of what has splits."""
        source = open_source(
            data,
            image_size=self.encoder.preprocessing.image_size,
            channels=self.encoder.preprocessing.channels,
            split=split,
            reading=Reading(
                progress=self.reporter.counting("reading images"),
                note=self.reporter.note,
                quiet=True,
            ),
            reporter=self.reporter,
        )
        tell_passed_over(source, self.reporter)
        return source

    def open_labelled(
        self, data: Any, split: str | None, default: str
    ) -> tuple[Source, np.ndarray]:
        """A source and its labels; of what has splits ``split``, else ``default``.

        Images whose label is unknown are left out, and how many is said.
        """
        source = self.open(data, split or choose_split(data, default, self.reporter))
        if source.labels is None:
            raise UserError(f"'{source.name}' has no labels; evaluation needs {label_advice(data)}")
        known = with_known_labels(source, self.reporter)
        assert known.labels is not None
        return known, known.labels

    def suited(self, source: Source) -> Encoder:
        """The encoder with the normalisation that is asked for this source."""
        if self.normalisation == "encoder":
            return self.encoder
        mean, std = channel_statistics(source)
        own = dataclasses.replace(self.encoder.preprocessing, mean=tuple(mean), std=tuple(std))
        return dataclasses.replace(self.encoder, preprocessing=own)

    def features(self, source: Source) -> np.ndarray:
        """Features of a source, ``(N, d)``, from the cache where they are known."""
        told = len(getattr(source, "unreadable", ()))
        suited = self.suited(source)
        features = extract_features(
            suited, source, reporter=self.reporter, together=True, **self.how
        )
        tell_unreadable(source, self.reporter, told)
        return features


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
    check_transform(transform)
    if transform == "centre" and base is None:
        raise UserError("the transform 'centre' needs --base, the images of the training")
    split = split or choose_split(data, "test", bench.reporter)
    if (
        select_on is not None
        and _same(select_on, data)
        and choose_split(select_on, "validation", bench.reporter) == split
    ):
        raise UserError(
            "--select-on and --data are the same images: settings chosen on what is then "
            "reported would flatter the result; give validation images of other classes"
        )
    source, labels = bench.open_labelled(data, split, "test")
    for count in shots:  # said before the features are computed
        draw_episodes(
            labels,
            ways=ways,
            shots=count,
            queries=queries,
            episodes=1,
            seed=seed,
            class_names=source.class_names,
        )
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
    }
    if select_on is not None:
        others, other_labels = bench.open_labelled(select_on, None, "validation")
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
            device=exact_device(bench.device),
            together=True,
            **common,
        )
        results.append((result, selected))
    return results


def _same(one: Any, other: Any) -> bool:
    """Whether two names stand for the same images."""
    if not isinstance(one, str | Path) or not isinstance(other, str | Path):
        return one is other
    return Path(one).expanduser().resolve() == Path(other).expanduser().resolve()


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
    train_source, test_source = _open_pair(bench, train, test)
    if exact:
        train_labels, test_labels = aligned_labels(train_source, test_source)
        return linear_exact(
            bench.features(train_source),
            train_labels,
            bench.features(test_source),
            test_labels,
            C=C,
            device=exact_device(bench.device),
            class_names=train_source.class_names,
        )
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
) -> float:
    """Accuracy in percent of the weighted vote of the nearest ``train`` images on ``test``."""
    train_source, test_source = _open_pair(bench, train, test)
    train_labels, test_labels = aligned_labels(train_source, test_source)
    return knn_accuracy(
        bench.features(train_source),
        train_labels,
        bench.features(test_source),
        test_labels,
        neighbours=neighbours,
        temperature=temperature,
        device=exact_device(bench.device),
        class_names=train_source.class_names,
    )
