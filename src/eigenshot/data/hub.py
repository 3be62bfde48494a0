"""Bringing data sets from the Hugging Face hub, as parquet shards in a folder of our own."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eigenshot.data.benchmarks import data_folder, find_benchmark
from eigenshot.data.shards import find_shards
from eigenshot.errors import UserError
from eigenshot.reporter import Reporter

_SHARD_BYTES = 256 << 20
_GROUP_BYTES = 16 << 20  # of a row group, which is what a reader holds at least
_GROUP_ROWS = 1000
_BATCH_ROWS = 100  # read at a time, whose pictures may be large
_PROBE_SECONDS = 10
_UNREACHABLE = {"ConnectionError", "TransportError", "Timeout"}


def hub_folder(repository: str) -> Path:
    """Where a hub repository ``owner/name`` that is no benchmark is kept."""
    return data_folder() / "hub" / repository.replace("/", "--")


def fetch_benchmark(name: str, *, reporter: Reporter, force: bool = False) -> Path:
    """Bring a benchmark's shards into the folder where `open_benchmark` looks for them."""
    known = find_benchmark(name)
    folder = data_folder() / known.folder
    if known.hub is None:
        files = ", ".join(f"{split}-*.parquet" for split in known.splits)
        raise UserError(f"{name} is not on the hub: put {files} into {folder}")
    return fetch(known.hub, folder, reporter=reporter, splits=known.hub_splits, force=force)


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
    ``force`` is given; other files in the folder always are.

    Parameters
    ----------
    repository : ``owner/name``, or a local folder that the ``datasets`` library reads
    splits : the splits to bring; all of them when empty
    """
    folder = folder.expanduser().resolve()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"expected a folder to fill, found a file: {folder}")
    if not force and _has_shards(folder):
        reporter.note(f"{folder} has parquet shards already; nothing was fetched")
        return folder
    partial = folder.parent / f".{folder.name}.fetch-{socket.gethostname()}-{os.getpid()}"
    try:
        _discard_leftovers(folder)
        (partial / "shards").mkdir(parents=True)
        found = _load(repository, partial / "arrow")
        chosen = _choose(repository, found, splits)
        _write(chosen, partial / "shards", reporter)
        _put_in_place(partial, folder)
    except UserError:
        raise
    except OSError as error:
        raise UserError(_advice(repository, folder, splits, _disk_reason(error, folder))) from error
    except _HubProblem as error:
        raise UserError(_advice(repository, folder, splits, str(error))) from error
    finally:
        _discard(partial, folder)
    return folder


class _HubProblem(Exception):
    """Why a repository cannot be had; the text completes "cannot fetch it: …"."""


def _has_shards(folder: Path) -> bool:
    try:
        return folder.is_dir() and bool(find_shards(folder))
    except UserError as error:
        raise UserError(f"{error}; --force replaces what is there") from error


def _load(repository: str, cache: Path) -> dict[str, Any]:
    """Every split, memory-mapped from ``cache``."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            "fetching needs the datasets library, which is not installed: pip install datasets"
        ) from error
    is_local = Path(repository).expanduser().is_dir()
    if not is_local and repository.count("/") != 1:
        raise UserError(f"expected a hub repository owner/name, found '{repository}'")
    try:
        if not is_local:
            _probe(repository)
        source = str(Path(repository).expanduser()) if is_local else repository
        return dict(datasets.load_dataset(source, cache_dir=str(cache)))
    except Exception as error:  # the library and those below it raise nearly anything
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _HubProblem(_hub_reason(error)) from error


def _probe(repository: str) -> None:
    """Fail at once where the library would retry for half a minute before it says the same."""
    from huggingface_hub import HfApi, constants

    if not constants.HF_HUB_OFFLINE:  # offline, what was downloaded before may still be there
        HfApi().dataset_info(repository, timeout=_PROBE_SECONDS)


def _choose(repository: str, found: dict[str, Any], splits: Sequence[str]) -> dict[str, Any]:
    missing = [split for split in splits if split not in found]
    if missing:
        raise _HubProblem(f"it has no split '{missing[0]}', found {', '.join(found)}")
    chosen = {split: found[split] for split in splits or found if len(found[split])}
    if not chosen:
        raise _HubProblem("it has no rows")
    return chosen


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


def _hub_reason(error: Exception) -> str:
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    if isinstance(error, DatasetGenerationError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # what went wrong, instead of that something did
    if isinstance(error, GatedRepoError) or "gated" in str(error):
        return "its owner asks for consent: agree on its page, then log in with 'hf auth login'"
    if isinstance(error, RepositoryNotFoundError | DatasetNotFoundError):
        return "there is no such repository, or it is private"
    # By name: the library has changed what it speaks HTTP with more than once.
    if {kind.__name__ for kind in type(error).__mro__} & _UNREACHABLE:
        return "the hub cannot be reached"
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _disk_reason(error: OSError, folder: Path) -> str:
    return f"cannot write to {folder.parent}: {(error.strerror or str(error)).lower()}"


def _advice(repository: str, folder: Path, splits: Sequence[str], reason: str) -> str:
    files = ", ".join(f"{split}-*.parquet" for split in splits or ("train", "test"))
    return f"cannot fetch {repository}: {reason}; or put its files ({files}) into {folder} yourself"
