"""The result files that are there, found by what they are of."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from eigenshot.errors import CorruptFileError
from eigenshot.reproduction.episodes import EpisodeCounts, read_episodes
from eigenshot.reproduction.results import Result, episodes_file, read_result
from eigenshot.reproduction.versions import is_version


class Library:
    """Results in a folder; files that are damaged or foreign are passed over and told.

    ``troubles`` has a sentence for each of those.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self.troubles: list[str] = []
        self._benchmarks: dict[str, list[Result]] = {}

    def of(self, benchmark: str) -> list[Result]:
        """All results on a benchmark, in the order of their names."""
        if benchmark not in self._benchmarks:
            found = []
            for path in sorted((self.folder / benchmark).glob("*.json")):
                try:
                    found.append(read_result(path))
                except CorruptFileError as error:
                    self.troubles.append(str(error))
            self._benchmarks[benchmark] = found
        return self._benchmarks[benchmark]

    def find(
        self, benchmark: str, method: str, variant: str, epochs: int | None = None
    ) -> list[Result]:
        """Results of a variant in all its versions, those of most epochs first, then by seed.

        With ``epochs``, those of so many only.
        """
        found = [
            result
            for result in self.of(benchmark)
            if result.method == method
            and is_version(result.variant, variant)
            and epochs in (None, result.epochs)
        ]
        return sorted(found, key=lambda result: (-result.epochs, result.seed))

    def episodes(self, results: Iterable[Result]) -> list[EpisodeCounts]:
        """The counts of those results that have some."""
        found = []
        for result in results:
            path = episodes_file(self.folder, result.benchmark, result.name)
            if not path.exists():
                continue
            try:
                found.append(read_episodes(path))
            except CorruptFileError as error:
                if str(error) not in self.troubles:
                    self.troubles.append(str(error))
        return found
