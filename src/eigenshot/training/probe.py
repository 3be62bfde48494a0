"""A look at labelled images during training. It reads the network and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import nn

from eigenshot import spectral
from eigenshot.config import ProbeConfig
from eigenshot.data.labelled import with_known_labels
from eigenshot.data.naming import choose_split
from eigenshot.data.opening import open_source, tell_passed_over
from eigenshot.data.reading.reader import Reading
from eigenshot.data.source import Source
from eigenshot.encoder import Encoder
from eigenshot.errors import UserError
from eigenshot.evaluation.episodes import draw_episodes
from eigenshot.evaluation.fewshot import evaluate_fewshot
from eigenshot.evaluation.knn import leave_one_out_knn
from eigenshot.evaluation.tables import unit_length
from eigenshot.hardware import exact_device
from eigenshot.randomness import numpy_generator
from eigenshot.reporter import Reporter
from eigenshot.training.parts import Parts

_GRAPH_IMAGES = 1000  # the batch whose neighbour graph is measured
_GRAPH_NEIGHBOURS = 10
_CHUNK = 128  # images embedded at once
# The settings that the accuracy of a probe depends on.
_HEEDED = {
    "knn": ("data", "max_images"),
    "fewshot": ("data", "max_images", "shots", "episodes"),
}


def open_probe(parts: Parts, data: Any, reporter: Reporter) -> Probe | None:
    """The probe that a run on ``data`` is to have; None where it asks for none."""
    config = parts.config
    if config.probe.kind == "none":
        return None
    probed = config.probe.data or data
    source = open_source(
        probed,
        image_size=parts.encoder.preprocessing.image_size,
        channels=config.data.channels,
        split=choose_split(probed, "validation", reporter),
        seed=config.data.seed,
        reading=Reading(
            max_unreadable=config.data.max_unreadable,
            progress=reporter.counting("reading the probe's images"),
            note=reporter.note,
            quiet=True,
        ),
        reporter=reporter,
    )
    tell_passed_over(source, reporter)
    return Probe(config.probe, source, config.training.seed, reporter)


def probed_by(config: ProbeConfig, image_size: int) -> str:
    """What two probes must have in common for their accuracies to compare.

    ``image_size`` is the side in which the encoder looks at images.
    """
    heeded = {name: getattr(config, name) for name in _HEEDED.get(config.kind, ())}
    return f"{config.kind} at {image_size} px, {json.dumps(heeded)}"


class Probe:
    """Accuracy on a labelled source, and the quantity that the theory minimises on it.

    Images whose label is unknown are left out, and the reporter is told how many.
    """

    def __init__(
        self, config: ProbeConfig, source: Source, seed: int, reporter: Reporter | None = None
    ) -> None:
        source = with_known_labels(source, reporter)
        if source.labels is None:
            raise UserError(
                f"the probe needs labels, but '{source.name}' has none: "
                "use sub-folders as classes, or --set probe.kind=none"
            )
        self.config = config
        self.source = source
        self.rows = _evenly(source.labels, config.max_images, seed)
        self.labels = source.labels[self.rows]
        self.ways = min(5, len(np.unique(self.labels)))
        fewest = int(np.unique(self.labels, return_counts=True)[1].min())
        self.queries = max(1, min(15, fewest - config.shots))
        # Before an epoch is spent: what cannot be probed is refused with its reason.
        draw_episodes(
            self.labels,
            ways=self.ways,
            shots=config.shots if config.kind == "fewshot" else 1,
            queries=self.queries if config.kind == "fewshot" else 1,
            episodes=1,
            seed=0,
            class_names=source.class_names,
        )

    @torch.no_grad()
    def __call__(
        self, encoder: Encoder, method: nn.Module, device: torch.device
    ) -> dict[str, float]:
        """``{"probe_accuracy", "interclass_transition"}`` of the network as it is now."""
        method.eval()  # in training mode a look would move the running statistics
        images = self.source.images(self.rows)
        features = encoder.transform(images, device=device)
        exact = exact_device(str(device))
        if self.config.kind == "knn":
            accuracy = leave_one_out_knn(features, self.labels, device=exact)
        else:
            accuracy = self._fewshot(features, exact)
        embed = getattr(method, "embed", encoder.backbone)
        batch = np.linspace(0, len(self.rows) - 1, min(len(self.rows), _GRAPH_IMAGES)).astype(int)
        chunks = [embed(encoder.normalise(c.to(device))) for c in images[batch].split(_CHUNK)]
        embeddings = torch.cat(chunks).float().cpu().numpy()
        method.train()
        return {
            "probe_accuracy": accuracy,
            "interclass_transition": interclass_transition(embeddings, self.labels[batch]),
        }

    def _fewshot(self, features: np.ndarray, device: str) -> float:
        result = evaluate_fewshot(
            features,
            self.labels,
            ways=self.ways,
            shots=self.config.shots,
            queries=self.queries,
            episodes=self.config.episodes,
            class_names=self.source.class_names,
            device=device,
        )
        return result.accuracy


def _evenly(labels: np.ndarray, limit: int, seed: int) -> np.ndarray:
    """At most about ``limit`` rows, as many of each class: a task needs several of one class."""
    order = numpy_generator(seed, "probe").permutation(len(labels))
    each = max(1, limit // len(np.unique(labels)))
    chosen = [order[labels[order] == label][:each] for label in np.unique(labels)]
    return np.sort(np.concatenate(chosen))


def interclass_transition(embeddings: np.ndarray, labels: np.ndarray) -> float:
    """Mean over classes of P(C̄ | C) on the nearest-neighbour graph of ``(n, K)`` embeddings."""
    neighbours = min(_GRAPH_NEIGHBOURS, len(embeddings) - 1)
    graph = spectral.neighbour_graph(unit_length(embeddings.astype(np.float64)), neighbours)
    return float(np.mean(spectral.interclass_transition(graph, labels)))
