"""The encoder: the only thing that leaves training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from eigenshot.data.opening import as_images
from eigenshot.data.views.crops import Crops, check_crops, fixed_crops
from eigenshot.data.views.views import normalise
from eigenshot.errors import CorruptFileError, UserError, check_at_least
from eigenshot.files import looking_into
from eigenshot.hardware import Precision, resolve_precision
from eigenshot.networks import Backbone, as_backbone, create_backbone
from eigenshot.tensorfile import read_tensors, write_tensors

FORMAT = "eigenshot-encoder"
FILE_NAME = "encoder.safetensors"

# A GPU is busy with many images; a CPU is as fast as the part of their maps that its caches hold.
_BATCH_SIZE = {"cuda": 1024, "cpu": 32}


def busy_batch(device: torch.device | str) -> int:
    """How many images a frozen network takes at once to be quick on the device."""
    return _BATCH_SIZE.get(torch.device(device).type, 256)


@dataclass(frozen=True)
class Preprocessing:
    """What an image goes through before the network: side length, channels, normalisation.

    ``crops`` are what the network looks at: the whole image, or fixed crops of it, of whose
    features of unit length the mean is taken.
    """

    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crops: Crops = "whole"

    def __post_init__(self) -> None:
        check_crops(self.crops)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; whole images go without saying, as in older files."""
        fields = asdict(self)
        if self.crops == "whole":
            del fields["crops"]
        return fields


@dataclass
class Encoder:
    """A frozen backbone with its preprocessing and its provenance.

    ``architecture`` is ``{"name", "options"}`` of a registered backbone; the name ``"custom"``
    stands for a module that the reader must bring along. With a user's own network there is the
    ``"image_size"`` too that it was made for.
    """

    backbone: Backbone
    preprocessing: Preprocessing
    architecture: dict[str, Any]
    provenance: dict[str, Any] = field(default_factory=dict)

    @property
    def out_features(self) -> int:
        """Length of a feature vector."""
        return self.backbone.out_features

    @torch.no_grad()
    def transform(
        self,
        images: Any,
        *,
        batch_size: int | None = None,
        device: torch.device | str = "cpu",
        precision: Precision = "auto",
        progress: Callable[[int, int], None] | None = None,
    ) -> np.ndarray:
        """Features of images, ``(N, out_features)`` float32, after global average pooling.

        With crops (`with_crops`) the mean of their features, each of unit length.

        Parameters
        ----------
        images : a source, a folder, image files, Pillow images, or an array ``(N, H, W)``,
            ``(N, H, W, C)`` or ``(N, C, H, W)``; resized to what the encoder was trained on.
        batch_size : images at once; by default what is quick on the device.
        precision : of the network's work: ``"bf16"``, by default where the GPU computes in it, or
            ``"float32"``.
        progress : called with the number of images done and of all.
        """
        if batch_size is not None:
            check_at_least(1, batch_size=batch_size)
        source = as_images(
            images, image_size=self.preprocessing.image_size, channels=self.preprocessing.channels
        )
        precision = resolve_precision(precision, torch.device(device).type)
        batch = batch_size or busy_batch(device)
        was_training = self.backbone.training
        self.to(device).backbone.eval()
        # They stay on the device to the end, so that no batch waits for the one before.
        features = torch.empty((len(source), self.out_features), device=device)
        try:
            for start in range(0, len(source), batch):
                rows = np.arange(start, min(start + batch, len(source)))
                pictures = source.images(rows).to(device)
                features[start : start + len(rows)] = self._of_crops(pictures, precision)
                if progress is not None:
                    progress(start + len(rows), len(source))
        finally:
            self.backbone.train(was_training)
        result: np.ndarray = features.cpu().numpy()
        return result

    def to(self, device: torch.device | str) -> Self:
        """Bring the backbone to ``device``; one that is there stays in its place in memory.

        A captured training step knows the weights by their addresses, and a change of layout may
        copy even those whose layout is right.
        """
        wanted = torch.empty(0, device=device).device  # with its number
        tensors = chain(self.backbone.parameters(), self.backbone.buffers())
        if any(tensor.device != wanted for tensor in tensors):
            self.backbone.to(wanted, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return self

    def features(self, images: Tensor, *, precision: Precision = "auto") -> Tensor:
        """Features of ``(B, C, H, W)`` on the backbone's device, float32 ``(B, out_features)``.

        uint8 images are normalised first; views are float32 and have been. All features are made
        here, so that those of training and of test images have one precision. The backbone stays
        in its mode.
        """
        kind = images.device.type
        half = resolve_precision(precision, kind) == "bf16"
        pictures = self.normalise(images) if images.dtype == torch.uint8 else images
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        with torch.autocast(kind, torch.bfloat16, enabled=half):
            found: Tensor = self.backbone(pictures)
        return found.float()

    def with_crops(self, crops: Crops | None) -> Encoder:
        """The same encoder, sharing its weights, that looks at other ``crops`` of an image.

        ``"whole"`` is the image itself, ``"five"`` corners and centre, ``"ten"`` these and their
        mirror images: five and ten times the work. None changes nothing.
        """
        if crops is None:
            return self
        return replace(self, preprocessing=replace(self.preprocessing, crops=crops))

    def features_in_parts(self, images: Tensor, *, precision: Precision = "auto") -> Tensor:
        """What `features` gives, as many images at once as are quick on their device.

        For a backbone in evaluation mode, in which an image's features are its own.
        """
        parts = images.split(busy_batch(images.device))
        return torch.cat([self.features(part, precision=precision) for part in parts])

    def _of_crops(self, images: Tensor, precision: Precision) -> Tensor:
        """Features of uint8 ``(B, C, H, W)``, the mean over crops; ``(B, out_features)``."""
        crops = self.preprocessing.crops
        if crops == "whole":
            return self.features(images, precision=precision)
        found = [
            functional.normalize(self.features(view, precision=precision), dim=1)
            for view in fixed_crops(self.normalise(images), crops)
        ]
        return torch.stack(found).mean(dim=0)

    def normalise(self, images: Tensor) -> Tensor:
        """uint8 ``(B, C, H, W)`` to what the backbone takes, float32 of the same shape."""
        return normalise(images, self.preprocessing.mean, self.preprocessing.std)

    def save(self, path: str | Path) -> Path:
        """Write the encoder to one safetensors file; equal encoders give equal bytes."""
        write_tensors(path, self.backbone.state_dict(), self.header(), kind=FORMAT)
        return Path(path)

    def header(self) -> dict[str, Any]:
        """All but the weights, as plain values."""
        return {
            "architecture": self.architecture,
            "preprocessing": self.preprocessing.to_dict(),
            "provenance": self.provenance,
        }


def encoder_path(path: str | Path) -> Path:
    """The file itself, or the encoder inside a run folder."""
    file = Path(path).expanduser()
    if file.is_dir():
        if not (file / FILE_NAME).is_file():
            if (file / "config.toml").is_file():
                raise UserError(
                    f"the run in '{path}' is unfinished: go on with it by pretrain … --resume first"
                )
            raise UserError(f"'{path}' is no run: it holds no {FILE_NAME}")
        return file / FILE_NAME
    if not file.is_file():
        raise UserError(f"no such run or encoder file: '{path}'")
    return file


def load_encoder(path: str | Path, *, backbone: nn.Module | str | None = None) -> Encoder:
    """Read an encoder from its file or from a run folder. No code in the file is ever run.

    Parameters
    ----------
    backbone : for an encoder that was trained with a user's own network, the module or its
        ``"package.module:Factory"``.
    """
    with looking_into(path):
        file = encoder_path(path)
    tensors, header = read_tensors(file, kind=FORMAT)
    return encoder_from(tensors, header, str(file), backbone=backbone)


def encoder_from(
    tensors: dict[str, Tensor],
    header: dict[str, Any],
    file: str,
    *,
    backbone: nn.Module | str | None = None,
) -> Encoder:
    """The encoder of weights and a header as `Encoder.header` makes it; ``file`` is for errors."""
    try:
        fields = dict(header["preprocessing"])
        preprocessing = Preprocessing(
            image_size=int(fields["image_size"]),
            channels=int(fields["channels"]),
            mean=tuple(fields["mean"]),
            std=tuple(fields["std"]),
            crops=fields.get("crops", "whole"),
        )
        architecture = dict(header["architecture"])
        name, options = architecture["name"], architecture["options"]
        size = int(architecture.get("image_size", preprocessing.image_size))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptFileError(
            f"'{file}' is no encoder of ours: {error!r} in its header"
        ) from error
    channels = preprocessing.channels
    if isinstance(backbone, str):
        own_size = {"image_size": size} if ":" in backbone else {}
        network = create_backbone(backbone, in_channels=channels, **own_size, **options)
    elif backbone is not None:
        network = as_backbone(backbone, in_channels=channels, image_size=size)
    elif name == "custom" or ":" in name:
        raise UserError(
            f"'{file}' was trained with a backbone of its user's ({name}); bring it along: "
            "backbone=module in Python, or --backbone package.module:Factory"
        )
    else:
        network = create_backbone(name, in_channels=channels, **options)
    load_weights(network, tensors, file)
    # Convolutions are quicker so, on a CPU too.
    network.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Encoder(network, preprocessing, architecture, dict(header.get("provenance", {})))


def load_weights(backbone: Backbone, tensors: dict[str, Tensor], origin: str) -> None:
    """Fill ``backbone``; names or shapes that do not fit are listed in the error."""
    tensors = {backbone.own_key(name): tensor for name, tensor in tensors.items()}
    wanted = backbone.state_dict()
    missing = sorted(set(wanted) - set(tensors))
    surplus = sorted(set(tensors) - set(wanted))
    misfits = [
        f"{name} {tuple(tensors[name].shape)} for {tuple(wanted[name].shape)}"
        for name in sorted(set(wanted) & set(tensors))
        if tensors[name].shape != wanted[name].shape
    ]
    if missing or surplus or misfits:
        found = [
            f"{len(names)} {what} ({', '.join(names[:3])}{' …' if len(names) > 3 else ''})"
            for names, what in (
                (missing, "missing"),
                (surplus, "unknown"),
                (misfits, "of another shape"),
            )
            if names
        ]
        raise UserError(f"the weights in '{origin}' do not fit this backbone: {'; '.join(found)}")
    backbone.load_state_dict(tensors)
