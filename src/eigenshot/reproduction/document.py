"""A table's markdown among the results: where it lies, and whose it is if it is there already."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from eigenshot.files import looking_into, refuse_to_replace
from eigenshot.reproduction.names import plain_name
from eigenshot.reproduction.plan import Choices
from eigenshot.reproduction.table import Table

_MADE_BY = re.compile(r"Made by `eigenshot reproduce (.+)` from the result files beside this one\.")
_SHOWN = re.compile(r"^!\[.*\]\((.+)\)$", re.MULTILINE)


def document_file(folder: Path, table: Table, choices: Choices) -> Path:
    """Where the markdown of a table is kept."""
    return folder / f"{table.name}{choices.suffix}.md"


def made_by(command: str) -> str:
    """The last line of a document, by which it is known again."""
    return f"Made by `{command}` from the result files beside this one."


def refuse_anothers(file: Path, given: str) -> None:
    """Refuse a ``file`` that is there and is not of the table that the user calls ``given``."""
    with looking_into(file):
        there = file.exists()
    if there:
        words = f"was not made by 'eigenshot reproduce {given}'"
        refuse_to_replace(file, words, lambda file: _is_of(file, given))


@dataclass(frozen=True)
class Owner:
    """Whose pictures are drawn: those of the table that the user calls ``given``.

    ``shown`` are the names of pictures in its document as it was.
    """

    given: str
    shown: frozenset[str] = frozenset()

    @classmethod
    def of(cls, document: Path, given: str) -> Self:
        """The owner of what a document shows, if it is there yet."""
        shown = _SHOWN.findall(_text(document)) if document.exists() else ()
        return cls(given, frozenset(shown))

    @property
    def note(self) -> str:
        """What a picture has in it that is drawn for the table."""
        return made_by(shlex.join(["eigenshot", "reproduce", self.given]))

    def owns(self, picture: Path) -> bool:
        """Whether a picture that is there was drawn for the table."""
        from eigenshot.reports.look import note_of  # matplotlib takes a second

        note = note_of(picture)
        # Older ones have no note.
        return _names(note, self.given) if note else picture.name in self.shown


def _is_of(file: Path, given: str) -> bool:
    lines = _text(file).splitlines()
    return bool(lines) and _names(lines[-1], given)


def _names(line: str, given: str) -> bool:
    """Whether a `made_by` names the table that the user calls ``given``."""
    match = _MADE_BY.fullmatch(line)
    try:
        return match is not None and _same_table(shlex.split(match[1])[0], given)
    except ValueError:  # no words of a command line
        return False


def _same_table(one: str, other: str) -> bool:
    """Whether two names are of one table, whose file may have been moved since."""
    if not (one.endswith(".toml") and other.endswith(".toml")):
        return one == other
    paths = [Path(name).expanduser() for name in (one, other)]
    if plain_name(paths[0].stem) != plain_name(paths[1].stem):
        return False
    return not all(map(os.path.exists, paths)) or os.path.samefile(*paths)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")
