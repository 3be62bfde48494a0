"""Images a second from shards: decoding, and batches from each of the three readers.

    python benchmarks/data.py cifar100 [--split train] [--out FILE]
    python benchmarks/data.py --memory [--images 1000000] [--out FILE]

The peer is a torch `DataLoader` over the same files, with as many workers as there are cores: each
reads row groups in random order through pyarrow, shuffles their rows, decodes them with Pillow and
resizes what is of another size. Every reader delivers shuffled uint8 batches of 128 for whole
epochs; building the cache of the mapped reader is reported apart.

`--memory` streams a synthetic sharded source of a million pictures, in a process of its own for
each size, and reports its peak memory: it is bounded by the window, not by the source.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from eigenshot.data.benchmarks.access import BENCHMARKS, open_benchmark
from eigenshot.data.reading.chunks import decode_table
from eigenshot.data.reading.order import epoch_batches
from eigenshot.data.reading.reader import Reading, open_table
from eigenshot.data.source import Source
from eigenshot.data.tables.columns import choose_image_column
from eigenshot.data.tables.encoded import Selection
from eigenshot.data.tables.shards import ShardTable, open_shards
from eigenshot.files import write_json
from eigenshot.hardware import environment
from eigenshot.machine import cores

BATCH = 128
WINDOW = 16_384
DIVISORS = (10, 1)  # a tenth of the images, then all of them


@dataclass
class RowGroup:
    """A row group of a file, and which of its rows are wanted."""

    path: Path
    index: int
    rows: np.ndarray


def row_groups(selection: Selection) -> list[RowGroup]:
    """The row groups of a benchmark's files that have rows of a split."""
    table = cast(ShardTable, selection.table)
    groups = []
    for path, start in zip(table.shards, table.shard_starts[:-1].tolist(), strict=True):
        metadata = pq.ParquetFile(path).metadata
        for index in range(metadata.num_row_groups):
            stop = start + metadata.row_group(index).num_rows
            inside = selection.rows[(selection.rows >= start) & (selection.rows < stop)]
            if len(inside):
                groups.append(RowGroup(path, index, inside - start))
            start = stop
    return groups


class ParquetDataset(IterableDataset[torch.Tensor]):
    """What a user of PyTorch writes: the pictures of some parquet files, shuffled."""

    def __init__(self, groups: list[RowGroup], size: int) -> None:
        self.groups = groups
        self.size = size
        self.epoch = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        order = np.random.default_rng(self.epoch).permutation(len(self.groups))
        own = np.random.default_rng((self.epoch, number))
        self.epoch += 1
        for group in (self.groups[place] for place in order[number::workers]):
            file = pq.ParquetFile(group.path)
            column = choose_image_column(file.schema_arrow, str(group.path))
            pictures = file.read_row_group(group.index, columns=[column]).column(column)
            for row in own.permutation(group.rows).tolist():
                yield self._decoded(pictures[row].as_py()["bytes"])

    def _decoded(self, content: bytes) -> torch.Tensor:
        image = Image.open(io.BytesIO(content)).convert("RGB")
        if image.size != (self.size, self.size):
            image = image.resize((self.size, self.size), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)


def rate_of_loader(selection: Selection, size: int) -> float:
    """Images a second of the peer over one epoch, after its workers have started."""
    loader = DataLoader(
        ParquetDataset(row_groups(selection), size),
        batch_size=BATCH,
        drop_last=True,
        num_workers=cores(),
        persistent_workers=True,
    )
    for _ in loader:  # the first epoch starts the workers
        pass
    began = time.perf_counter()
    images = sum(len(batch) for batch in loader)
    return images / (time.perf_counter() - began)


def rate_of_epoch(source: Source, epoch: int) -> float:
    """Images a second that one epoch of shuffled batches is delivered with."""
    began, images = time.perf_counter(), 0
    for rows in epoch_batches(source, seed=0, epoch=epoch, batch_size=BATCH):
        images += len(source.images(rows))
    return images / (time.perf_counter() - began)


def measure_rates(name: str, split: str) -> dict[str, Any]:
    """Decoding and delivery for one benchmark, with an empty cache."""
    table, size = open_benchmark(name, split), BENCHMARKS[name].image_size
    began = time.perf_counter()
    decode_table(table, size=size, channels=3)
    decoded = len(table) / (time.perf_counter() - began)
    peer = rate_of_loader(table, size)
    rows = {"decoding": decoded, "DataLoader": peer}
    for reader in ("mapped", "resident", "streamed", "streamed, window of everything"):
        window = len(table) if "everything" in reader else WINDOW
        reading = Reading(reader.partition(",")[0], window)  # type: ignore[arg-type]
        began = time.perf_counter()
        source = open_table(table, size=size, channels=3, reading=reading)
        rows[f"{reader}: opening, seconds"] = time.perf_counter() - began
        first, second = rate_of_epoch(source, 0), rate_of_epoch(source, 1)
        rows[f"{reader}: first epoch"], rows[f"{reader}: next epoch"] = first, second
        if callable(close := getattr(source, "close", None)):
            close()
    for label, value in rows.items():
        ratio = "" if "seconds" in label else f"  {value / peer:8.2f} x DataLoader"
        print(f"{label:45} {value:12,.1f}{ratio}")
    shown = {label: round(value, 2) for label, value in rows.items()}
    return {"data": name, "split": split, "images": len(table), "window": WINDOW, "rates": shown}


def write_synthetic(folder: Path, images: int) -> None:
    """Shards of ``images`` small pictures, few of them distinct: only their number matters."""
    generator = np.random.default_rng(0)
    distinct = []
    for _ in range(256):
        buffer = io.BytesIO()
        pixels = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(buffer, "PNG")
        distinct.append({"bytes": buffer.getvalue(), "path": None})
    shards = max(1, images // 100_000)
    for shard in range(shards):
        rows = images // shards
        table = pa.table(
            {
                "image": [distinct[(shard + row) % 256] for row in range(rows)],
                "label": np.arange(rows) % 10,
            }
        )
        path = folder / f"train-{shard:05d}-of-{shards:05d}.parquet"
        pq.write_table(table, path, row_group_size=1000, compression="none")


def stream(folder: Path) -> None:
    """One epoch of a stream; prints the peak memory of this process and of its largest worker."""
    table = open_shards(sorted(folder.glob("*.parquet")), name="synthetic")
    reading = Reading("streamed", WINDOW)
    source = open_table(table, size=16, channels=3, reading=reading)
    rate = rate_of_epoch(source, 0)
    source.close()  # type: ignore[attr-defined]
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps({"images": len(table), "rate": rate, "mebibytes": own, "worker": worker}))


def measure_memory(images: int) -> dict[str, Any]:
    """Peak memory of streaming a tenth of the images, and all of them."""
    rows = []
    for divisor in DIVISORS:
        with tempfile.TemporaryDirectory() as folder:
            write_synthetic(Path(folder), images // divisor)
            command = [sys.executable, __file__, "--stream", folder]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
        row = json.loads(result.stdout.splitlines()[-1])
        rows.append({name: round(value) for name, value in row.items()})
        print(
            f"{row['images']:10,} images: peak {row['mebibytes']:6,.0f} MiB, a worker "
            f"{row['worker']:6,.0f} MiB, {row['rate']:,.0f} images/s"
        )
    return {"window": WINDOW, "bytes_of_an_image": 3 * 16 * 16, "streams": rows}


def main() -> None:
    """Measure what is asked, print it, keep it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", help="a benchmark whose files are here")
    parser.add_argument("--split", default="train")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--stream", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.stream:
        stream(options.stream)
        return
    with tempfile.TemporaryDirectory() as cache:  # a cache that is empty, and leaves nothing
        os.environ["EIGENSHOT_CACHE"] = cache
        if options.memory:
            record = measure_memory(options.images)
        elif options.data in BENCHMARKS:
            record = measure_rates(options.data, options.split)
        else:
            parser.error(f"expected --memory or one of {', '.join(BENCHMARKS)}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.out, {**record, "cores": cores(), **environment(torch.device("cpu"))})


if __name__ == "__main__":
    main()
