"""Which columns of a parquet file hold pictures and labels, and what the labels are called.

Nothing here imports torch: worker processes load it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eigenshot.errors import UserError, did_you_mean

USUAL_IMAGES = ("image", "img", "jpg", "png", "webp", "picture")
USUAL_LABELS = ("label", "labels", "fine_label", "class", "target", "y")

# Without class names every number up to the largest label is a class; beyond this it is a mistake.
MAX_UNNAMED_CLASSES = 1_000_000

_BINARY = ("binary", "large_binary", "binary_view")
_STRING = ("string", "large_string", "string_view")


def choose_image_column(schema: pa.Schema, where: str, wanted: str | None = None) -> str:
    """The column of encoded pictures in the file called ``where``: ``wanted``, or the likeliest.

    First come columns that the hub's metadata calls images, then ``struct<bytes, path>``, then
    plain binary ones.
    """
    if wanted is not None:
        found = wanted
        if found not in schema.names:
            hint = did_you_mean(found, schema.names)
            raise UserError(f"{where} has no column '{found}' for the images{hint}")
    else:
        candidates = image_columns(schema)
        if not candidates:
            raise UserError(
                f"{where} has no column of encoded images, found: {_columns(schema)}; "
                "expected one of binary or struct<bytes, path>"
            )
        likeliest = _likeliest(candidates, USUAL_IMAGES)
        if likeliest is None:
            raise UserError(
                f"{where} has {len(candidates)} columns that may hold the images: "
                f"{', '.join(candidates)}; call the one that does 'image'"
            )
        found = likeliest
    check_image_type(schema, where, found)
    return found


def image_columns(schema: pa.Schema) -> list[str]:
    """The columns that may hold encoded pictures, of the most telling kind that there is."""
    structs = [field.name for field in schema if _is_picture_struct(field.type)]
    binaries = [field.name for field in schema if _is_binary(field.type)]
    return list(_features(schema, "Image")) or structs or binaries


def check_image_type(schema: pa.Schema, where: str, column: str) -> None:
    """Refuse a column that cannot hold encoded pictures."""
    kind = schema.field(column).type
    if not _is_binary(kind) and not _is_picture_struct(kind):
        raise UserError(
            f"{where}: the image column '{column}' holds {kind}, "
            "expected encoded images as binary or struct<bytes, path>"
        )


def picture_leaves(schema: pa.Schema, column: str) -> list[str]:
    """The parquet columns that make up an image column; the first holds the bytes."""
    kind = schema.field(column).type
    if not pa.types.is_struct(kind):
        return [column]
    present = [kind.field(number).name for number in range(kind.num_fields)]
    return [f"{column}.{part}" for part in ("bytes", "path") if part in present]


def choose_label_column(
    schema: pa.Schema, where: str, wanted: Sequence[str] | None = None
) -> str | None:
    """The column of labels in the file called ``where``, or None for an unlabelled one.

    The first of ``wanted`` that is there, none if ``wanted`` is empty; without it a class label of
    the hub's metadata, then a column of integers or strings with a usual name.
    """
    if wanted is not None:
        present = [column for column in wanted if column in schema.names]
        if wanted and not present:
            raise UserError(
                f"{where} has no label column {' or '.join(wanted)}, found: {_columns(schema)}"
            )
        return present[0] if present else None
    found = _likeliest(list(_features(schema, "ClassLabel")), USUAL_LABELS)
    if found is not None:
        return found
    plain = [field.name for field in schema if _is_integer(field.type) or _is_string(field.type)]
    return _usual(plain, USUAL_LABELS)


def unusable_labels(schema: pa.Schema) -> str | None:
    """Why a column that is called like labels is not taken for them; None where there is none."""
    if choose_label_column(schema, "") is not None:
        return None
    named = [field.name for field in schema if not pa.types.is_null(field.type)]
    found = _usual(named, USUAL_LABELS)
    if found is None:
        return None
    kind = schema.field(found).type
    return (
        f"the column '{found}' holds {kind}, which cannot be labels, so the images are taken for "
        "unlabelled; expected integers or strings"
    )


@dataclass(frozen=True)
class ShardLabels:
    """The labels of one file.

    Attributes
    ----------
    codes : int64 (n,), -1 where unknown
    names : what the codes index; None where they are numbers without names
    kind : what they are, for a message
    """

    codes: np.ndarray
    names: tuple[str, ...] | None
    kind: str


def label_kind(schema: pa.Schema, where: str, column: str) -> str:
    """What a label column holds, for messages; an error where that cannot be labels."""
    kind = schema.field(column).type
    if _is_string(kind):
        return "strings"
    if not _is_integer(kind) and not pa.types.is_null(kind):
        raise UserError(
            f"{where}: the label column '{column}' holds {kind}, expected integers or strings"
        )
    return "numbers with class names" if _names(schema, where, column) else "numbers without names"


def to_labels(values: pa.ChunkedArray, schema: pa.Schema, where: str, column: str) -> ShardLabels:
    """The values of a label column (n,) as labels; null and -1 are unknown."""
    kind = label_kind(schema, where, column)
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if kind == "strings":
        return _from_strings(values, kind)
    names = _names(schema, where, column)
    known = values.is_valid().to_numpy()
    if pa.types.is_null(values.type):
        numbers = np.zeros(len(values), dtype=np.int64)
    else:
        numbers = pc.fill_null(values, pa.scalar(0, values.type)).to_numpy()
    if numbers.dtype.kind == "i":
        known &= numbers != -1
    count = len(names) if names else MAX_UNNAMED_CLASSES
    strange = np.flatnonzero(known & ((numbers < 0) | (numbers >= count)))
    if len(strange):
        row = int(strange[0])
        raise UserError(
            f"{where}, row {row}: found the label {numbers[row]} in column '{column}', "
            f"expected 0..{count - 1}, or -1 where it is unknown"
        )
    return ShardLabels(np.where(known, numbers.astype(np.int64), -1), names, kind)


def unite_labels(
    shards: Sequence[tuple[str, ShardLabels]],
) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """Labels int64 (N,) of all files in order, and their class names; None, () if all unknown.

    Each file may number its own classes: they are united by name, in order of first appearance.
    Strings are numbered in sorted order.
    """
    labelled = [(where, own) for where, own in shards if (own.codes >= 0).any()]
    if not labelled:
        return None, ()
    first_where, first = labelled[0]
    for where, own in labelled:
        if own.kind != first.kind:
            raise UserError(
                f"the labels of {first_where} are {first.kind} and those of {where} are "
                f"{own.kind}, so they cannot be matched; open the files apart"
            )
    if first.names is None:
        count = max(int(own.codes.max()) for _, own in labelled) + 1
        return np.concatenate([own.codes for _, own in shards]), tuple(map(str, range(count)))
    united = list(dict.fromkeys(name for _, own in labelled for name in own.names or ()))
    if first.kind == "strings":
        united.sort()
    number = {name: index for index, name in enumerate(united)}
    parts = []
    for _, own in shards:
        # The last entry stands for unknown: code -1 finds it.
        renumbered = [number.get(name, -1) for name in own.names or ()] + [-1]
        parts.append(np.array(renumbered, dtype=np.int64)[own.codes])
    return np.concatenate(parts), tuple(united)


def _from_strings(values: pa.ChunkedArray, kind: str) -> ShardLabels:
    encoded = values.cast(pa.string()).dictionary_encode().unify_dictionaries()
    if encoded.num_chunks == 0:
        return ShardLabels(np.zeros(0, dtype=np.int64), (), kind)
    indices = [pc.fill_null(chunk.indices, -1).to_numpy() for chunk in encoded.chunks]
    codes = np.concatenate(indices).astype(np.int64)
    return ShardLabels(codes, tuple(encoded.chunk(0).dictionary.to_pylist()), kind)


def _features(schema: pa.Schema, kind: str) -> dict[str, dict[str, Any]]:
    """The columns that the hub's metadata gives the type ``kind``; nested ones are left out."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        described = {name: features[name] for name in schema.names if name in features}
    except (KeyError, TypeError, ValueError):  # no metadata, or none that says anything
        return {}
    return {
        name: feature
        for name, feature in described.items()
        if isinstance(feature, dict) and feature.get("_type") == kind
    }


def _names(schema: pa.Schema, where: str, column: str) -> tuple[str, ...] | None:
    """Class names of a label column from the hub's metadata; None where there are none."""
    names = _features(schema, "ClassLabel").get(column, {}).get("names")
    if not names or not isinstance(names, list):
        return None
    texts = tuple(map(str, names))
    if len(set(texts)) < len(texts):
        twice = next(name for name in texts if texts.count(name) > 1)
        raise UserError(
            f"{where}: the classes of column '{column}' must have distinct names, "
            f"found '{twice}' more than once"
        )
    return texts


def _likeliest(candidates: list[str], usual: tuple[str, ...]) -> str | None:
    """The candidate with a usual name, or the only one."""
    return candidates[0] if len(candidates) == 1 else _usual(candidates, usual)


def _usual(candidates: list[str], usual: tuple[str, ...]) -> str | None:
    by_name = {candidate.lower(): candidate for candidate in reversed(candidates)}
    return next((by_name[name] for name in usual if name in by_name), None)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema) or "no columns"


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(_plain(kind)))


def _is_string(kind: pa.DataType) -> bool:
    return str(_plain(kind)) in _STRING


def _is_binary(kind: pa.DataType) -> bool:
    return str(_plain(kind)) in _BINARY


def _is_picture_struct(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return False
    place = kind.get_field_index("bytes")
    return place >= 0 and _is_binary(kind.field(place).type)
