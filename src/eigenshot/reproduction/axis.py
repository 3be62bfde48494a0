"""Rows along an axis: each has a series and a place on it, or neither."""

from __future__ import annotations

from collections.abc import Mapping

from eigenshot.errors import UserError


def check_axis(axis: str, rows: Mapping[str, tuple[str, float | None]]) -> None:
    """Refuse places that cannot be drawn; ``rows`` have their series and place, by name."""
    taken: dict[tuple[str, float], str] = {}
    for name, (series, at) in rows.items():
        if not series and at is None:
            continue
        if not axis:
            given = "series" if series else "at"
            raise UserError(
                f"row '{name}' has '{given}', which is for a table with an axis; say under 'axis' "
                'what it shows, as "batch size"'
            )
        if not series or at is None:
            given, lacking = ("series", "at") if series else ("at", "series")
            raise UserError(
                f"row '{name}' has '{given}' and lacks '{lacking}'; a place on the axis needs both"
            )
        other = taken.setdefault((series, at), name)
        if other != name:
            raise UserError(
                f"rows '{other}' and '{name}' are both at {at:g} of the series '{series}'; a row "
                "needs a place of its own"
            )
    if axis and not taken:
        raise UserError(
            f"the axis '{axis}' has no rows; give them 'series' and 'at', or leave 'axis' out"
        )
