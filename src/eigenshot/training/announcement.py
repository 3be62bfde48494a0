"""What a run says before its first step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from eigenshot.configcheck import idle_settings
from eigenshot.data.reading.order import window_in_use
from eigenshot.reporter import Reporter, count_epochs, duration
from eigenshot.training.engine import seconds_left
from eigenshot.training.parts import Parts


def announce(parts: Parts, reporter: Reporter, *, first: int = 0) -> None:
    """Tell the images, their views, the network, how long all steps will take, and what to heed.

    The steps before ``first`` are those of the run that this one goes on from.
    """
    config, source = parts.config, parts.source
    batch, epochs = int(config.training.batch_size), config.training.epochs
    seconds = seconds_left(parts, first=first)
    channels, height, width = source.shape
    count, where = parts.fabric.world_size, parts.fabric.device.type
    where = where if count == 1 else f"{count} processes ({where})"
    size = sum(parameter.numel() for parameter in parts.encoder.backbone.parameters())
    sides = [
        f"{side}×{side}" for side, _ in groupby(side for _, side in config.training.resolution)
    ]
    views = f", in views of {', then '.join(sides)}" if sides else ""
    looked_at = parts.encoder.preprocessing.image_size
    if looked_at != (config.training.resolution or ((0, width),))[-1][1]:
        views += f", with an encoder that looks at {looked_at}×{looked_at}"
    behind = f", {parts.course.epochs(first):g} of which are done," if first else ""
    reporter.note(
        f"{len(source):,} images from {source.name}, kept at {height}×{width}×{channels}{views}; "
        f"{config.method.name} with {config.backbone.name} of {size / 1e6:.2f} M parameters, "
        f"{count_epochs(epochs)}{behind} in batches of {batch} on {where}: "
        f"about {duration(seconds)}"
    )
    if getattr(source, "reader", None) == "streamed":
        reporter.note(f"shuffled within {window_in_use(source, batch):,} images at a time")
    for sentence in _to_heed(parts):
        reporter.note(sentence)


def _to_heed(parts: Parts) -> Iterator[str]:
    """What may not be as it was meant: a warm-up that does not fit, settings that do nothing."""
    config, course = parts.config, parts.course
    asked, steps = config.optimizer.warmup_epochs, course.schedule.warmup_steps
    if round(asked * course.steps_an_epoch) > steps:
        yield (
            f"the warm-up takes half of the run, {course.epochs(steps):g} epochs instead of "
            f"{asked:g}"
        )
    yield from idle_settings(config)
    if callable(remarks := getattr(parts.method, "remarks", None)):  # it need not be a `Method`
        batch = int(config.training.batch_size)
        at_once = batch // parts.fabric.world_size // config.training.micro_batches
        said = remarks(len(parts.source), at_once) or ()  # of a method of one's own, perhaps None
        yield from [said] if isinstance(said, str) else said
