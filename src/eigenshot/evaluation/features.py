"""Features once: extracted in batches, kept on disk by content, never trusted unchecked.

An entry is found by what decides the features, so it cannot go stale: another weight, pixel or
normalisation is another entry. Entries lie in ``features`` in the cache folder; the least recently
used are removed above ``$EIGENSHOT_CACHE_LIMIT_MB`` (2048 by default).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from eigenshot.collective import rank
from eigenshot.data.cache import CacheUnavailable, cache_folder
from eigenshot.data.opening import as_images, tell_unreadable
from eigenshot.data.source import Source
from eigenshot.encoder import Encoder
from eigenshot.errors import UserError
from eigenshot.evaluation.sharded import Rows, from_first, put_together, share
from eigenshot.hardware import Precision, package_version, resolve_precision
from eigenshot.reporter import Reporter
from eigenshot.tensorfile import read_tensors, write_tensors

KIND = "eigenshot-features"
LIMIT_VARIABLE = "EIGENSHOT_CACHE_LIMIT_MB"
DEFAULT_LIMIT_MB = 2048.0

# Raised whenever our own code gives other features for the same weights and pixels.
_VERSION = 2

# A hidden file of this age was left by a killed writer; a younger one may still be written.
_LEFTOVER_SECONDS = 3600.0

# Images that make whole batches, whatever batch the encoder chooses for its device.
_WHOLE_BATCHES = 1024

# What the header of an entry takes beside the features, amply.
_HEADER_BYTES = 4096


def extract_features(
    encoder: Encoder,
    source: Any,
    *,
    device: torch.device | str = "cpu",
    batch_size: int | None = None,
    reporter: Reporter | None = None,
    cache: bool = True,
    together: bool = False,
    precision: Precision = "auto",
) -> np.ndarray:
    """Features of all images of ``source``, float32 ``(N, out_features)``, in eval mode.

    The second call with equal content reads them from the cache folder and says so. A damaged
    entry is computed again; a cache that cannot be written is done without.

    Parameters
    ----------
    source : a source, or anything else that `Encoder.transform` takes.
    cache : False neither reads nor writes the cache. A backbone with modules of the user's own is
        never cached: its weights do not tell what its code computes. Nor is a streamed source: it
        knows its files by their outside, and what they hold may change unseen.
    together : several processes call this at the same time, each with a device of its own. Each
        computes the features of its share of the images; all return those of all images. Only the
        first one looks into the cache.
    precision : of the network's work, as `Encoder.transform` takes it.
    """
    reporter = reporter or Reporter()
    if batch_size is not None and batch_size < 1:
        raise UserError(f"expected a batch size of at least 1, found {batch_size}")
    precision = resolve_precision(precision, torch.device(device).type)
    images = as_images(
        source,
        image_size=encoder.preprocessing.image_size,
        channels=encoder.preprocessing.channels,
    )
    streamed = getattr(images, "reader", None) == "streamed"
    cache = cache and not streamed and _code_is_known(encoder.backbone)
    limit = _limit_bytes() if cache else 0.0  # a wrong one is refused before the work
    cache = cache and not (together and rank() > 0)
    shape = (len(images), encoder.out_features)
    stored = None
    if cache:
        header = _identity(encoder, images, device, precision)
        file = _entry(header)
        stored = None if file is None else _load(file, header, shape, reporter)
        if file is not None and stored is not None:
            reporter.note(f"features of {images.name} taken from the cache ({_shortened(file)})")
    if together:
        stored = from_first(stored, shape, device=device)
    if stored is not None:
        return stored
    told = len(getattr(images, "unreadable", ()))
    features = _compute(encoder, images, device, batch_size, reporter, together, precision)
    tell_unreadable(images, reporter, told)
    if cache:
        _store(file, features, header, limit, reporter)
    return features


def encoder_digest(encoder: Encoder) -> str:
    """Hex digest of weights, architecture and preprocessing.

    Neither the device nor the memory layout of the weights matters, nor the provenance: encoders
    of equal digest give equal features up to rounding.
    """
    preprocessing = encoder.preprocessing.to_dict()
    for name in ("mean", "std"):  # 0 and 0.0 normalise alike
        preprocessing[name] = [float(value) for value in preprocessing[name]]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(_canonical([encoder.architecture, preprocessing]))
    for name, tensor in sorted(encoder.backbone.state_dict().items()):
        digest.update(_canonical([name, str(tensor.dtype), list(tensor.shape)]))
        flat = tensor.detach().cpu().contiguous().view(-1)
        content: Any = flat.view(torch.uint8).numpy()  # a buffer, whatever NumPy's types say
        digest.update(content)
    return digest.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, default=str).encode("ascii")


def _compute(
    encoder: Encoder,
    images: Source,
    device: torch.device | str,
    batch_size: int | None,
    reporter: Reporter,
    together: bool,
    precision: Precision,
) -> np.ndarray:
    unit = batch_size or _WHOLE_BATCHES
    part = share(len(images), unit) if together else slice(0, len(images))
    own = np.empty((0, encoder.out_features), dtype=np.float32)
    if part.start < part.stop:
        own = encoder.transform(
            Rows(images, part) if together else images,
            batch_size=batch_size,
            device=device,
            precision=precision,
            progress=reporter.counting("features"),
        )
    return put_together(own, len(images), unit, device=device) if together else own


def _code_is_known(backbone: nn.Module) -> bool:
    """Whether weights, structure and versions say all that decides the features."""
    packages = {type(module).__module__.partition(".")[0] for module in backbone.modules()}
    return packages <= {"torch", "eigenshot"}


def _structure(backbone: nn.Module) -> str:
    """Hex digest of the modules and their settings, which weights alone do not show."""
    modules = [
        # An address in a description is another one in every process.
        [name, type(module).__qualname__, re.sub(r" at 0x\w+", "", module.extra_repr())]
        for name, module in backbone.named_modules()
    ]
    return hashlib.blake2b(_canonical(modules), digest_size=16).hexdigest()


def _identity(
    encoder: Encoder, images: Source, device: torch.device | str, precision: Precision
) -> dict[str, Any]:
    """All that decides the features.

    Precision, kind of device and torch's version are part of it: bf16 rounds in the third digit,
    and so do the convolutions of float32 on CUDA, which torch lets run in TF32. A result must not
    depend on what filled the cache. The batch size is not: it moves the last digits at most.
    """
    return {
        "encoder": encoder_digest(encoder),
        "structure": _structure(encoder.backbone),
        "source": images.fingerprint,
        "device": torch.device(device).type,
        "precision": precision,
        "torch": torch.__version__,
        "eigenshot": package_version(),
        "version": _VERSION,
    }


def _entry(header: dict[str, Any]) -> Path | None:
    """Where these features are kept; None where the user has no cache folder."""
    key = hashlib.blake2b(_canonical(header), digest_size=16).hexdigest()
    try:
        return cache_folder() / "features" / f"{key}.safetensors"
    except CacheUnavailable:  # no home folder can be told
        return None


def _shortened(file: Path) -> str:
    return f"{file.parent}{os.sep}{file.stem[:8]}…"


def _load(
    file: Path, header: dict[str, Any], shape: tuple[int, int], reporter: Reporter
) -> np.ndarray | None:
    """The features in ``file``, ``shape`` float32, or None where they cannot be trusted."""
    if not os.path.lexists(file):
        return None
    try:
        tensors, found = read_tensors(file, kind=KIND)
        features = tensors["features"]
        if found != header or features.shape != shape or features.dtype != torch.float32:
            raise ValueError("the entry is of other features")
        # A copy: the tensor is the mapped file, which may be cut short while it is in use.
        result: np.ndarray = features.numpy().copy()
    except Exception:  # whatever damaged bytes provoke, the features can be computed
        reporter.note(f"the cache entry {_shortened(file)} is damaged; computing it again")
        return None
    with contextlib.suppress(OSError):
        os.utime(file)  # used now, so removed later
    return result


def _store(
    file: Path | None,
    features: np.ndarray,
    header: dict[str, Any],
    limit: float,
    reporter: Reporter,
) -> None:
    """Keep ``features`` (N, d) in ``file``. A cache that cannot be written is done without."""
    reason = "no home folder was found"
    needed = features.nbytes + _HEADER_BYTES
    if file is not None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            _make_room(file, needed, limit)
            if needed <= limit:
                write_tensors(file, {"features": torch.from_numpy(features)}, header, kind=KIND)
                return
            reason = f"they take more than {LIMIT_VARIABLE}, {limit / 2**20:g} MiB"
        except OSError as error:
            reason = f"{file.parent}: {(error.strerror or type(error).__name__).lower()}"
    reporter.note(f"features are not kept in the cache: {reason}")


def _make_room(file: Path, needed: int, limit: float) -> None:
    """Remove the least recently used entries until ``needed`` more bytes stay within ``limit``.

    What another process removed meanwhile, or what the system does not let go, is passed over.
    """
    entries = []
    for path in file.parent.iterdir():
        if path == file:
            continue  # about to be replaced
        with contextlib.suppress(OSError):
            status = path.stat()
            if path.name.startswith("."):
                if time.time() - status.st_mtime > _LEFTOVER_SECONDS:
                    path.unlink()
            elif path.suffix == file.suffix:
                entries.append((status.st_mtime_ns, status.st_size, path))
    total = needed + sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit:
            return
        with contextlib.suppress(OSError):
            path.unlink()
            total -= size


def _limit_bytes() -> float:
    """How many bytes all entries may take together."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    try:
        limit = float(text) if text else DEFAULT_LIMIT_MB
    except ValueError:
        limit = -1.0
    if not limit >= 0:
        raise UserError(
            f"expected {LIMIT_VARIABLE} to be a number of MiB, 0 to keep nothing, found '{text}'"
        )
    return limit * 2**20
