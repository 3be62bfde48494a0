"""A run's settings, typed. A recipe holds the numbers; these classes hold names and meaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eigenshot.configcheck import check_ranges

Auto = Literal["auto"]


@dataclass(frozen=True)
class DataConfig:
    """Where images come from and what shape they are brought to."""

    image_size: int | Auto = "auto"  # side in pixels
    channels: Literal[1, 3] = 3
    per_class: int = 20  # drawings a character, glyphs only
    seed: int = 0  # of the drawings, glyphs only
    max_unreadable: float = 0.1  # share of broken files that is tolerated
    reader: Literal["auto", "resident", "mapped", "streamed"] = "auto"  # where images are kept
    window: int = 0  # images that a stream is shuffled in; 0: an eighth of the memory
    mean: tuple[float, ...] = ()  # of the channels, in [0, 1]; empty: measured
    std: tuple[float, ...] = ()


@dataclass(frozen=True)
class AugmentConfig:
    """How two views are made; `view_a` and `view_b` override `options` for one view."""

    kind: Literal["simclr", "strokes", "none"] = "simclr"
    options: dict[str, Any] = field(default_factory=dict)
    view_a: dict[str, Any] = field(default_factory=dict)
    view_b: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BackboneConfig:
    """A registered backbone, or ``package.module:Factory``."""

    name: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ProjectorConfig:
    """The head that the loss works on: `layers` linear layers of `width`, the last of `out`."""

    layers: int = 3  # 0: the features themselves
    width: int = 2048
    out: int = 0  # 0: as `width`
    norm: bool = True  # batch normalisation between layers
    standardize: bool = True


@dataclass(frozen=True)
class MethodConfig:
    """What is minimised: a registered method, or ``package.module:Class``."""

    name: str = "dle"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class OptimizerConfig:
    """SGD with a rate that falls to zero at the end of the run."""

    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: float = 0.0  # at most half the run
    # How the rate falls: along half a cosine from the warm-up on, or, after it has been constant,
    # in a line over the last share of the run. Only the second kind can be made longer later.
    schedule: Literal["cosine", "trapezoid"] = "cosine"
    cooldown: float = 0.25  # that share, of a trapezoid


@dataclass(frozen=True)
class TrainingConfig:
    """How long, how many at once, and from which seed."""

    epochs: int = 200
    batch_size: int | Auto = "auto"
    micro_batches: int = 1  # equal parts in which a batch goes through the network
    whole_batch_loss: bool = False  # of parts: one loss of all, at one more forward pass
    seed: int = 0
    # Sides of the views, each from a share of the run on: [[0, 48], [0.5, 84]]. Empty: the images',
    # and half of it where data.image_size is "auto" for images of any size.
    resolution: tuple[tuple[float, int], ...] = ()
    # Side in which the encoder looks at images. 0: that of the last views, and 1.4 times it where
    # data.image_size is "auto" for images of any size.
    encoder_size: int = 0
    average: float = 0.0  # of the weights over steps: what a step keeps of it; 0: no average
    # What batch normalisation of the finished encoder goes by: what the views of the training had
    # been like, or whole training images.
    statistics: Literal["views", "images"] = "views"


@dataclass(frozen=True)
class EngineConfig:
    """How a step is run: rounding aside, the same is learned in every way."""

    precision: Literal["auto", "float32", "bf16"] = (
        "auto"  # auto: bf16 where the GPU computes in it
    )
    compile: Literal["auto", "on", "off"] = "auto"  # auto: where a run is long enough to repay it
    capture: Literal["auto", "off"] = "auto"  # the step as a CUDA graph where that is possible


@dataclass(frozen=True)
class CheckpointConfig:
    """When the state is written, besides the end of the run and an interruption. Zero: never."""

    every_steps: int = 0
    every_minutes: float = 1.0
    # How the state from before a trapezoid's fall is kept, for longer runs to go on from. Small:
    # weights in half precision and no momentum, a quarter as large.
    plateau: Literal["whole", "small", "off"] = "whole"


@dataclass(frozen=True)
class ProbeConfig:
    """A look at labelled validation images every few epochs; it never influences training."""

    kind: Literal["none", "knn", "fewshot"] = "none"
    every: int = 1  # epochs
    data: str = ""  # empty: the validation classes of the training data
    shots: int = 1
    episodes: int = 200
    max_images: int = 5000


@dataclass(frozen=True)
class EvaluationConfig:
    """How the encoder is measured for a table; training knows nothing of it."""

    ways: int = 5  # classes a task
    queries: int = 15  # a class
    episodes: int = 10_000
    seed: int = 0  # of the tasks and of the linear classifier: alike for every encoder
    classifier: str = "logistic"
    C: float = 1.0  # inverse L2 strength
    transform: Literal["none", "l2", "power", "centre"] = "l2"
    select: bool = False  # choose C and transform on the validation classes
    support_views: int = 0  # random views of each example that join it
    normalise: Literal["encoder", "data"] = "encoder"
    crops: Literal["whole", "five", "ten"] = "whole"  # of an image, whose features are averaged
    linear_epochs: int = 100  # of the linear evaluation by SGD, as the next two
    linear_lr: float = 30.0
    linear_momentum: float = 0.9


@dataclass(frozen=True)
class LoggingConfig:
    """What is written beside metrics.jsonl."""

    tensorboard: bool = False


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    recipe: str = ""
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    backbone: BackboneConfig = field(default_factory=BackboneConfig)
    projector: ProjectorConfig = field(default_factory=ProjectorConfig)
    method: MethodConfig = field(default_factory=MethodConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    probe: ProbeConfig = field(default_factory=ProbeConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)

    def __post_init__(self) -> None:
        check_ranges(self)

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values."""
        return dataclasses.asdict(self)

    def lasting(self) -> dict[str, Any]:
        """The settings that decide what is learned, as nested plain values.

        The others decide what is recorded and how fast, and are free to differ on resume.
        """
        table = {key: value for key, value in self.to_dict().items() if key not in _NEUTRAL}
        table["engine"] = {"precision": self.engine.precision}
        if self.data.reader != "streamed":  # kept or mapped, the batches are the same
            del table["data"]["reader"], table["data"]["window"]
        return table


_RECORDING = ("checkpoint", "probe", "logging")
_NEUTRAL = ("recipe", "evaluation", *_RECORDING)


def is_recording(key: str) -> bool:
    """Whether a setting like ``"probe.every"`` decides what is recorded, or how fast, alone."""
    section, _, name = key.partition(".")
    return section in _RECORDING or (section == "engine" and name not in ("", "precision"))


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values as ``{"optimizer.lr": 0.05, …}``; empty tables vanish."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def differences(stored: Config, asked: Config) -> list[str]:
    """What would change what is learned, one text a setting."""
    old, new = flatten(stored.lasting()), flatten(asked.lasting())
    then, now = flatten(stored.to_dict()), flatten(asked.to_dict())
    return [
        f"{key}: {then.get(key, 'unset')!r} in the run, {now.get(key, 'unset')!r} asked"
        for key in sorted(set(old) | set(new))
        if old.get(key) != new.get(key)
    ]
