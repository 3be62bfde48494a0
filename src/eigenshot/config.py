"""A run's settings, typed. A recipe holds the numbers; these classes hold names and meaning."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from eigenshot.errors import UserError, check_positive, check_strength

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
        _check_ranges(self)

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


LARGEST_SIDE = 16_384  # of an image, in pixels
_BELOW_ONE = ("optimizer.momentum", "evaluation.linear_momentum")
_RECORDING = ("checkpoint", "probe", "logging")
_NEUTRAL = ("recipe", "evaluation", *_RECORDING)


def is_recording(key: str) -> bool:
    """Whether a setting like ``"probe.every"`` decides what is recorded, or how fast, alone."""
    section, _, name = key.partition(".")
    return section in _RECORDING or (section == "engine" and name not in ("", "precision"))


def _check_ranges(config: Config) -> None:
    size, batch = config.data.image_size, config.training.batch_size
    least: list[tuple[str, float, float]] = [
        ("training.epochs", config.training.epochs, 1),
        ("training.batch_size", 2 if batch == "auto" else batch, 2),
        ("training.micro_batches", config.training.micro_batches, 1),
        ("training.seed", config.training.seed, 0),
        ("data.image_size", 1 if size == "auto" else size, 1),
        ("data.per_class", config.data.per_class, 1),
        ("data.max_unreadable", config.data.max_unreadable, 0),
        ("data.window", config.data.window, 0),
        ("projector.layers", config.projector.layers, 0),
        ("projector.out", config.projector.out, 0),
        ("training.encoder_size", config.training.encoder_size, 0),
        ("training.average", config.training.average, 0),
        ("projector.width", config.projector.width, 1),
        ("optimizer.lr", config.optimizer.lr, 0),
        ("optimizer.momentum", config.optimizer.momentum, 0),
        ("optimizer.weight_decay", config.optimizer.weight_decay, 0),
        ("optimizer.warmup_epochs", config.optimizer.warmup_epochs, 0),
        ("checkpoint.every_steps", config.checkpoint.every_steps, 0),
        ("checkpoint.every_minutes", config.checkpoint.every_minutes, 0),
        ("probe.every", config.probe.every, 1),
        ("probe.shots", config.probe.shots, 1),
        ("probe.episodes", config.probe.episodes, 1),
        ("probe.max_images", config.probe.max_images, 1),
        ("evaluation.ways", config.evaluation.ways, 2),
        ("evaluation.queries", config.evaluation.queries, 1),
        ("evaluation.episodes", config.evaluation.episodes, 2),
        ("evaluation.seed", config.evaluation.seed, 0),
        ("evaluation.support_views", config.evaluation.support_views, 0),
        ("evaluation.linear_epochs", config.evaluation.linear_epochs, 1),
        ("evaluation.linear_momentum", config.evaluation.linear_momentum, 0),
    ]
    for name, value, bound in least:
        if not bound <= value < math.inf:  # also catches nan
            finite = " and finite" if value == math.inf else ""
            raise UserError(f"{name} must be at least {bound}{finite}, found {value}")
        if name in _BELOW_ONE and value >= 1:
            raise UserError(f"{name} must be below 1, found {value}")
    if not 0 <= config.optimizer.cooldown <= 1:
        raise UserError(
            "optimizer.cooldown is the share of the run in which the rate falls, from 0 to 1; "
            f"found {config.optimizer.cooldown}"
        )
    check_strength(config.evaluation.C, "evaluation.C")
    check_positive(**{"evaluation.linear_lr": config.evaluation.linear_lr})
    largest_view = max((side for _, side in config.training.resolution), default=0)
    sides = {
        "data.image_size": size,
        "training.encoder_size": config.training.encoder_size,
        "a side in training.resolution": largest_view,
    }
    for name, side in sides.items():
        if side != "auto" and side > LARGEST_SIDE:
            raise UserError(f"{name} must be at most {LARGEST_SIDE} pixels, found {side}")
    parts = config.training.micro_batches
    if batch != "auto" and (batch % parts or batch < 2 * parts):
        raise UserError(
            f"a batch of {batch} does not split into {parts} equal parts of two or more images; "
            "choose a training.micro_batches that divides training.batch_size"
        )
    if config.training.average >= 1:
        raise UserError(
            "training.average must be below 1: it is the share of the average that a step keeps, "
            f"such as 0.999; found {config.training.average}"
        )
    _check_resolution(config.training.resolution)
    for name in ("mean", "std"):
        values = getattr(config.data, name)
        if values and len(values) != config.data.channels:
            raise UserError(
                f"data.{name} needs one value for each of {config.data.channels} channels, "
                f"found {len(values)}"
            )
    if not all(0 < value < math.inf for value in config.data.std):
        raise UserError(f"data.std must be positive, found {list(config.data.std)}")
    if not all(map(math.isfinite, config.data.mean)):
        raise UserError(f"data.mean must be finite, found {list(config.data.mean)}")


def _check_resolution(stages: tuple[tuple[float, int], ...]) -> None:
    shares = [share for share, _ in stages]
    rising = all(before < after for before, after in itertools.pairwise(shares))
    if stages and (shares[0] != 0 or not rising or shares[-1] >= 1):
        raise UserError(
            "training.resolution is a list of [share of the run, side in pixels] with shares that "
            f"rise from 0 and stay below 1; found {[list(stage) for stage in stages]}"
        )
    for _, side in stages:
        if side < 1:
            raise UserError(f"training.resolution: a side is at least 1 pixel, found {side}")


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
