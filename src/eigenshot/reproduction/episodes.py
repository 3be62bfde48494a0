"""Right answers of every few-shot task, kept so that methods can be compared task by task."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eigenshot.errors import CorruptFileError
from eigenshot.evaluation.fewshot import FewShotResult, half_width
from eigenshot.files import atomic_write

_RIGHT = "right_"


@dataclass(frozen=True)
class EpisodeCounts:
    """How many queries of each task were answered rightly.

    ``tasks`` says which tasks they are, ``questions`` how many queries one has, ``right`` has
    whole numbers ``(episodes,)`` by shots. ``images`` is a digest of those that the tasks are of,
    empty where it is not known, as in older files.
    """

    tasks: str
    questions: int
    right: dict[int, np.ndarray]
    images: str = ""


def counts_of(results: Sequence[FewShotResult], tasks: str, images: str) -> EpisodeCounts:
    """The counts behind results that share ways, queries and ``images``, told by a digest."""
    questions = results[0].ways * results[0].queries
    kind = np.uint8 if questions <= np.iinfo(np.uint8).max else np.uint16
    right = {
        result.shots: np.rint(result.per_episode * questions / 100).astype(kind)
        for result in results
    }
    return EpisodeCounts(tasks, questions, right, images)


def write_episodes(path: Path, counts: EpisodeCounts) -> None:
    """Write an ``.npz`` file atomically."""
    arrays = {f"{_RIGHT}{shots}": right for shots, right in counts.right.items()}
    with atomic_write(path) as handle:
        np.savez_compressed(
            handle,
            allow_pickle=False,
            tasks=np.array(counts.tasks),
            questions=np.array(counts.questions),
            images=np.array(counts.images),
            **arrays,
        )


def read_episodes(path: Path) -> EpisodeCounts:
    """What `write_episodes` wrote; a `CorruptFileError` that names the file for anything else."""
    damaged = CorruptFileError(
        f"'{path}' holds no counts of episodes that can be read; remove it and the result file "
        f"'{path.stem}.json' to have the run measured again"
    )
    try:
        with np.load(path, allow_pickle=False) as archive:
            right = {
                int(name.removeprefix(_RIGHT)): archive[name]
                for name in archive.files
                if name.startswith(_RIGHT)
            }
            images = str(archive["images"]) if "images" in archive.files else ""
            tasks, questions = str(archive["tasks"]), int(archive["questions"])
            counts = EpisodeCounts(tasks, questions, right, images)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
        raise damaged from error
    whole = all(a.ndim == 1 and a.size > 1 and a.dtype.kind == "u" for a in right.values())
    if not right or not whole or counts.questions < 1:
        raise damaged
    return counts


def paired(
    ones: Sequence[EpisodeCounts], others: Sequence[EpisodeCounts], shots: int
) -> tuple[float, float] | None:
    """Mean of ``ones − others`` in percent over the same tasks, and its 95 % half-width.

    Several of one side, of runs with different seeds, are averaged task by task first. None where
    they were not measured on the same tasks.
    """
    if not ones or not others or not _same_tasks([*ones, *others], shots):
        return None
    difference = _accuracy(ones, shots) - _accuracy(others, shots)
    return float(difference.mean()), half_width(difference)


def interval_over_tasks(counts: Sequence[EpisodeCounts], shots: int) -> float | None:
    """The 95 % half-width, in percent, of the mean over tasks of what all reach on average.

    None where there are no counts or they are not of the same tasks.
    """
    known = bool(counts) and _same_tasks(counts, shots)
    return half_width(_accuracy(counts, shots)) if known else None


def _same_tasks(counts: Sequence[EpisodeCounts], shots: int) -> bool:
    if any(shots not in entry.right for entry in counts):
        return False
    if len({entry.images for entry in counts} - {""}) > 1:
        return False
    return len({(entry.tasks, entry.questions, len(entry.right[shots])) for entry in counts}) == 1


def _accuracy(counts: Sequence[EpisodeCounts], shots: int) -> np.ndarray:
    """Mean accuracy of each task in percent, ``(episodes,)``."""
    shares = [100.0 * entry.right[shots] / entry.questions for entry in counts]
    mean: np.ndarray = np.mean(shares, axis=0)
    return mean
