"""Few-shot classification of a person's own images, as the command line runs it."""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eigenshot.data.benchmarks.findings import count_images
from eigenshot.data.folder import load_folder
from eigenshot.data.reading.picture import UnreadableImage, read_image
from eigenshot.data.source import ArraySource
from eigenshot.data.tables.layout import look_into
from eigenshot.encoder import Encoder, Preprocessing, load_encoder
from eigenshot.errors import UnreadableWarning, UserError, reason_of
from eigenshot.evaluation.classifier import FewShotClassifier
from eigenshot.evaluation.copies import copies_among
from eigenshot.evaluation.rejection import check_rate, fit_rejection
from eigenshot.evaluation.support import support_split
from eigenshot.files import as_unicode, atomic_write
from eigenshot.hardware import choose_device
from eigenshot.reporter import Reporter

NONE_OF_THESE = "none of these"
Unreadable = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Prediction:
    """One image: its class or `NONE_OF_THESE`, and the probability of each class.

    The probabilities hold given that the image is of one of the classes; ``likeness`` is its
    largest cosine to an image of the support, ``unlike`` whether that is too little; ``example``
    whether it has the very features of an image of the support.
    """

    file: str
    prediction: str
    probabilities: tuple[float, ...]
    likeness: float
    unlike: bool
    example: bool = False


@dataclass(frozen=True)
class Report:
    """Predictions for query images, and the classifier that says how far to believe them."""

    classifier: FewShotClassifier
    predictions: tuple[Prediction, ...]
    unreadable: Unreadable

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the probabilities."""
        return tuple(str(label) for label in self.classifier.classes_)

    @property
    def support_counts(self) -> tuple[int, ...]:
        """How many images of each class the classifier was fitted to."""
        return tuple(np.bincount(self.classifier.support_labels_).tolist())

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        rule = self.classifier.rejection_
        return {
            "classes": list(self.classes),
            "support": dict(zip(self.classes, self.support_counts, strict=True)),
            "temperature": self.classifier.temperature_,
            "assessment": self.classifier.assessment_.to_dict(),
            "none_of_these": None if rule is None else vars(rule),
            "predictions": [
                {
                    "file": row.file,
                    "prediction": row.prediction,
                    "probabilities": dict(zip(self.classes, row.probabilities, strict=True)),
                    "likeness": row.likeness,
                    "none_of_these": row.unlike,
                    "example": row.example,
                }
                for row in self.predictions
            ],
            "unreadable": [{"file": file, "reason": why} for file, why in self.unreadable],
            "support_unreadable": [
                {"file": file, "reason": why} for file, why in self.classifier.support_unreadable_
            ],
        }

    def write_csv(self, path: str | Path) -> None:
        """One row an image, unreadable ones last with the reason; UTF-8, whole or not at all."""
        columns = [f"p({name})" for name in self.classes]
        text = io.StringIO(newline="")
        table = csv.writer(text)
        table.writerow(["file", "prediction", *columns, "likeness", "none_of_these", "unreadable"])
        for row in self.predictions:
            shares = [f"{value:.6f}" for value in row.probabilities]
            unlike = "yes" if row.unlike else "no"
            table.writerow([row.file, row.prediction, *shares, f"{row.likeness:.6f}", unlike, ""])
        for file, reason in self.unreadable:
            table.writerow([file, "", *[""] * len(columns), "", "", reason])
        try:
            with atomic_write(path) as handle:
                handle.write(as_unicode(text.getvalue()).encode())
        except OSError as error:
            raise UserError(f"cannot write predictions to '{path}': {reason_of(error)}") from error

    def summary(self) -> str:
        """A few lines for a person."""
        counts = zip(self.classes, self.support_counts, strict=True)
        found = [row.prediction for row in self.predictions]
        lines = [
            "support: " + ", ".join(f"{name} {count}" for name, count in counts),
            f"estimate from the support: {self.classifier.assessment_}",
        ]
        rule = self.classifier.rejection_
        if rule is not None:
            known = rule.measured
            rate = "unknown" if known is None else f"{known:.1%} of the support"
            lines.append(
                f"an image less alike than {_span(rule.thresholds)} is none of these: "
                f"{rule.rule}; false alarms: {rate}, asked for {rule.rate:.1%}"
            )
        verdicts = self.classes if rule is None else (*self.classes, NONE_OF_THESE)
        tallies = [f"{name} {found.count(name)}" for name in verdicts]
        lines.append(f"{count_images(len(found))}: " + ", ".join(tallies))
        return "\n".join(lines)

    def warnings(self) -> list[str]:
        """What a person should look at: doubtful labels and files that could not be read."""
        left_out = self.classifier.support_unreadable_
        suspects = self.classifier.assessment_.suspects
        return [
            *(
                f"the same picture stands in two classes, as {one} and {other}: leave it out of "
                f"one of them, as it can make new images '{NONE_OF_THESE}'"
                for one, other in self.classifier.assessment_.twins
            ),
            *(f"may be mislabelled: {suspect}" for suspect in suspects),
            *(f"support image left out: {file}: {why}" for file, why in left_out),
            *(f"cannot read {file}: {why}" for file, why in self.unreadable),
        ]


def classify(
    run: str | Path | Encoder | FewShotClassifier,
    support: Any,
    queries: str | Path | Sequence[str | Path],
    *,
    C: float | None = None,
    reject: float | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
) -> Report:
    """Classify query images from a few examples of each class.

    Parameters
    ----------
    run : a run's folder, an encoder or its file, or a fitted classifier; the latter needs no
        support.
    support : a folder with a sub-folder a class; None with a fitted classifier.
    queries : a folder, in which every image however deep is classified, or image files and such
        folders; not shards or arrays.
    C : inverse L2 strength, 1 by default; not for a fitted classifier.
    reject : tolerated rate of false alarms of "none of these"; 0 never rejects, None is 0.05 or
        what a fitted classifier was made with.
    """
    reporter = reporter or Reporter()
    chosen = choose_device(device)
    if reject:
        check_rate(reject)
    if isinstance(run, FewShotClassifier):
        if support is not None or C is not None:
            raise UserError("a fitted classifier has its support and its C; leave both out")
        classifier = copy(run).set_params(device=chosen)
        if reject is not None:
            _set_rate(classifier, reject or None)
    else:
        if support is None:
            raise UserError("expected a support folder with a sub-folder a class, found none")
        _tell_support(support, reporter)
        classifier = FewShotClassifier(
            run if isinstance(run, Encoder) else load_encoder(run),
            C=1.0 if C is None else C,
            reject=0.05 if reject is None else reject or None,
            device=chosen,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnreadableWarning)  # the report lists them
            classifier.fit(support)
    if classifier.reject is not None and NONE_OF_THESE in classifier.classes_:
        raise UserError(
            f"no class can be called '{NONE_OF_THESE}': that is said of images that are like none; "
            "rename it, or let nothing be rejected (--reject 0)"
        )
    files, source, unreadable = read_queries(queries, classifier.encoder.preprocessing, reporter)
    predictions = _predictions(classifier, files, source)
    if examples := sum(row.example for row in predictions):
        reporter.note(
            f"of {count_images(len(predictions))} to classify {examples} "
            f"{'has' if examples == 1 else 'have'} the very features of an example, as copies "
            "have: what is said of them tells nothing of new ones"
        )
    return Report(classifier, predictions, unreadable)


def _tell_support(support: Any, reporter: Reporter) -> None:
    """Say which part of the data the examples are, where that is not all of it."""
    split = support_split(support, "train")
    if split is not None:
        reporter.note(f"the examples are the split '{split}' of {support}")
    if isinstance(support, str | os.PathLike):
        note = look_into(Path(support).expanduser()).note
        if note:
            reporter.note(note)


def _set_rate(classifier: FewShotClassifier, rate: float | None) -> None:
    """Change the tolerated false-alarm rate of a fitted classifier."""
    classifier.reject = rate
    table, labels = classifier.support_, classifier.support_labels_
    classifier.rejection_ = None if rate is None else fit_rejection(table, labels, rate)


def read_queries(
    queries: str | Path | Sequence[str | Path], shape: Preprocessing, reporter: Reporter
) -> tuple[list[str], ArraySource, Unreadable]:
    """Names and pixels of what can be read, and (file, reason) of what cannot."""
    places = [queries] if isinstance(queries, str | os.PathLike) else list(queries)
    if not places:
        raise UserError("expected a folder of images or image files to classify, found none")
    files: list[str] = []
    pixels: list[torch.Tensor] = []
    unreadable: list[tuple[str, str]] = []
    for place in map(Path, places):
        layout = look_into(place.expanduser())
        if layout.shards or place.suffix.lower() == ".npz":
            raise UserError(
                f"expected image files or folders of them to classify, found shards or arrays in "
                f"'{place}'; 'eigenshot embed' takes those"
            )
        if layout.note:
            reporter.note(layout.note)
        if place.expanduser().is_dir():
            folder = load_folder(
                place,
                image_size=shape.image_size,
                channels=shape.channels,
                max_unreadable=1.0,
                progress=reporter.counting("reading images"),
            )
            files += [str(place / name) for name in folder.paths or ()]
            unreadable += [(str(place / name), why) for name, why in folder.unreadable]
            pixels.append(folder.pixels)
            continue
        try:
            picture = read_image(place.expanduser(), size=shape.image_size, channels=shape.channels)
        except UnreadableImage as error:
            unreadable.append((str(place), error.reason))
        else:
            files.append(str(place))
            pixels.append(torch.from_numpy(picture)[None])
    if not files:
        shown = "; ".join(f"{file}: {why}" for file, why in unreadable[:3])
        raise UserError(f"no image to classify can be read: {shown}")
    return files, ArraySource(torch.cat(pixels), name="queries"), tuple(unreadable)


def _predictions(
    classifier: FewShotClassifier, files: list[str], source: ArraySource
) -> tuple[Prediction, ...]:
    features = classifier.features(source)
    judgement = classifier.judge_features(features)
    copies = copies_among(features, classifier.support_)
    best = classifier.classes_[judgement.probabilities.argmax(axis=1)]
    return tuple(
        Prediction(
            file,
            NONE_OF_THESE if judgement.unlike[row] else str(best[row]),
            tuple(judgement.probabilities[row].tolist()),
            float(judgement.likeness[row]),
            bool(judgement.unlike[row]),
            bool(copies[row] >= 0),
        )
        for row, file in enumerate(files)
    )


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.3f}" if high - low < 5e-4 else f"{low:.3f} to {high:.3f} by class size"
