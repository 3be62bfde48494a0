"""Features of a data set as a file that other programs read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import nn

from eigenshot.collective import rank
from eigenshot.data.benchmarks.findings import count_images
from eigenshot.data.naming import choose_split, folder_of
from eigenshot.data.views.crops import Crops
from eigenshot.encoder import load_encoder
from eigenshot.errors import UserError, reason_of
from eigenshot.evaluation.bench import open_for
from eigenshot.evaluation.features import encoder_digest, extract_features
from eigenshot.files import as_unicode, atomic_write, make_room_for, refuse_to_replace
from eigenshot.hardware import Precision, choose_device
from eigenshot.reporter import Reporter


def embed(
    run: str | Path,
    data: Any,
    out: str | Path,
    *,
    split: str | None = None,
    backbone: nn.Module | str | None = None,
    crops: Crops | None = None,
    device: str = "auto",
    reporter: Reporter | None = None,
    cache: bool = True,
    precision: Precision = "auto",
    together: bool = False,
) -> Path:
    """Write the features of ``data`` under the encoder in ``run`` to ``out``, one row an image.

    A ``.parquet`` file has the columns ``path`` (of a folder's images, relative to it), ``label``
    and ``class`` (where there are labels; -1 and null where one is unknown) and ``features`` (a
    fixed-size list of float32); its schema's metadata has ``eigenshot.encoder`` (the encoder's
    digest), ``eigenshot.provenance`` and ``eigenshot.class_names``, the last two in JSON.

    An ``.npz`` file has ``features`` float32 (N, d), and where they are known ``labels`` int64
    (N,), ``class_names`` and ``paths`` (N,); ``encoder`` and ``provenance`` are texts as above.

    An existing file is replaced when the new one is whole. Returns the path of the file.

    Parameters
    ----------
    split : of a benchmark or of shards; ``"test"`` by default, as in evaluation.
    backbone : for an encoder with a network of the user's own, as `load_encoder` takes it.
    crops : what features are made of, as `Encoder.with_crops` takes it; None: the encoder's own.
    cache : whether features are taken from the cache, and kept there.
    precision : of the network's work, as `Encoder.transform` takes it.
    together : several processes call this at the same time, each with a device of its own. They
        share out the images, and the first one writes the file.
    """
    reporter = reporter or Reporter()
    target = _check_target(out, data)
    chosen = choose_device(device)
    encoder = load_encoder(run, backbone=backbone).with_crops(crops)
    source = open_for(encoder, data, split or choose_split(data, "test", reporter), reporter)
    if reason := make_room_for(target):  # before the work: its result must have a place
        raise UserError(f"cannot write features to '{target}': {reason}")
    features = extract_features(
        encoder,
        source,
        device=chosen,
        reporter=reporter,
        cache=cache,
        together=together,
        precision=precision,
    )
    if together and rank() > 0:
        return target
    table = _Table(
        features,
        source.labels,
        source.class_names,
        getattr(source, "paths", None),
        encoder_digest(encoder),
        json.dumps(encoder.provenance, sort_keys=True),
    )
    try:
        with atomic_write(target) as handle:
            (_write_npz if target.suffix.lower() == ".npz" else _write_parquet)(handle, table)
    except OSError as error:
        raise UserError(f"cannot write features to '{target}': {reason_of(error)}") from error
    reporter.note(f"{count_images(len(features))}, {features.shape[1]:,} features each")
    return target


@dataclass(frozen=True)
class _Table:
    """What is written: features (N, d), labels (N,), names, paths (N,), and their origin."""

    features: np.ndarray
    labels: np.ndarray | None
    class_names: tuple[str, ...]
    paths: Sequence[str] | None
    encoder: str
    provenance: str


def _check_target(out: str | Path, data: Any) -> Path:
    """The file to write, when it can be one."""
    target = Path(out).expanduser()
    # Unlike those of Path, os.path's questions are answered of what may not be looked at too.
    if os.path.isdir(target):
        raise UserError(f"expected a file to write features to, found a folder: '{out}'")
    if target.suffix.lower() not in (".npz", ".parquet"):
        raise UserError(f"features go to a .parquet or an .npz file, found '{out}'")
    given = folder_of(data)
    if given is not None and os.path.exists(given):
        if os.path.exists(target) and given.samefile(target):
            raise UserError(f"'{out}' holds the images themselves; name another file for features")
        if given.is_dir() and target.resolve().is_relative_to(given.resolve()):
            raise UserError(
                f"'{out}' lies among the images in '{given}', where it would be taken for some of "
                "them; name a file elsewhere for features"
            )
    if target.suffix.lower() == ".parquet":
        _import_pyarrow()
    if os.path.exists(target):
        refuse_to_replace(target, "holds no features", _holds_features)
    return target


def _holds_features(file: Path) -> bool:
    """Whether a file was written by `embed`."""
    try:
        if file.suffix.lower() == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                return {"features", "encoder", "provenance"} <= set(arrays.files)
        _, parquet = _import_pyarrow()
        return b"eigenshot.encoder" in (parquet.read_schema(file).metadata or {})
    except Exception:  # whatever such a file provokes, it is another's
        return False


def _write_npz(handle: IO[bytes], table: _Table) -> None:
    arrays: dict[str, np.ndarray] = {
        "features": table.features,
        "encoder": np.array(table.encoder),
        "provenance": np.array(table.provenance),
    }
    if table.labels is not None:
        arrays["labels"] = table.labels
        arrays["class_names"] = np.array(table.class_names, dtype=np.str_)
    if table.paths is not None:
        arrays["paths"] = np.array(table.paths, dtype=np.str_)
    # Floats hardly compress; savez alone is many times quicker.
    np.savez(handle, **arrays)  # type: ignore[arg-type]


def _write_parquet(handle: IO[bytes], table: _Table) -> None:
    arrow, parquet = _import_pyarrow()
    columns: dict[str, Any] = {}
    if table.paths is not None:
        columns["path"] = arrow.array([*map(as_unicode, table.paths)], arrow.string())
    names = [*map(as_unicode, table.class_names)]
    if table.labels is not None:
        columns["label"] = arrow.array(table.labels)
        if names:
            classes = [names[label] if label >= 0 else None for label in table.labels.tolist()]
            columns["class"] = arrow.array(classes, arrow.string())
    columns["features"] = arrow.FixedSizeListArray.from_arrays(
        arrow.array(table.features.reshape(-1)), table.features.shape[1]
    )
    metadata = {
        "eigenshot.encoder": table.encoder,
        "eigenshot.provenance": table.provenance,
        "eigenshot.class_names": json.dumps(table.class_names),
    }
    parquet.write_table(
        arrow.table(columns).replace_schema_metadata(metadata),
        handle,
        # A dictionary of floats is never smaller than the floats.
        use_dictionary=[name for name in columns if name in ("label", "class")],
    )


def _import_pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(
            "writing a .parquet file needs pyarrow (pip install pyarrow); an .npz file does not"
        ) from error
    return pyarrow, parquet
