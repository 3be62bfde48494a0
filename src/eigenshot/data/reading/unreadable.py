"""How many pictures may be unreadable, and what is said where there are more.

Nothing here imports torch: worker processes load it.
"""

from __future__ import annotations

from collections.abc import Sequence

from eigenshot.data.tables.encoded import Encoded, Unreadable
from eigenshot.errors import UserError

_SHOWN = 3  # examples in a message


def check_max_unreadable(share: float) -> None:
    """Refuse what is no share."""
    if not 0 <= share <= 1:
        raise UserError(f"expected max_unreadable between 0 and 1, found {share!r}")


def check_unreadable(table: Encoded, unreadable: Unreadable, max_unreadable: float) -> None:
    """Refuse too large a share of pictures that cannot be read, and all of them in any case.

    A folder that cannot be looked into counts as one of them: it would have held some.
    """
    everything = tuple(sorted([*table.unlistable, *unreadable]))
    total = len(table) + len(table.unlistable)
    if len(everything) == total:
        raise nothing_readable(table.name, total, everything)
    if len(everything) / total > max_unreadable:
        raise too_many(table.name, f"{total}", len(everything) / total, everything, max_unreadable)


def too_many(
    name: str, total: str, share: float, unreadable: Sequence[tuple[str, str]], allowed: float
) -> UserError:
    """The error for ``unreadable`` pictures of ``total``, more than the share ``allowed``."""
    enough = 0.5 if share <= 0.5 else 1.0
    return UserError(
        f"{len(unreadable)} of {total} images ({share:.1%}) in {name} cannot be read, more than "
        f"the {allowed:.1%} allowed: {_some(unreadable)}. Mend or remove them; 'pretrain' takes "
        f"more with --set data.max_unreadable={enough}"
    )


def nothing_readable(name: str, count: int, unreadable: Sequence[tuple[str, str]]) -> UserError:
    """The error for ``count`` pictures of which not one can be read."""
    if count == 1:
        return UserError(f"the one image in {name} cannot be read: {_some(unreadable)}")
    return UserError(f"none of the {count} images in {name} can be read: {_some(unreadable)}")


def _some(unreadable: Sequence[tuple[str, str]]) -> str:
    shown = "; ".join(f"{place} ({reason})" for place, reason in unreadable[:_SHOWN])
    return shown + ("; …" if len(unreadable) > _SHOWN else "")
