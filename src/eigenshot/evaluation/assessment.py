"""What the support says about its own classifier: accuracy, calibration, doubtful labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from eigenshot.evaluation.calibration import (
    HeldOut,
    choose_sharpness,
    expected_calibration_error,
    tempered,
    wilson_interval,
)

# A label is doubted when the others leave it little and are agreed on another class.
SUSPECT_OWN = 0.1
SUSPECT_OTHER = 0.5


@dataclass(frozen=True)
class Suspect:
    """A support image that looks mislabelled to a classifier which did not see it."""

    row: int
    image: str
    label: str
    looks_like: str
    own_probability: float
    other_probability: float

    def __str__(self) -> str:
        return (
            f"{self.image} is labelled '{self.label}' ({self.own_probability:.0%}) but looks like "
            f"'{self.looks_like}' ({self.other_probability:.0%})"
        )


@dataclass(frozen=True)
class Assessment:
    """Held-out accuracy of the support, a fraction with its 95 % interval, and calibration.

    ``accuracy``, ``interval`` and the errors are None where no class has two images; ``note``
    says how they were found or why not. ``judged`` of ``images`` support images were held out.
    The calibration errors are those before and after the temperature. ``twins`` names pairs of
    images that are the same picture in two classes.
    """

    images: int
    judged: int
    accuracy: float | None
    interval: tuple[float, float] | None
    raw_calibration_error: float | None
    calibration_error: float | None
    note: str
    suspects: tuple[Suspect, ...]
    twins: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        if self.accuracy is None or self.interval is None or self.calibration_error is None:
            return self.note
        low, high = self.interval
        return (
            f"accuracy {self.accuracy:.1%} (95 % interval {low:.1%} to {high:.1%}), "
            f"calibration error {self.calibration_error:.3f}; {self.note}"
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Assessment:
        """What `to_dict` gave, after JSON."""
        interval = fields["interval"]
        return cls(
            **{
                **fields,
                "interval": None if interval is None else (float(interval[0]), float(interval[1])),
                "suspects": tuple(Suspect(**entry) for entry in fields["suspects"]),
                # Older files have none.
                "twins": tuple((str(one), str(other)) for one, other in fields.get("twins", ())),
            }
        )


def assess(
    held_out: HeldOut,
    labels: np.ndarray,
    *,
    class_names: Sequence[str],
    image_names: Sequence[str],
    calibrate: bool = True,
) -> tuple[Assessment, float]:
    """The assessment of a support with labels ``(n,)``, and the sharpness it asks for."""
    truth = labels[held_out.rows]
    sharpness = choose_sharpness(held_out.scaled, truth)
    images, judged = len(labels), len(truth)
    if not judged:
        note = (
            "no accuracy can be estimated: every class has one image only, and without it nothing "
            "is left of its class; two images a class are needed. Probabilities are not calibrated "
            "and can be far too sure"
        )
        return Assessment(images, 0, None, None, None, None, note, ()), sharpness
    raw = tempered(held_out.logits, 1.0)
    calibrated = tempered(held_out.scaled, 1.0 / sharpness) if calibrate else raw
    correct = int((held_out.logits.argmax(axis=1) == truth).sum())
    assessment = Assessment(
        images=images,
        judged=judged,
        accuracy=correct / judged,
        interval=wilson_interval(correct, judged),
        raw_calibration_error=expected_calibration_error(raw, truth),
        calibration_error=expected_calibration_error(calibrated, truth),
        note=_how(held_out, labels),
        suspects=_suspects(held_out.rows, calibrated, truth, class_names, image_names),
    )
    return assessment, sharpness


def _how(held_out: HeldOut, labels: np.ndarray) -> str:
    largest = int(np.bincount(labels).max())
    way = "leave-one-out" if held_out.parts == largest else f"{held_out.parts}-fold"
    note = f"{way}, {len(held_out.rows)} of {len(labels)} support images"
    if len(held_out.rows) < len(labels):
        note += " (classes of one image cannot be judged)"
    return note


def _suspects(
    rows: np.ndarray,
    probabilities: np.ndarray,
    truth: np.ndarray,
    class_names: Sequence[str],
    image_names: Sequence[str],
) -> tuple[Suspect, ...]:
    """The images whose label is doubted, the most doubtful first."""
    own = probabilities[np.arange(len(truth)), truth]
    best = probabilities.argmax(axis=1)
    other = probabilities[np.arange(len(truth)), best]
    doubted = np.flatnonzero((own < SUSPECT_OWN) & (other > SUSPECT_OTHER))
    return tuple(
        Suspect(
            row=int(rows[index]),
            image=image_names[rows[index]],
            label=class_names[truth[index]],
            looks_like=class_names[best[index]],
            own_probability=float(own[index]),
            other_probability=float(other[index]),
        )
        for index in doubted[np.argsort(own[doubted], kind="stable")]
    )
