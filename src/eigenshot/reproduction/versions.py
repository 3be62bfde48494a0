"""Whether a result was made with the settings that its row has now; names that tell them apart."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from eigenshot.config import Config, flatten, is_recording

_MEASURED_WHEN_EMPTY = ("data.mean", "data.std", "data.window")
_IN_THE_NAME = ("training.epochs", "training.seed")


def lasting(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of flat settings that make another result."""
    return {key: value for key, value in settings.items() if not is_recording(key)}


def other_settings(
    stored: Mapping[str, Any], config: Config, *, evaluation: bool = True
) -> list[str]:
    """What differs between settings that were used and those of a run now, a text each.

    ``stored`` is nested plain values; a setting that there was not yet had its default. What is
    recorded and how fast does not count; how the encoder is measured does, unless ``evaluation``
    is False.
    """
    now = _deciding(_asked(config, evaluation))
    then = {**_deciding(_asked(Config(), evaluation)), **_deciding(stored)}
    found = []
    for key in sorted(set(then) | set(now)):
        if key.partition(".")[0] not in stored:  # a section that was not recorded says nothing
            continue
        optional = ".options." in key or ".view_" in key
        if _settles_later(key, now) or (not optional and key not in now):
            continue
        if then.get(key) != now.get(key):
            found.append(f"{key} was {_value(then, key)}, is {_value(now, key)}")
    return found


def version_of(
    variant: str,
    config: Config,
    *,
    evaluation: bool = True,
    beside: Mapping[str, Any] | None = None,
) -> str:
    """The name of a variant with these settings, where others have taken the plain one.

    ``beside`` has what else tells it apart.
    """
    settings = _deciding(_asked(config, evaluation))
    kept = {key: value for key, value in settings.items() if key not in _IN_THE_NAME}
    return f"{variant}+{short_digest(as_texts({**kept, **(beside or {})}))}"


def is_version(name: str, variant: str) -> bool:
    """Whether ``name`` is ``variant``, or what `version_of` makes of it."""
    plain, _, digest = name.rpartition("+")
    return name == variant or (plain == variant and bool(re.fullmatch("[0-9a-f]{8}", digest)))


def as_texts(settings: Mapping[str, Any]) -> list[str]:
    """``["optimizer.lr=0.05", …]`` in the order of the names."""
    return [f"{key}={shown(value)}" for key, value in sorted(settings.items())]


def shown(value: Any) -> str:
    """A value as it is given on a command line."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def short_digest(texts: Iterable[str]) -> str:
    """Eight characters that differ where the texts do."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=4).hexdigest()


def _asked(config: Config, evaluation: bool) -> dict[str, Any]:
    asked = config.lasting()
    if evaluation:
        asked["evaluation"] = config.to_dict()["evaluation"]
    return asked


def _settles_later(key: str, now: Mapping[str, Any]) -> bool:
    """Whether a run itself decides a setting."""
    if key.startswith("backbone.") and now.get("backbone.name") == "auto":
        return True
    return now.get(key) == "auto" or (key in _MEASURED_WHEN_EMPTY and not now.get(key))


def _deciding(table: Mapping[str, Any]) -> dict[str, Any]:
    flat = lasting(flatten(table))
    plain: dict[str, Any] = json.loads(json.dumps(flat))  # no tuples, as in a result file
    return plain


def _value(table: Mapping[str, Any], key: str) -> str:
    return json.dumps(table[key]) if key in table else "not set"
