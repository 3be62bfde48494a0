"""Small parquet files for tests, as the hub and others write them."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from eigenshot.data.tables.shards import ShardTable, open_shards

CELL = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def picture(value: int, *, side: int = 8, kind: str = "PNG") -> bytes:
    """An encoded picture that no other value gives."""
    noise = np.random.default_rng(value).integers(0, 256, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


def cells(contents: Sequence[bytes | None]) -> pa.Array:
    """As the hub keeps pictures: a struct of bytes and a path."""
    return pa.array([{"bytes": content, "path": None} for content in contents], type=CELL)


def hub_metadata(**features: Any) -> dict[str, str]:
    return {"huggingface": json.dumps({"info": {"features": features}})}


def class_label(names: Sequence[str]) -> dict[str, Any]:
    return {"names": list(names), "_type": "ClassLabel"}


def write(
    path: Path,
    columns: dict[str, Any],
    features: dict[str, Any] | None = None,
    **options: Any,
) -> Path:
    """A parquet file of these columns, with the hub's metadata where ``features`` are given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if features is not None:
        table = table.replace_schema_metadata(hub_metadata(**features))
    pq.write_table(table, path, **options)
    return path


def write_hub(
    path: Path, contents: Sequence[bytes | None], labels: Sequence[int | None], names: Sequence[str]
) -> Path:
    features = {"image": {"_type": "Image"}, "label": class_label(names)}
    return write(path, {"image": cells(contents), "label": pa.array(labels, pa.int64())}, features)


def opened(*paths: Path, **options: Any) -> ShardTable:
    return open_shards(paths, name="table", **options)


def labels_of(table: ShardTable) -> list[int]:
    assert table.labels is not None
    assert table.labels.dtype == np.int64
    return table.labels.tolist()
