"""Whether a run's settings are possible by themselves, before anything is known of its images."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from eigenshot.errors import UserError, check_positive, check_strength

if TYPE_CHECKING:
    from eigenshot.config import Config

LARGEST_SIDE = 16_384  # of an image, in pixels
_BELOW_ONE = ("optimizer.momentum", "evaluation.linear_momentum")


def idle_settings(config: Config) -> list[str]:
    """Settings that were changed and that another one keeps from doing anything, a sentence each.

    They are no mistake by themselves: a recipe may have them for when the other one is changed.
    """
    usual = type(config)()
    cases = (
        ("optimizer.schedule", "cosine", ("optimizer.cooldown", "checkpoint.plateau")),
        ("training.micro_batches", 1, ("training.whole_batch_loss",)),
        ("projector.layers", 0, ("projector.width", "projector.out")),
        ("probe.kind", "none", ("probe.data", "probe.shots", "probe.episodes", "probe.every")),
    )
    found = []
    for deciding, value, names in cases:
        if _setting(config, deciding) != value:
            continue
        changed = [n for n in names if _setting(config, n) != _setting(usual, n)]
        found += [f"{name} does nothing while {deciding} is {value}" for name in changed]
    return found


def _setting(config: Config, name: str) -> object:
    section, _, key = name.partition(".")
    return getattr(getattr(config, section), key)


def check_ranges(config: Config) -> None:
    """Refuse numbers outside their range, and settings that contradict each other."""
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
