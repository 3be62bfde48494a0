"""A table's markdown among the results: where it lies, and whose it is if it is there already."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

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


def pictures_of(file: Path) -> set[str]:
    """The names of the pictures that a document shows; none where it is not there yet."""
    return set(_SHOWN.findall(_text(file))) if file.exists() else set()


def _is_of(file: Path, given: str) -> bool:
    lines = _text(file).splitlines()
    match = _MADE_BY.fullmatch(lines[-1]) if lines else None
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
