"""What is minimised: one file a method, found by name."""

from __future__ import annotations

from typing import Any

from torch import nn

from eigenshot.errors import UserError
from eigenshot.methods.base import Method
from eigenshot.methods.dle import DeepLaplacianEigenmapsMethod
from eigenshot.networks import Backbone
from eigenshot.options import check_options, import_factory, lookup

_METHODS: dict[str, type[nn.Module]] = {"dle": DeepLaplacianEigenmapsMethod}

__all__ = ["DeepLaplacianEigenmapsMethod", "Method", "create_method", "list_methods"]


def list_methods() -> list[str]:
    """Names that `create_method` knows."""
    return sorted(_METHODS)


def create_method(
    name: str, backbone: Backbone, projector: nn.Module, /, **options: Any
) -> nn.Module:
    """The method called ``name``, or a user's own given as ``package.module:Class``."""
    if ":" in name:
        method_class = import_factory(name, "method")
    else:
        method_class = lookup(name, _METHODS, "method")
    checked = check_options(
        f"method '{name}'", method_class, options, supplied=("backbone", "projector")
    )
    method = method_class(backbone, projector, **checked)
    if not isinstance(method, nn.Module) or not isinstance(
        getattr(method, "backbone", None), Backbone
    ):
        raise UserError(
            f"expected {name} to be a torch.nn.Module that keeps its 'backbone', "
            f"found {type(method).__name__}"
        )
    return method
