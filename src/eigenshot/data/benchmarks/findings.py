"""What a check of a data set found, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

_SHOWN = 5  # examples of a kind in the report


@dataclass(frozen=True)
class SplitSummary:
    """What one split holds. Mean and deviation are of each channel in [0, 1].

    All but ``unreadable`` is of the images that can be read.
    """

    name: str
    images: int
    classes: int
    images_a_class: tuple[int, int] | None
    sizes: dict[str, int]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    unreadable: int
    repeated: int


@dataclass(frozen=True)
class CheckReport:
    """What was found; the data set passes when ``problems`` is empty."""

    name: str
    splits: tuple[SplitSummary, ...]
    shared: dict[str, int]
    unreadable: tuple[tuple[str, str], ...]
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"passes": not self.problems, **asdict(self)}

    def to_text(self) -> str:
        """For people."""
        lines = []
        for split in self.splits:
            classes = f"{split.classes} class{'' if split.classes == 1 else 'es'}"
            kind = classes if split.classes else "unlabelled"
            if split.images_a_class:
                fewest, most = split.images_a_class
                kind += f" of {fewest:,}" + (f" to {most:,}" if most > fewest else "")
            sizes = [f"{size} ({count:,})" for size, count in split.sizes.items()]
            lines += [
                f"{self.name} {split.name}: {count_images(split.images)}, {kind}",
                f"  sizes  {some(sizes)}",
                f"  mean   {' '.join(f'{value:.4f}' for value in split.mean)}",
                f"  std    {' '.join(f'{value:.4f}' for value in split.deviation)}",
            ]
        lines += [f"note: {note}" for note in self.notes]
        lines += [f"problem: {problem}" for problem in self.problems]
        verdict = "passes" if not self.problems else f"{len(self.problems)} to be mended"
        return "\n".join([*lines, f"{self.name}: {verdict}"])


def count_images(count: int) -> str:
    """``"1 image"``, ``"2,000 images"``."""
    return f"{count:,} image{'' if count == 1 else 's'}"


def count_pictures(count: int) -> str:
    """``"1 picture"``, ``"2,000 pictures"``: what the same image may be several times."""
    return f"{count:,} picture{'' if count == 1 else 's'}"


def some(entries: Sequence[str], separator: str = ", ") -> str:
    """The first few of a list, and how many more there are."""
    more = [f"and {len(entries) - _SHOWN:,} more"] if len(entries) > _SHOWN else []
    return separator.join([*entries[:_SHOWN], *more])
