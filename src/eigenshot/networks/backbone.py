"""A backbone is an ordered list of stages followed by global average pooling."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from eigenshot.errors import UserError
from eigenshot.networks.keeping import copied_buffers, modes_kept


class Backbone(nn.Module):
    """A network that runs as ``stages``, one after the other.

    "Layer L" is the place after the first L stages: layer 0 is the input, layer ``len(stages)``
    what the last stage gives. To work on what flows through layer L, run
    ``forward_stages(x, 0, L)``, change it, and run ``forward_stages(x, L)``.

    Parameters
    ----------
    stages : modules; the first takes ``(batch, in_channels, height, width)``, the last gives
        ``(batch, out_features, height', width')`` or ``(batch, out_features)``.
    out_features : the length of a feature vector.
    in_channels : the channels of an image.
    min_size : the smallest height or width of an image that the network takes.
    """

    def __init__(
        self,
        stages: Iterable[nn.Module],
        *,
        out_features: int,
        in_channels: int = 3,
        min_size: int = 1,
    ) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        if len(self.stages) == 0:
            raise UserError("a backbone needs at least one stage, found none")
        self.out_features = out_features
        self.in_channels = in_channels
        self.min_size = min_size

    def forward(self, x: Tensor) -> Tensor:
        """Images ``(batch, in_channels, height, width)`` to features ``(batch, out_features)``."""
        return self.pool(self.forward_stages(x))

    def forward_stages(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Run ``stages[start:stop]``; ``x`` is what flows through layer ``start``."""
        count = len(self.stages)
        end = count if stop is None else stop
        if not 0 <= start <= end <= count:
            raise UserError(f"expected 0 <= start <= stop <= {count}, found {start} and {end}")
        if start == 0:
            self._check_images(x)
        for index in range(start, end):
            x = self.stages[index](x)
        return x

    def pool(self, x: Tensor) -> Tensor:
        """Average ``(batch, C, height, width)`` to ``(batch, C)``, which itself stays as it is."""
        if x.ndim == 2:
            return x
        if x.ndim != 4 or 0 in x.shape[2:]:
            raise UserError(
                "expected the last stage to give (batch, channels, height, width) or "
                f"(batch, channels), found {tuple(x.shape)}"
            )
        return x.mean(dim=(2, 3))

    def own_key(self, key: str) -> str:
        """The name under which this backbone keeps the weight that a file calls ``key``."""
        return key

    def _check_images(self, x: Tensor) -> None:
        if x.ndim != 4 or x.shape[1] != self.in_channels or min(x.shape[2:]) < self.min_size:
            raise UserError(
                f"expected images (batch, {self.in_channels}, height, width) with sides of at "
                f"least {self.min_size}, found {tuple(x.shape)}"
            )


class AdoptedBackbone(Backbone):
    """A user's module in the form of a backbone.

    ``stage_names`` maps the name of a stage inside the user's module to its name here, so that
    weights saved from the module itself load as well as weights saved from the backbone.
    """

    def __init__(
        self, stages: Iterable[nn.Module], *, stage_names: Mapping[str, str], **options: Any
    ) -> None:
        super().__init__(stages, **options)
        self.stage_names = dict(stage_names)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        for key in list(state_dict):
            if key.startswith(prefix):
                state_dict[prefix + self.own_key(key[len(prefix) :])] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def own_key(self, key: str) -> str:
        """The name here of what ``key`` names in the user's module; names from here stay."""
        if any(key.startswith(f"{own}.") for own in self.stage_names.values()):
            return key
        for theirs, own in self.stage_names.items():
            if theirs == "":
                return f"{own}.{key}"
            if key.startswith(f"{theirs}."):
                return own + key[len(theirs) :]
        return key


def as_backbone(module: nn.Module, *, in_channels: int = 3, image_size: int = 32) -> Backbone:
    """Make a backbone of any module that turns images into feature maps or vectors.

    A backbone is returned as it is. A module with ``stages`` (a list, ``ModuleList`` or
    ``Sequential``) runs as those stages, and only those; any other module, an ``nn.Sequential``
    too, counts as one stage. ``out_features`` and ``min_size`` are taken from the module where it
    has them; otherwise ``out_features`` is found by running zeros of shape
    ``(2, in_channels, image_size, image_size)``, which changes nothing in the module.
    """
    if isinstance(module, Backbone):
        return module
    if not isinstance(module, nn.Module):
        raise UserError(f"expected a torch.nn.Module as backbone, found {type(module).__name__}")
    offered = getattr(module, "stages", None)
    if isinstance(offered, nn.ModuleList | nn.Sequential | list | tuple):
        stages = list(offered)
        for index, stage in enumerate(stages):
            if not isinstance(stage, nn.Module):
                raise UserError(
                    f"expected every stage of {type(module).__name__} to be a torch.nn.Module, "
                    f"found {type(stage).__name__} at {index}"
                )
        _warn_of_what_is_left_out(module, stages)
    else:
        stages = [module]

    position = {id(stage): f"stages.{index}" for index, stage in enumerate(stages)}
    backbone = AdoptedBackbone(
        stages,
        stage_names={
            name: position[id(part)]
            for name, part in module.named_modules()
            if id(part) in position
        },
        out_features=0,
        in_channels=in_channels,
        min_size=_positive_attribute(module, "min_size") or 1,
    )
    backbone.out_features = _positive_attribute(module, "out_features") or _measure_out_features(
        backbone, name=type(module).__name__, image_size=image_size
    )
    return backbone


def _positive_attribute(module: nn.Module, name: str) -> int | None:
    value = getattr(module, name, None)
    return value if isinstance(value, int) and value > 0 else None


def _warn_of_what_is_left_out(module: nn.Module, stages: list[nn.Module]) -> None:
    used = {id(parameter) for stage in stages for parameter in stage.parameters()}
    unused = [name for name, parameter in module.named_parameters() if id(parameter) not in used]
    if unused:
        warnings.warn(
            f"only the stages of {type(module).__name__} are used; parameters outside them are "
            f"left out: {', '.join(unused)}",
            stacklevel=3,
        )


def _measure_out_features(backbone: Backbone, *, name: str, image_size: int) -> int:
    try:
        return trial_features(backbone, image_size).shape[1]
    except Exception as error:
        shape = (2, backbone.in_channels, image_size, image_size)
        raise UserError(
            f"cannot use {name} as a backbone: running it on images of shape {shape} failed: "
            f"{error}. Give in_channels and image_size that fit it, or set its out_features"
        ) from error


@torch.no_grad()
def trial_features(backbone: Backbone, image_size: int) -> Tensor:
    """Features ``(2, d)`` of two black images; the backbone stays as it is, whatever comes of it.

    Two, for modules that squeeze a batch of one.
    """
    parameter = next(backbone.parameters(), torch.empty(0))
    shape = (2, backbone.in_channels, image_size, image_size)
    images = torch.zeros(shape, device=parameter.device, dtype=parameter.dtype)
    with modes_kept(backbone):
        backbone.eval()
        # Copies of the buffers, for modules that count or average in eval mode too.
        buffers = copied_buffers(backbone)
        features: Tensor = torch.func.functional_call(backbone, buffers, (images,))
    return features
