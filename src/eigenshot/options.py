"""Options that come from a file or a command line, checked against Python annotations."""

from __future__ import annotations

import importlib
import inspect
import math
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints

from eigenshot.errors import UserError, did_you_mean

Found = TypeVar("Found")


def lookup(name: str, known: Mapping[str, Found], what: str) -> Found:
    """``known[name]``, or an error that offers the nearest name."""
    if name not in known:
        raise UserError(f"unknown {what} '{name}'{did_you_mean(name, known)}")
    return known[name]


def import_factory(path: str, what: str) -> Callable[..., Any]:
    """The class or function that ``package.module:attribute`` names."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise UserError(f"expected {what} as 'package.module:Name', found '{path}'")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may fail in any way
        raise UserError(
            f"cannot import '{module_name}' for {what} '{path}': {type(error).__name__}: {error}"
        ) from error
    public = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
    if not hasattr(module, attribute):
        hint = did_you_mean(attribute, public)
        raise UserError(f"module '{module_name}' has no '{attribute}'{hint}")
    factory: Callable[..., Any] = getattr(module, attribute)
    if not (inspect.isclass(factory) or inspect.isroutine(factory)):
        raise UserError(
            f"expected {path} to be a class or function that builds a torch.nn.Module, "
            f"found an object of type {type(factory).__name__}"
        )
    return factory


def check_options(
    owner: str,
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *,
    supplied: Collection[str] = (),
) -> dict[str, Any]:
    """``options`` in the types that ``function`` expects, or a UserError that names the wrong one.

    ``owner`` is what the message calls the function; ``supplied`` are parameters that the caller
    fills itself. A list becomes a tuple and an int a float where the signature asks for it, as
    recipes have no tuples and write 0 for 0.0.
    """
    parameters = {n: p for n, p in parameters_of(function).items() if n not in supplied}
    checked = {}
    for name, value in options.items():
        if name in supplied or not takes(function, name):
            hint = did_you_mean(name, parameters)
            options_known = f" (options: {', '.join(parameters)})" if hint.endswith("?") else ""
            raise UserError(f"{owner} has no option '{name}'{hint}{options_known}")
        expected = parameters[name].annotation if name in parameters else Any
        checked[name] = coerce(value, expected, f"option '{name}' of {owner}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in checked:
            raise UserError(f"{owner} needs the option '{name}'")
    return checked


def takes(function: Callable[..., Any], name: str) -> bool:
    """Whether ``function`` takes a keyword of this name, through ``**keywords`` if need be."""
    return name in parameters_of(function) or any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in _signature(function).values()
    )


def parameters_of(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of ``function`` that can be given by name."""
    nameable = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: parameter
        for name, parameter in _signature(function).items()
        if parameter.kind in nameable
    }


def _signature(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(function, eval_str=True).parameters
    except NameError:
        # Annotations that exist for type checkers only: they stay strings and are not checked.
        return inspect.signature(function).parameters
    except ValueError:
        # Functions written in C may have none.
        return {}
    found: dict[str, inspect.Parameter] = {}
    for name, parameter in parameters.items():
        found.update(_unpacked(parameter) or {name: parameter})
    return found


def _unpacked(parameter: inspect.Parameter) -> dict[str, inspect.Parameter]:
    """The keywords that ``**options: Unpack[SomeTypedDict]`` stands for."""
    if parameter.kind is not parameter.VAR_KEYWORD or get_origin(parameter.annotation) != Unpack:
        return {}
    (table,) = get_args(parameter.annotation)
    return {
        name: inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )
        for name, annotation in get_type_hints(table).items()
    }


def plain(value: Any) -> Any:
    """``value`` with Python's numbers and lists for NumPy's, as a search over settings has them."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return value.tolist()  # NumPy itself may not be loaded yet
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def coerce(value: Any, wanted: Any, name: str) -> Any:
    """``value`` as the annotated type ``wanted``; types that are not simple pass unchecked.

    >>> coerce(1, float, "lr"), coerce([1, 2], tuple[int, ...], "widths")
    (1.0, (1, 2))
    """
    try:
        return _convert(value, wanted)
    except TypeError:
        raise UserError(f"{name}: expected {_describe(wanted)}, found {value!r}") from None
    except OverflowError:
        raise UserError(f"{name} must be finite, found {value!r}") from None


def _convert(value: Any, wanted: Any) -> Any:
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return _convert_to_any_of(value, arguments)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in arguments):
            raise TypeError
        return value
    if origin is tuple or wanted is tuple:
        return _convert_to_tuple(value, arguments)
    if origin is Sequence or origin is list:
        items = _convert_to_tuple(value, (*arguments, ...))
        return list(items) if origin is list else items
    if wanted is float and type(value) is int:
        return float(value)
    if wanted is float and type(value) is float and not math.isfinite(value):
        raise OverflowError
    # type() and not isinstance(): True is an int to Python but not to a reader.
    simple = (int, float, bool, str, dict, types.NoneType)
    if (origin or wanted) in simple and type(value) is not (origin or wanted):
        raise TypeError
    return value


def _convert_to_any_of(value: Any, choices: tuple[Any, ...]) -> Any:
    for choice in choices:
        try:
            return _convert(value, choice)
        except TypeError:
            continue
    raise TypeError


def _convert_to_tuple(value: Any, item_types: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError
    if not item_types:
        return tuple(value)
    if item_types[-1] is ...:
        return tuple(_convert(item, item_types[0]) for item in value)
    if len(value) != len(item_types):
        raise TypeError
    return tuple(_convert(item, kind) for item, kind in zip(value, item_types, strict=True))


_WORDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    bool: ("true or false", "truth values"),
    dict: ("a table", "tables"),
    types.NoneType: ("nothing", "nothings"),
}


def _describe(wanted: Any) -> str:
    """A type in words: ``int | Literal["auto"]`` is "a whole number or 'auto'"."""
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        known = [choice for choice in arguments if choice is not types.NoneType]
        return " or ".join(_describe(choice) for choice in known)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if origin in (tuple, list, Sequence):
        kinds = [kind for kind in arguments if kind is not ...]
        if len(set(kinds)) > 1:
            return f"[{', '.join(_describe(kind) for kind in kinds)}]"
        count = "" if origin is not tuple or arguments[-1] is ... else f"{len(arguments)} "
        plural = _WORDS[kinds[0]][1] if kinds[0] in _WORDS else f"values {_describe(kinds[0])}"
        return f"a list of {count}{plural}"
    if (origin or wanted) in _WORDS:
        return _WORDS[origin or wanted][0]
    return wanted.__name__ if isinstance(wanted, type) else str(wanted)
