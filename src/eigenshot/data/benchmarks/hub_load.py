"""What a hub repository holds, through the ``datasets`` library; and why it cannot be had."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eigenshot.errors import UserError

_PROBE_SECONDS = 10
_UNREACHABLE = {"ConnectionError", "TransportError", "Timeout"}


class HubProblem(Exception):
    """Why a repository cannot be had; the text completes "cannot fetch it: …"."""


def load_splits(repository: str, splits: Sequence[str], cache: Path) -> dict[str, Any]:
    """The rows of some splits, all of them when none is named, memory-mapped from ``cache``.

    Only the files of these splits are downloaded, where the repository tells which they are.

    Parameters
    ----------
    repository : ``owner/name``, ``owner/name@configuration``, or a local folder
    """
    try:
        import datasets
    except ImportError as error:
        raise HubProblem("the datasets library is not installed: pip install datasets") from error
    source, configuration = _parse(repository)
    try:
        builder = _open(datasets, repository, source, configuration, cache)
        _restrict(builder, splits)
        builder.download_and_prepare()
        found = {name: builder.as_dataset(split=name) for name in splits or builder.info.splits}
    except HubProblem:
        raise
    except Exception as error:  # the library and those below it raise nearly anything
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise HubProblem(_reason(error)) from error
    chosen = {name: rows for name, rows in found.items() if len(rows)}
    if not chosen:
        raise HubProblem("it has no rows")
    return chosen


def _parse(repository: str) -> tuple[str, str | None]:
    """What the library loads, and the configuration that is named."""
    local = Path(repository).expanduser()
    if local.is_dir():
        return str(local), None
    name, _, configuration = repository.partition("@")
    if Path(name).expanduser().is_dir():
        return str(Path(name).expanduser()), configuration or None
    if name.count("/") != 1:
        raise UserError(f"expected a hub repository owner/name, found '{repository}'")
    return name, configuration or None


def _open(
    datasets: Any, repository: str, source: str, configuration: str | None, cache: Path
) -> Any:
    if not Path(source).is_dir():
        _probe(source)
    try:
        return datasets.load_dataset_builder(source, configuration, cache_dir=str(cache))
    except ValueError:  # among others, where a configuration must be chosen, or does not exist
        known = datasets.get_dataset_config_names(source)
        if configuration in known or (configuration is None and len(known) < 2):
            raise
    name = repository.partition("@")[0]
    wrong = "" if configuration is None else f", not '{configuration}'"
    raise HubProblem(
        f"it has the configurations {', '.join(known)}{wrong}; choose one, as in "
        f"'hub:{name}@{known[0]}'"
    )


def _probe(repository: str) -> None:
    """Fail at once where the library would retry for half a minute before it says the same."""
    from huggingface_hub import HfApi, constants

    if not constants.HF_HUB_OFFLINE:  # offline, what was downloaded before may still be there
        HfApi().dataset_info(repository, timeout=_PROBE_SECONDS)


def _restrict(builder: Any, splits: Sequence[str]) -> None:
    """Let the builder know of no other files and rows than those of ``splits``."""
    files = builder.config.data_files
    if not splits or not files:
        return
    missing = [split for split in splits if split not in files]
    if missing:
        raise HubProblem(f"it has no split '{missing[0]}', found {', '.join(files)}")
    builder.config.data_files = type(files)({split: files[split] for split in splits})
    expected = builder.info.splits  # checked against what comes
    for split in set(expected or ()) - set(splits):
        del expected[split]


def _reason(error: Exception) -> str:
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
