"""Backbones by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

from eigenshot.errors import UserError, did_you_mean
from eigenshot.networks.backbone import Backbone, as_backbone
from eigenshot.options import check_options, import_factory, parameters_of, takes

BackboneFunction = TypeVar("BackboneFunction", bound=Callable[..., Backbone])

_BACKBONES: dict[str, Callable[..., Backbone]] = {}


def register_backbone(function: BackboneFunction) -> BackboneFunction:
    """Make ``function`` known to :func:`create_backbone` under its own name."""
    name = function.__name__
    for known, other in _BACKBONES.items():
        same_source = (other.__module__, known) == (function.__module__, name)
        # Running a notebook cell or a module anew replaces what it registered before.
        if _normalise(known) == _normalise(name) and not same_source:
            raise UserError(f"a backbone named '{known}' is registered already")
    _BACKBONES[name] = function
    return function


def list_backbones() -> list[str]:
    """The names that :func:`create_backbone` knows, sorted."""
    return sorted(_BACKBONES)


def create_backbone(name: str, /, **options: Any) -> Backbone:
    """Build a backbone from its name, or from a user's own ``"package.module:Factory"``.

    Case, hyphens and underscores of a name do not matter: ``"WRN-28-10"`` is ``"wrn28_10"``.

    >>> create_backbone("resnet12", in_channels=1).out_features
    640
    """
    if ":" in name:
        return _create_from_path(name, options)
    for known, function in _BACKBONES.items():
        if _normalise(known) == _normalise(name):
            return function(**check_options(f"backbone '{known}'", function, options))
    raise UserError(
        f"unknown backbone '{name}'{did_you_mean(name, _BACKBONES)} "
        "(your own goes as 'package.module:Factory')"
    )


def _normalise(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _create_from_path(path: str, options: Mapping[str, Any]) -> Backbone:
    """Import and call a user's factory; its options are those of its signature.

    ``in_channels`` and ``image_size`` also say on what to try the result, so they may be given
    even where the factory does not take them.
    """
    factory = import_factory(path, "backbone")
    trial = {
        "in_channels": _side_of_trial(path, factory, options, "in_channels", 3),
        "image_size": _side_of_trial(path, factory, options, "image_size", 32),
    }
    arguments = {
        name: value for name, value in options.items() if name not in trial or takes(factory, name)
    }
    for name in trial.keys() & parameters_of(factory).keys():
        if parameters_of(factory)[name].default is inspect.Parameter.empty:
            arguments[name] = trial[name]
    arguments = check_options(path, factory, arguments)
    try:
        module = factory(**arguments)
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise UserError(f"{path}({given}) failed: {type(error).__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise UserError(f"expected {path} to give a torch.nn.Module, found {type(module).__name__}")
    return as_backbone(module, **trial)


def _side_of_trial(
    path: str, factory: Callable[..., Any], options: Mapping[str, Any], name: str, otherwise: int
) -> int:
    """What was given, else the factory's own default, else ``otherwise``."""
    parameter = parameters_of(factory).get(name)
    default = parameter.default if parameter else None
    value = options.get(name, default if type(default) is int else otherwise)
    if type(value) is not int or value < 1:
        raise UserError(f"option '{name}' of {path}: expected a positive int, found {value!r}")
    return value
