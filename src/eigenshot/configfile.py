"""Settings in TOML: recipes and their overrides are read, a run's own are written."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from eigenshot.config import Config, flatten
from eigenshot.errors import UserError, did_you_mean
from eigenshot.files import looking_into
from eigenshot.options import coerce, plain

_OPTIONS = "method.options."
_EITHER = {"dle": ("gamma", "k_gamma")}  # options of a method that say one thing in two ways


def list_recipes() -> list[str]:
    """Names of the recipes in the package."""
    folder = resources.files("eigenshot") / "recipes"
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".toml"))


def read_recipe(name: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The table of a recipe by name, or of a TOML file by path; those ``above`` have it as base."""
    if name in above:
        raise UserError(f"recipe '{name}' is its own base: {' → '.join([*above, name])}")
    if name.endswith(".toml"):
        text, label = _text_of(name), Path(name).stem
    else:
        known = list_recipes()
        if name not in known:
            raise UserError(f"unknown recipe '{name}'{did_you_mean(name, known)}")
        entry = resources.files("eigenshot") / "recipes" / f"{name}.toml"
        text, label = entry.read_text(encoding="utf-8"), name
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"recipe '{name}' is not valid TOML: {error}") from error
    table.setdefault("recipe", label)
    base = table.pop("base", None)
    if base is None:
        return table
    under = read_recipe(str(base), (*above, name))
    method = _section(table, "method")
    under = _with_method(under, method.get("name"))
    return _merge(_making_way(under, _section(method, "options")), table)


def _text_of(file: str) -> str:
    """What stands in a recipe file of the user's."""
    path = Path(file)
    with looking_into(file):
        if not path.is_file():
            raise UserError(f"no such recipe file: '{file}'")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"recipe '{file}' is no text in UTF-8: {error}") from error


def method_table(name: str) -> dict[str, Any]:
    """A method's own head and options, as tables of a recipe; empty where it has no file.

    A method of a user's own has none: it works on the head of the recipe.
    """
    entry = resources.files("eigenshot") / "recipes" / "methods" / f"{name}.toml"
    return tomllib.loads(entry.read_text(encoding="utf-8")) if entry.is_file() else {}


def _with_method(table: dict[str, Any], name: str | None) -> dict[str, Any]:
    """``table`` for the method called ``name``; where it is another, with that one's defaults.

    Data, views, network and schedule stay: they belong to the benchmark. What stands in a method's
    own file, head and options, replaces what the table has for its own method.
    """
    if name is None or name == _section(table, "method").get("name"):
        return table
    return {**table, "method": {"name": name}, **method_table(name)}


def _making_way(table: dict[str, Any], new: Iterable[str]) -> dict[str, Any]:
    """``table`` without the options of its method that ``new`` ones, by name, replace."""
    method = _section(table, "method")
    given = _section(method, "options")
    kept = _without_other_ways(given, new, str(method.get("name")))
    return table if kept == given else {**table, "method": {**method, "options": kept}}


def _without_other_ways(
    options: Mapping[str, Any], new: Iterable[str], method: str, prefix: str = ""
) -> dict[str, Any]:
    """``options`` of ``method`` by name without what ``new`` ones say, be it in another way."""
    ways = {f"{prefix}{name}" for name in _EITHER.get(method, ())}
    replaced = ways if ways & {*new} else set()
    return {name: value for name, value in options.items() if name not in replaced}


def _section(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    """What stands under ``key`` as a table; what is none is refused when all is put together."""
    found = table.get(key)
    return found if isinstance(found, dict) else {}


def _merge(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` on top of ``under``, section by section."""
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(under.get(key), dict)
        merged[key] = _merge(under[key], value) if both else value
    return merged


def load_config(recipe: str, overrides: Mapping[str, Any] | Iterable[str] = ()) -> Config:
    """A recipe with overrides, validated.

    Parameters
    ----------
    overrides : ``{"optimizer.lr": 0.1}`` or texts like ``"optimizer.lr=0.1"``.
    """
    if not isinstance(overrides, Mapping):
        overrides = dict(parse_override(text) for text in overrides)
    overrides = {key: plain(value) for key, value in overrides.items()}
    table = _with_method(read_recipe(recipe), overrides.get("method.name"))
    for section, name in (("backbone", "name"), ("augment", "kind")):
        # Options belong to what they are options of: another network has other ones.
        asked = overrides.get(f"{section}.{name}")
        known = _section(table, section)
        if asked is not None and asked != known.get(name):
            for options in ("options", "view_a", "view_b"):
                known.pop(options, None)
    named = (key.removeprefix(_OPTIONS) for key in overrides if key.startswith(_OPTIONS))
    table = _making_way(table, named)
    for key, value in overrides.items():
        _set(table, key, value)
    return config_from_table(table)


def layered(method: str, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides for ``method``, of which later ones replace earlier ones, however they say it."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = {**_without_other_ways(merged, layer, method, _OPTIONS), **layer}
    return merged


def parse_override(text: str) -> tuple[str, Any]:
    """``"optimizer.lr=0.1"`` as a key and a TOML value; what is no TOML counts as a text."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise UserError(f"--set takes key=value, for instance optimizer.lr=0.1; found '{text}'")
    try:
        parsed = tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    # A whole section would pass by what is checked of its settings by their names.
    if isinstance(parsed, dict) and "." not in key:
        raise UserError(
            f"--set takes one setting at a time, for instance optimizer.lr=0.1; found the section "
            f"'{text}'"
        )
    return key.strip(), parsed


def _set(table: dict[str, Any], key: str, value: Any) -> None:
    *sections, name = key.split(".")
    place = table
    for section in sections:
        deeper = place.setdefault(section, {})
        if not isinstance(deeper, dict):
            raise UserError(f"'{key}' cannot be set: '{section}' is no section")
        place = deeper
    place[name] = value


def config_from_table(table: Mapping[str, Any]) -> Config:
    """Typed settings from nested plain values; unknown keys offer the nearest valid one."""
    config: Config = _build(Config, table, "")
    return config


def _build(kind: type, table: Mapping[str, Any], prefix: str) -> Any:
    hints = typing.get_type_hints(kind)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise UserError(f"unknown setting '{prefix}{key}'{_nearest_key(prefix, key, value)}")
        if dataclasses.is_dataclass(hints[key]):
            if not isinstance(value, Mapping):
                raise UserError(f"'{prefix}{key}' is a section, found {value!r}")
            values[key] = _build(typing.cast(type, hints[key]), value, f"{prefix}{key}.")
        else:
            values[key] = coerce(value, hints[key], f"{prefix}{key}")
    return kind(**values)


def _nearest_key(prefix: str, key: str, value: Any) -> str:
    """The hint for an unknown key: the same name in another section, else the nearest spelling."""
    wanted = flatten({key: value}, prefix) if isinstance(value, Mapping) else {f"{prefix}{key}": 0}
    every = _all_keys(Config, "")
    for name in wanted:
        elsewhere = [known for known in every if known.split(".")[-1] == name.split(".")[-1]]
        if elsewhere:
            return f"; did you mean '{elsewhere[0]}'?"
    return did_you_mean(next(iter(wanted), f"{prefix}{key}"), every)


def _all_keys(kind: type, prefix: str) -> list[str]:
    keys = []
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            keys += [f"{prefix}{name}", *_all_keys(typing.cast(type, hint), f"{prefix}{name}.")]
        else:
            keys.append(f"{prefix}{name}")
    return keys


def to_toml(config: Config) -> str:
    """The whole configuration as TOML that `load_config` reads back."""
    lines: list[str] = []
    _write_table(config.to_dict(), "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _write_table(table: Mapping[str, Any], prefix: str, lines: list[str]) -> None:
    for key, value in table.items():
        if not isinstance(value, Mapping) and value is not None:
            lines.append(f"{key} = {_toml_value(value)}")
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            lines.extend(["", f"[{prefix}{key}]"])
            _write_table(value, f"{prefix}{key}.", lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(entry) for entry in value) + "]"
    if isinstance(value, str):
        # JSON's texts are TOML's, but for one character.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
