"""One's own data by any of their names, for a check."""

from __future__ import annotations

import os

import numpy as np

from eigenshot.data.naming import is_npz, open_named, resolve, shards_of
from eigenshot.data.npz import load_npz
from eigenshot.data.tables.array_table import ArrayTable
from eigenshot.data.tables.encoded import Encoded, Selection
from eigenshot.data.tables.shards import ShardTable, broken_shards
from eigenshot.errors import UserError
from eigenshot.reporter import Reporter


def open_table_for_check(
    data: str | os.PathLike[str], reporter: Reporter | None = None
) -> tuple[Encoded, dict[str, Selection]]:
    """The pictures of a folder, of shards, of an ``.npz`` file or of a hub repository.

    With them come the splits that have a name; none where all pictures are one. Shards that cannot
    be opened are left out and stand among the table's faults.
    """
    if is_npz(data):
        source = load_npz(data)
        pixels = source.pixels.numpy()
        return ArrayTable(pixels, source.labels, source.class_names, source.name), {}
    shards = shards_of(resolve(data, reporter))
    files = [file for part in shards.values() for file in part]
    broken = broken_shards(files)
    if broken and len(broken) == len(files):
        raise UserError(next(iter(broken.values())))
    table = open_named(data, None, reporter, without=broken)
    if not isinstance(table, ShardTable):
        return table, {}
    table.faults += tuple(broken.values())
    splits = {}
    last = 0
    for name, part in shards.items():
        first, last = last, last + sum(file not in broken for file in part)
        rows = np.arange(table.shard_starts[first], table.shard_starts[last])
        if name and len(rows):
            labels = None if table.labels is None else table.labels[rows]
            splits[name] = Selection(table, rows, labels, table.class_names, name)
    return table, splits
