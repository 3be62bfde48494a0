"""An encoder at work: from the names of data to features."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from eigenshot.data.labelled import with_known_labels
from eigenshot.data.naming import choose_split, require_labels
from eigenshot.data.opening import channel_statistics, open_source, tell_passed_over
from eigenshot.data.reading.reader import Reading
from eigenshot.data.source import Source
from eigenshot.data.views.crops import Crops
from eigenshot.encoder import Encoder, load_encoder
from eigenshot.errors import UserError
from eigenshot.evaluation.features import extract_features
from eigenshot.hardware import Precision, choose_device, resolve_precision
from eigenshot.reporter import Reporter

Normalisation = Literal["encoder", "data"]


def open_for(encoder: Encoder, data: Any, split: str | None, reporter: Reporter) -> Source:
    """``data`` in the encoder's own shape, ``split`` of what has splits; what it lacks is said."""
    source = open_source(
        data,
        image_size=encoder.preprocessing.image_size,
        channels=encoder.preprocessing.channels,
        split=split,
        reading=Reading(
            progress=reporter.counting("reading images"), note=reporter.note, quiet=True
        ),
        reporter=reporter,
    )
    tell_passed_over(source, reporter)
    return source


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
        return open_for(self.encoder, data, split, self.reporter)

    def open_labelled(
        self, data: Any, split: str | None, default: str
    ) -> tuple[Source, np.ndarray]:
        """A source and its labels; of what has splits ``split``, else ``default``.

        Images whose label is unknown are left out, and how many is said.
        """
        source = self.open(data, split or choose_split(data, default, self.reporter))
        require_labels(source, data)
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
        suited = self.suited(source)
        return extract_features(suited, source, reporter=self.reporter, together=True, **self.how)
