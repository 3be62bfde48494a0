"""Errors meant for people: what was wrong, what was expected, what to do."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

_SHOWN = 20  # names; a longer list hides the message before it
_WEAKEST, _STRONGEST = 1e-10, 1e10  # of C


class UserError(ValueError):
    """Something the caller can mend: a wrong path, name, value or shape.

    The command line prints the message alone and exits with code 2.
    """


class TrainingDiverged(RuntimeError):
    """Training met a value that is not finite; the last good checkpoint stands."""


class ProcessLost(RuntimeError):
    """Another process of a run has died; what was saved stands."""


class CorruptFileError(UserError):
    """A file that is not what it should be: truncated, altered, or from another program."""


class CannotRead(UserError):
    """A file or folder that is there, or may be, and that the system does not let us read."""


class Busy(UserError):
    """Another process is at the same work; it can be done, or is done, when that one has ended."""


class UnreadableWarning(UserWarning):
    """Pictures that cannot be read were passed over, so what comes of the others has fewer rows."""


def check_positive(**values: float) -> None:
    """Refuse the first value that is not above zero, or infinite, by its name."""
    for name, value in values.items():
        if not value > 0:
            raise UserError(f"{name} must be positive, found {value}")
        if value == math.inf:
            raise UserError(f"{name} must be a finite number, found {value}")


def check_strength(C: float, name: str = "C") -> None:
    """Refuse an inverse strength of a penalty at which rounding would decide, not the data."""
    check_positive(**{name: C})
    if not _WEAKEST <= C <= _STRONGEST:
        raise UserError(f"{name} must lie between {_WEAKEST:g} and {_STRONGEST:g}, found {C:g}")


def check_at_least(least: int, **values: int) -> None:
    """Refuse the first value below ``least``, by its name."""
    for name, value in values.items():
        if value < least:
            raise UserError(f"{name} must be at least {least}, found {value}")


def reason_of(error: OSError) -> str:
    """Why the system refused, as the end of a sentence."""
    return (error.strerror or str(error)).lower()


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """``"; did you mean 'resnet12'?"`` for the nearest of ``choices``, or their list."""
    known = sorted(choices)
    lowered = {choice.lower(): choice for choice in known}
    close = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{lowered[close[0]]}'?"
    shown = ", ".join(known[:_SHOWN]) + (", …" if len(known) > _SHOWN else "")
    return f"; known: {shown}" if known else ""
