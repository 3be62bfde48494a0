"""Tensors and a JSON header in one safetensors file, checked when read. Nothing is unpickled."""

from __future__ import annotations

import copy
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from eigenshot.errors import CorruptFileError, UserError
from eigenshot.files import atomic_write, looking_into

# One metadata entry: with several, safetensors writes them in no fixed order.
_ENTRY = "eigenshot"
_VERSION = 1


def _checksum(tensors: dict[str, Tensor]) -> int:
    value = 0
    for name in sorted(tensors):
        flat = tensors[name].contiguous().view(-1)
        content: Any = flat.view(torch.uint8).numpy()  # a buffer, whatever NumPy's types say
        value = zlib.crc32(content, zlib.crc32(name.encode(), value))
    return value


@dataclass(frozen=True)
class Content:
    """Tensors and a header as they are at a moment, on the host, ready to be written."""

    kind: str
    tensors: dict[str, Tensor]
    header: dict[str, Any]

    def write(self, path: str | Path) -> None:
        """Write a file atomically; equal content gives equal bytes."""
        entry = {
            "kind": self.kind,
            "version": _VERSION,
            "checksum": _checksum(self.tensors),
            "header": self.header,
        }
        content = save(self.tensors, metadata={_ENTRY: json.dumps(entry, sort_keys=True)})
        with atomic_write(path) as handle:
            handle.write(content)


def content_of(tensors: dict[str, Tensor], header: dict[str, Any], *, kind: str) -> Content:
    """``tensors`` and ``header`` as they are now: what happens to them later changes nothing."""
    # A copy each: safetensors refuses tensors that share memory.
    on_host = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
    return Content(kind, on_host, copy.deepcopy(header))


def write_tensors(
    path: str | Path, tensors: dict[str, Tensor], header: dict[str, Any], *, kind: str
) -> None:
    """Write ``tensors`` and ``header`` atomically; equal content gives equal bytes."""
    content_of(tensors, header, kind=kind).write(path)


def read_tensors(path: str | Path, *, kind: str | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write_tensors` wrote; ``kind=None`` takes any safetensors file.

    A file that is truncated, altered, or from another program is a `CorruptFileError`, one that
    may not be read a `CannotRead`.
    """
    file = Path(path)
    with looking_into(path):
        if file.is_dir():
            raise UserError(f"expected a file, found a folder: '{path}'")
        if not file.is_file():
            raise UserError(f"no such file: '{path}'")
        file.open("rb").close()  # one that it may not open, safetensors calls missing
    try:
        with safe_open(str(file), framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise CorruptFileError(
            f"'{path}' is no safetensors file, or a damaged one that needs a whole copy ({error})"
        ) from error
    if _ENTRY not in metadata:
        if kind is None:
            return tensors, {}
        raise CorruptFileError(f"'{path}' was written by another program, it is no {kind}")
    try:
        entry = json.loads(metadata[_ENTRY])
        found, version, header = entry["kind"], entry["version"], dict(entry["header"])
        checksum = entry["checksum"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptFileError(f"'{path}' has a damaged header: {error!r}") from error
    if kind is not None and found != kind:
        raise CorruptFileError(f"'{path}' is an {found}, where an {kind} is needed")
    if version > _VERSION:
        raise UserError(f"'{path}' was written by a newer eigenshot (format {version})")
    if _checksum(tensors) != checksum:
        raise CorruptFileError(f"'{path}' is damaged: its content does not match its checksum")
    return tensors, header
