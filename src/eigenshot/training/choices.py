"""What ``"auto"`` means in a run's settings, for its device, its images and its processes."""

from __future__ import annotations

import dataclasses
from typing import Any

from eigenshot.config import BackboneConfig, Config, TrainingConfig
from eigenshot.configcheck import LARGEST_SIDE
from eigenshot.configfile import list_recipes
from eigenshot.data.benchmarks.findings import count_images
from eigenshot.data.naming import is_benchmark, is_sizeless
from eigenshot.data.opening import channel_statistics
from eigenshot.data.source import Source
from eigenshot.errors import UserError
from eigenshot.hardware import resolve_precision

# What "auto" means for a folder of photographs: views of what the device can train in a day. They
# are cut from pictures kept larger, or crops would be magnified and have no detail of their own;
# and the encoder looks at whole images in a larger size, or objects would be smaller than in views.
# Both were measured (docs/protocols.md, "Images kept larger than their views").
_FOLDER_SIZE = {"cuda": 84, "mps": 64, "cpu": 64}
_KEPT_LARGER = 2
_LOOKED_AT_LARGER = 1.4
_FOLDER_BACKBONE = {"cuda": "resnet12", "mps": "conv4", "cpu": "conv4"}
_AUTO_OPTIONS: dict[str, dict[str, Any]] = {"conv4": {"widths": (32, 64, 128, 256)}}
_BATCH_SIZE = {"cuda": 128, "mps": 64, "cpu": 64}
_LEAST_BATCH = 8


def recipe_for(data: Any) -> str:
    """The recipe that a benchmark has by its own name; ``"folder"`` for anything else."""
    return str(data) if is_benchmark(data) and data in list_recipes() else "folder"


def adopt_choices(config: Config, stored: Config, images: Any) -> Config:
    """Let every ``"auto"`` mean what it meant when the run was started, on whatever device."""
    data, backbone, training = config.data, config.backbone, config.training
    if is_sizeless(images) and data.image_size != stored.data.image_size:
        training = _with_automatic_sizes(training, stored)
    if data.image_size == "auto":
        data = dataclasses.replace(data, image_size=stored.data.image_size)
    if backbone.name == "auto":
        backbone = _auto_backbone(backbone, stored.backbone.name)
    data = dataclasses.replace(
        data, mean=data.mean or stored.data.mean, std=data.std or stored.data.std
    )
    if stored.data.reader == "streamed" and data.reader in ("auto", "streamed"):
        window = data.window or stored.data.window
        data = dataclasses.replace(data, reader="streamed", window=window)
    if training.batch_size == "auto":
        training = dataclasses.replace(training, batch_size=stored.training.batch_size)
    engine = config.engine
    if engine.precision == "auto":
        engine = dataclasses.replace(engine, precision=stored.engine.precision)
    return dataclasses.replace(
        config, data=data, backbone=backbone, training=training, engine=engine
    )


def _with_automatic_sizes(asked: TrainingConfig, stored: Config) -> TrainingConfig:
    """``asked`` with those sizes of ``stored`` that nobody had asked for, where it has none.

    Others had been asked for, and are to be asked for again.
    """
    adopted = {}
    for name in ("resolution", "encoder_size"):
        usual = getattr(TrainingConfig(), name)
        without = dataclasses.replace(
            stored, training=dataclasses.replace(stored.training, **{name: usual})
        )
        # Without it the sizes would have been the same, on some device.
        automatic = any(
            _sizes(_sized(without, device)) == _sizes(stored) for device in _FOLDER_SIZE
        )
        if automatic and getattr(asked, name) == usual:
            adopted[name] = getattr(stored.training, name)
    return dataclasses.replace(asked, **adopted)


def _auto_backbone(asked: BackboneConfig, name: str) -> BackboneConfig:
    """The network called ``name`` with its automatic options, the asked ones over them."""
    options = {**_AUTO_OPTIONS.get(name, {}), **asked.options}
    return dataclasses.replace(asked, name=name, options=options)


def resolve_size(config: Config, data: Any, device: str) -> Config:
    """Settle sizes of pictures and views, backbone and precision where they are ``"auto"``."""
    if config.backbone.name == "auto":
        chosen = _auto_backbone(config.backbone, _FOLDER_BACKBONE[device])
        config = dataclasses.replace(config, backbone=chosen)
    if config.data.image_size == "auto" and is_sizeless(data):
        config = _sized(config, device)
    precision = resolve_precision(config.engine.precision, device)
    return dataclasses.replace(
        config, engine=dataclasses.replace(config.engine, precision=precision)
    )


def _sized(config: Config, device: str) -> Config:
    """Sizes of photographs, of views and of what the encoder looks at, where none are asked for."""
    stages = config.training.resolution or ((0.0, _FOLDER_SIZE[device]),)
    kept = min(_KEPT_LARGER * max(side for _, side in stages), LARGEST_SIDE)
    larger = min(round(_LOOKED_AT_LARGER * stages[-1][1]), LARGEST_SIDE)
    looked_at = config.training.encoder_size or larger
    return dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, image_size=kept),
        training=dataclasses.replace(config.training, resolution=stages, encoder_size=looked_at),
    )


def _sizes(config: Config) -> tuple[Any, ...]:
    return config.data.image_size, config.training.resolution, config.training.encoder_size


def check_blocks(config: Config, processes: int) -> None:
    """Refuse a batch that does not split into equal blocks, one a process, and these in parts."""
    batch, parts = config.training.batch_size, config.training.micro_batches
    if processes == 1 or batch == "auto" or batch % (processes * parts) == 0:
        return
    wanted = f"{processes} processes"
    if parts > 1:
        wanted += f", of {parts} parts each (training.micro_batches)"
    unit = processes * parts
    raise UserError(
        f"a batch of {batch} images does not split into equal blocks for {wanted}; "
        f"use a multiple of {unit}, such as --batch-size {-(-batch // unit) * unit}"
    )


def resolve_batch(config: Config, source: Source, device: str, processes: int = 1) -> Config:
    """Settle what depends on the images: size, batch size (of all processes), normalisation."""
    batch = config.training.batch_size
    if batch == "auto":
        batch = _BATCH_SIZE[device]
        while batch > max(_LEAST_BATCH, len(source)):
            batch //= 2
        parts = config.training.micro_batches
        unit = processes * parts
        fitting = max(1, batch // unit) * unit
        if fitting < 2 * parts:
            raise UserError(
                f"a batch of {batch} images, which is what suits here, does not split into {parts} "
                f"parts of two or more; choose at most {batch // 2} training.micro_batches"
            )
        batch = fitting
    if len(source) < batch:
        way_out = f"use --batch-size {len(source)} or less"
        if len(source) < _LEAST_BATCH:
            way_out = f"at least {_LEAST_BATCH} are needed to learn anything"
        raise UserError(
            f"'{source.name}' has {count_images(len(source))}, fewer than one batch of "
            f"{batch}; {way_out}"
        )
    mean, std = config.data.mean, config.data.std
    if not (mean and std):
        measured_mean, measured_std = channel_statistics(source)
        mean, std = mean or tuple(measured_mean), std or tuple(measured_std)
    settled = dataclasses.replace(
        config.data,
        image_size=source.shape[1],
        mean=mean,
        std=std,
        reader=getattr(source, "reader", "resident"),
        window=getattr(source, "window", config.data.window),
    )
    return dataclasses.replace(
        config,
        data=settled,
        training=dataclasses.replace(config.training, batch_size=batch),
    )
