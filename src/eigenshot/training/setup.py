"""From settings to the parts of a run: images, views, network, method."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from eigenshot.config import Config, DataConfig
from eigenshot.data.naming import pretraining_split
from eigenshot.data.opening import (
    open_source,
    tell_passed_over,
)
from eigenshot.data.reading.reader import Reading
from eigenshot.data.source import ArraySource, Source
from eigenshot.data.views.views import TwoViews, create_view
from eigenshot.encoder import Encoder, Preprocessing
from eigenshot.errors import UserError
from eigenshot.hardware import is_out_of_memory, package_version
from eigenshot.methods import create_method, learns_from_labels
from eigenshot.networks import Backbone, Projector, as_backbone, create_backbone
from eigenshot.networks.backbone import trial_features
from eigenshot.networks.synchronised import synchronise
from eigenshot.randomness import derive_seed
from eigenshot.reporter import Reporter
from eigenshot.training.accumulation import check_method
from eigenshot.training.average import WeightAverage
from eigenshot.training.initial import initialise_from
from eigenshot.training.launch import launch
from eigenshot.training.parts import Parts


def check_parts(config: Config, *, own_backbone: bool) -> None:
    """Make network, method and views without memory, to find wrong names and options at once."""
    for own in (config.augment.view_a, config.augment.view_b):
        options = {**config.augment.options, **own}
        create_view(config.augment.kind, options, size=1, mean=[0.5], std=[0.5])
    if own_backbone:
        return  # it is tried on the images themselves
    if "in_channels" in config.backbone.options:
        raise UserError("backbone.options.in_channels cannot be set: use data.channels")
    if ":" in config.backbone.name:
        if "image_size" in config.backbone.options:
            raise UserError(
                "backbone.options.image_size cannot be set: it is the side of the smallest views "
                "(training.resolution, or data.image_size)"
            )
        return  # likewise
    method_on_trial(config)


def method_on_trial(config: Config) -> nn.Module | None:
    """The method of a run, with its networks, without memory for their weights.

    None where the network is a user's own, which may have to see images first.
    """
    if ":" in config.backbone.name:
        return None
    with torch.device("meta"):
        network = create_backbone(config.backbone.name, **config.backbone.options)
        projector = _projector(config, network.out_features)
        options = config.method.options
        return create_method(config.method.name, network, projector, classes=2, **options)


def of_no_use(config: Config, data: Any) -> str:
    """A sentence on settings of the drawn characters where other images are learned from."""
    if isinstance(data, str) and data == "glyphs":
        return ""
    usual, given = DataConfig(), config.data
    names = [name for name in ("per_class", "seed") if getattr(given, name) != getattr(usual, name)]
    settings = " and ".join(f"data.{name}={getattr(given, name)}" for name in names)
    return f"{settings}: of use for characters that are drawn, of none here" if names else ""


def reading(config: Config, device: str, reporter: Reporter, what: str) -> Reading:
    """How encoded pictures are read in a run with these settings."""
    return Reading(
        config.data.reader,
        config.data.window,
        device,
        config.data.max_unreadable,
        reporter.counting(what),
        reporter.note,
    )


def load_source(config: Config, data: Any, device: str, reporter: Reporter) -> Source:
    """The images to learn from: of a few-shot benchmark, its train classes only."""
    if sentence := of_no_use(config, data):
        reporter.note(sentence)
    size = config.data.image_size
    source = open_source(
        data,
        image_size=None if size == "auto" else size,
        channels=config.data.channels,
        split=pretraining_split(data, reporter),
        per_class=config.data.per_class,
        seed=config.data.seed,
        reading=reading(config, device, reporter, "reading images"),
        reporter=reporter,
    )
    tell_passed_over(source, reporter)
    return source


def build(
    config: Config,
    source: Source,
    device: str,
    *,
    backbone: nn.Module | None = None,
    initial: str | Path | None = None,
    fabric: Any | None = None,
) -> Parts:
    """Network, method and views of a resolved configuration, with seeded initial weights.

    ``fabric`` is what `launch` returned; without it there is one process.
    """
    channels = source.shape[0]
    sizes = [side for _, side in config.training.resolution] or [source.shape[1]]
    encoder_size = config.training.encoder_size or sizes[-1]
    views = TwoViews(
        *(
            create_view(
                config.augment.kind,
                {**config.augment.options, **own},
                size=sizes[0],
                mean=config.data.mean,
                std=config.data.std,
            )
            for own in (config.augment.view_a, config.augment.view_b)
        )
    )
    torch.manual_seed(derive_seed(config.training.seed, "weights"))
    network = _create_network(config, backbone, channels, min(sizes))
    if config.training.encoder_size:
        _check_encoder_size(config, network, encoder_size, views=sizes[-1])
    if initial is not None:
        initialise_from(network, initial)
    projector = _projector(config, network.out_features)
    labels, classes = _known_labels(config, source)
    method = create_method(
        config.method.name, network, projector, classes=classes, **config.method.options
    )
    check_method(
        method,
        micro_batches=config.training.micro_batches,
        whole_batch_loss=config.training.whole_batch_loss,
    )
    fabric = fabric or launch(device)
    source = _brought(source, fabric.device)
    views.to(fabric.device)
    # Convolutions and pooling are nearly twice as fast with channels last, on a CPU too.
    method.to(fabric.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    synchronise(method)
    average = WeightAverage(network, config.training.average) if config.training.average else None
    encoder = Encoder(
        network if average is None else average.backbone,
        Preprocessing(encoder_size, channels, tuple(config.data.mean), tuple(config.data.std)),
        _architecture(config, min(sizes), passed_in=backbone is not None),
        _provenance(config, source),
    )
    return Parts(config, source, method, views, encoder, fabric, labels=labels, average=average)


def _architecture(config: Config, size: int, *, passed_in: bool) -> dict[str, Any]:
    """What makes the network again; a user's own may heed the ``size`` that it is made for.

    A factory may be brought along later for a module that was ``passed_in``.
    """
    if passed_in:
        return {"name": "custom", "options": {}, "image_size": size}
    name = config.backbone.name
    made_for = {"image_size": size} if ":" in name else {}
    return {"name": name, "options": dict(config.backbone.options), **made_for}


def _known_labels(config: Config, source: Source) -> tuple[torch.Tensor | None, int | None]:
    """Class numbers ``(images,)`` from 0 on, and how many there are, for a method that wants them.

    No other method is given any.
    """
    if not learns_from_labels(config.method.name):
        return None, None
    unlabelled = source.labels is None or (source.labels < 0).any()
    if unlabelled:
        raise UserError(
            f"method '{config.method.name}' learns from labels, and '{source.name}' does not have "
            "one for every image: use sub-folders as classes, labels beside an array, or a method "
            "without labels"
        )
    names, numbers = np.unique(np.asarray(source.labels), return_inverse=True)
    return torch.from_numpy(numbers), len(names)


def _brought(source: Source, device: torch.device) -> Source:
    """Images in memory go to the device where they take at most half of what is free there."""
    if device.type != "cuda" or not isinstance(source, ArraySource):
        return source
    fits = source.pixels.numel() <= torch.cuda.mem_get_info(device)[0] / 2
    return (
        source.to(device) if fits and getattr(source, "reader", "resident") != "mapped" else source
    )


def _create_network(
    config: Config, backbone: nn.Module | None, channels: int, size: int
) -> Backbone:
    if backbone is not None:
        network = as_backbone(copy.deepcopy(backbone), in_channels=channels, image_size=size)
    else:
        given = {"in_channels": channels}
        if ":" in config.backbone.name:  # a user's own is tried on images of this size
            given["image_size"] = size
        network = create_backbone(config.backbone.name, **given, **config.backbone.options)
    if size < network.min_size:
        way_out = f"enlarge them with --set data.image_size={network.min_size}"
        if config.training.resolution:
            way_out = f"every side in training.resolution is to be at least {network.min_size}"
        raise UserError(
            f"images of {size}×{size} are smaller than {config.backbone.name} needs "
            f"({network.min_size}×{network.min_size}); {way_out}"
        )
    return network


def _check_encoder_size(config: Config, network: Backbone, size: int, *, views: int) -> None:
    """Refuse a size that the network cannot look at; training tries the sizes of views only."""
    if size < network.min_size:
        raise UserError(
            f"training.encoder_size={size} is smaller than {config.backbone.name} needs; "
            f"it is to be at least {network.min_size}"
        )
    advice = f"set training.encoder_size={views}, the side of the last views"
    try:
        length = trial_features(network, size).shape[1]
    except Exception as error:
        if is_out_of_memory(error):
            raise UserError(
                f"there is not enough memory to look at images of {size}×{size}; {advice}"
            ) from error
        raise UserError(
            f"the network cannot look at images of {size}×{size}: {error}; {advice}"
        ) from error
    if length != network.out_features:
        raise UserError(
            f"the network's features have length {network.out_features}, and {length} of images "
            f"of {size}×{size}; {advice}"
        )


def _projector(config: Config, features: int) -> Projector:
    """The head for ``features`` of a backbone."""
    return Projector(
        features,
        layers=config.projector.layers,
        width=config.projector.width,
        out_features=config.projector.out or None,
        norm=config.projector.norm,
        standardize=config.projector.standardize,
    )


def _provenance(config: Config, source: Source) -> dict[str, Any]:
    """How the encoder came to be; no time, host or path, so that equal runs give equal files."""
    return {
        "eigenshot": package_version(),
        "config": config.lasting(),
        "recipe": config.recipe,
        "data": {"name": source.name, "images": len(source), "fingerprint": source.fingerprint},
    }
