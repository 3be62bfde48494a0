"""Bringing data sets from the Hugging Face hub, as parquet shards in a folder of our own."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eigenshot.data.benchmarks.access import Benchmark, data_folder, find_benchmark, open_benchmark
from eigenshot.data.benchmarks.hub_load import HubProblem, load_splits
from eigenshot.data.reading.locks import locked
from eigenshot.data.tables.shard_names import split_called
from eigenshot.data.tables.shards import find_shards
from eigenshot.errors import CannotRead, UserError, reason_of
from eigenshot.files import looking_into
from eigenshot.reporter import Reporter

_SHARD_BYTES = 256 << 20
_GROUP_BYTES = 16 << 20  # of a row group, which is what a reader holds at least
_GROUP_ROWS = 1000
_BATCH_ROWS = 100  # read at a time, whose pictures may be large


def hub_folder(repository: str) -> Path:
    """Where a hub repository ``owner/name[@configuration]`` that is no benchmark is kept."""
    return data_folder() / "hub" / repository.replace("/", "--")


def fetch_benchmark(name: str, *, reporter: Reporter, force: bool = False) -> Path:
    """Bring a benchmark's shards into the folder where `open_benchmark` looks for them."""
    known = find_benchmark(name)
    folder = data_folder() / known.folder
    if known.hub is None:
        files = ", ".join(f"{split}-*.parquet" for split in known.splits)
        raise UserError(f"{name} is not on the hub: put {files} into {folder}")
    if not force and _holds_all(known):
        reporter.note(f"{folder} has all of {name} already; nothing was fetched")
        return folder
    return fetch(known.hub, folder, reporter=reporter, splits=known.hub_splits, force=force)


def _holds_all(known: Benchmark) -> bool:
    """Whether a pooled benchmark is complete: a copy may divide its rows in its own way."""
    if known.class_list is None:
        return False
    try:
        return all(
            len(open_benchmark(known, split)) >= expected.images
            for split, expected in known.expected.items()
        )
    except UserError:
        return False


def fetch(
    repository: str,
    folder: Path,
    *,
    reporter: Reporter,
    splits: Sequence[str] = (),
    force: bool = False,
) -> Path:
    """Bring a hub repository as ``split-XXXXX-of-YYYYY.parquet`` files with embedded pictures.

    They appear in ``folder`` when all are written. Shards that are there already are kept unless
    ``force`` is given, and only splits that are missing are brought; other files in the folder are
    kept always.

    Parameters
    ----------
    repository : ``owner/name``, ``owner/name@configuration``, or a local folder that the
        ``datasets`` library reads
    splits : the splits to bring; all of them when empty
    """
    folder = folder.expanduser().resolve()
    with looking_into(folder):
        if folder.exists() and not folder.is_dir():
            raise UserError(f"expected a folder to fill, found a file: {folder}")
    if not force and _holds(folder, splits):
        reporter.note(f"{folder} has parquet shards already; nothing was fetched")
        return folder
    new = [place for place in folder.parents if not place.exists()]
    try:
        # Of the processes of one run, each finds the repository missing.
        with locked(
            folder.parent / f".{folder.name}.fetch", f"fetching {repository}", reporter.note
        ):
            _fetch(repository, folder, reporter, splits, force)
    except OSError as error:
        raise UserError(_advice(repository, folder, splits, _disk_reason(error, folder))) from error
    except HubProblem as error:
        raise UserError(_advice(repository, folder, splits, str(error))) from error
    finally:
        for place in new:
            with contextlib.suppress(OSError):  # not empty, so needed
                place.rmdir()
    return folder


def _fetch(
    repository: str, folder: Path, reporter: Reporter, splits: Sequence[str], force: bool
) -> None:
    if not force and _holds(folder, splits):
        return  # another process has brought it while this one waited
    present = {} if force else _present(folder)
    wanted = [split for split in splits if split_called(split) not in present]
    partial = folder.parent / f".{folder.name}.fetch-{socket.gethostname()}-{os.getpid()}"
    try:
        _discard_leftovers(folder)
        (partial / "shards").mkdir(parents=True)
        rows = load_splits(repository, wanted, partial / "arrow")
        _write(rows, partial / "shards", reporter)
        if present:
            _add(partial, folder, list(rows))
        else:
            _put_in_place(partial, folder)
    finally:
        _discard(partial, folder)


def _holds(folder: Path, splits: Sequence[str]) -> bool:
    present = _present(folder)
    return bool(present) and all(split_called(split) in present for split in splits)


def _present(folder: Path) -> dict[str, list[Path]]:
    try:
        return find_shards(folder) if folder.is_dir() else {}
    except CannotRead:  # nor could it be replaced
        raise
    except UserError as error:
        raise UserError(f"{error}; --force replaces what is there") from error


def _write(splits: dict[str, Any], folder: Path, reporter: Reporter) -> None:
    total = sum(len(rows) for rows in splits.values())
    progress = reporter.counting("writing shards")
    done = 0
    for split, rows in splits.items():
        count = max(1, min(len(rows), -(-rows.data.nbytes // _SHARD_BYTES)))
        for index in range(count):
            shard = rows.shard(count, index, contiguous=True)
            path = folder / f"{split}-{index:05d}-of-{count:05d}.parquet"
            with path.open("wb") as handle:
                # Pictures are compressed already.
                schema = rows.features.arrow_schema
                with pq.ParquetWriter(handle, schema, compression="none") as writer:
                    for group in _row_groups(shard):
                        writer.write_table(group, row_group_size=len(group))
                        done += len(group)
                        progress(done, total)
                handle.flush()
                os.fsync(handle.fileno())


def _row_groups(rows: Any) -> Iterator[pa.Table]:
    """Tables with the pictures' bytes in them, of bounded size."""
    from datasets.table import embed_table_storage

    waiting: list[pa.Table] = []
    for batch in rows.with_format("arrow").iter(batch_size=_BATCH_ROWS):
        waiting.append(embed_table_storage(batch))
        count = sum(len(table) for table in waiting)
        if count >= _GROUP_ROWS or sum(table.nbytes for table in waiting) >= _GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _add(partial: Path, folder: Path, splits: Sequence[str]) -> None:
    """Put new splits beside those in the folder, each in one move, so that none is ever half."""
    for split in splits:
        own = partial / "added" / split
        own.mkdir(parents=True)
        for path in (partial / "shards").glob(f"{glob.escape(split)}-*.parquet"):
            path.rename(own / path.name)
        names = (f"{split}-{number}" if number else split for number in itertools.count())
        own.rename(next(folder / name for name in names if not (folder / name).exists()))


def _put_in_place(partial: Path, folder: Path) -> None:
    """Let the new shards take the folder's place; `_discard` gives its other files back."""
    if folder.exists():
        folder.rename(partial / "replaced")
    (partial / "shards").rename(folder)


def _discard(partial: Path, folder: Path) -> None:
    """Remove what a fetch worked with, after what it had put aside is where it belongs."""
    replaced = partial / "replaced"
    if replaced.exists() and not folder.exists():
        replaced.rename(folder)
    for path in sorted(replaced.rglob("*")):
        if path.is_file() and path.suffix.lower() != ".parquet":
            kept = folder / path.relative_to(replaced)
            kept.parent.mkdir(parents=True, exist_ok=True)
            path.rename(kept)
    shutil.rmtree(partial, ignore_errors=True)


def _discard_leftovers(folder: Path) -> None:
    """Clear up after fetches that were killed on this machine."""
    prefix = f".{folder.name}.fetch-{socket.gethostname()}-"
    for leftover in folder.parent.glob(f"{glob.escape(prefix)}*"):
        process = leftover.name.removeprefix(prefix)
        if process.isdecimal() and not _runs(int(process)):
            _discard(leftover, folder)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # someone else's
        return True
    return process != os.getpid()


def _disk_reason(error: OSError, folder: Path) -> str:
    return f"cannot write to {folder.parent}: {reason_of(error)}"


def _advice(repository: str, folder: Path, splits: Sequence[str], reason: str) -> str:
    files = ", ".join(f"{split}-*.parquet" for split in splits or ("train", "test"))
    return (
        f"cannot fetch {repository}: {reason}; instead of fetching it, you can put its files "
        f"({files}) into {folder} yourself"
    )
