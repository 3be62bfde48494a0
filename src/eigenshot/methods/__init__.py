"""What is minimised: one file a method, found by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from eigenshot.errors import UserError
from eigenshot.methods.barlow_twins import BarlowTwins
from eigenshot.methods.base import Method
from eigenshot.methods.baseline import Baseline
from eigenshot.methods.baseline_plus_plus import BaselinePlusPlus
from eigenshot.methods.byol import Byol
from eigenshot.methods.dle import DeepLaplacianEigenmapsMethod
from eigenshot.methods.moco import MoCo
from eigenshot.methods.shuffled_dbn import ShuffledDBN
from eigenshot.methods.simclr import SimCLR
from eigenshot.methods.simsiam import SimSiam
from eigenshot.methods.spectral_contrastive import SpectralContrastive
from eigenshot.methods.swav import SwAV
from eigenshot.methods.vicreg import VICReg
from eigenshot.methods.wmse import WMSE
from eigenshot.networks import Backbone
from eigenshot.options import check_options, import_factory, lookup, parameters_of

_METHODS: dict[str, type[nn.Module]] = {
    "dle": DeepLaplacianEigenmapsMethod,
    "barlow-twins": BarlowTwins,
    "byol": Byol,
    "mocov2": MoCo,
    "shuffled-dbn": ShuffledDBN,
    "simclr": SimCLR,
    "simsiam": SimSiam,
    "spectral-contrastive": SpectralContrastive,
    "swav": SwAV,
    "vicreg": VICReg,
    "w-mse": WMSE,
    # With labels: what the others are measured against.
    "baseline": Baseline,
    "baseline++": BaselinePlusPlus,
}

__all__ = ["DeepLaplacianEigenmapsMethod", "Method", "create_method", "list_methods"]


def list_methods() -> list[str]:
    """Names that `create_method` knows."""
    return sorted(_METHODS)


def learns_from_labels(name: str) -> bool:
    """Whether the method called ``name`` is one that wants labels: its ``draw`` takes them."""
    draw = getattr(_find(name), "draw", None)
    return callable(draw) and "labels" in parameters_of(draw)


def create_method(
    name: str,
    backbone: Backbone,
    projector: nn.Module,
    /,
    *,
    classes: int | None = None,
    **options: Any,
) -> nn.Module:
    """The method called ``name``, or a user's own given as ``package.module:Class``.

    ``classes`` is the number of labels, for a method that learns from them.
    """
    method_class = _find(name)
    supplied = ["backbone", "projector"]
    given: dict[str, Any] = {}
    if learns_from_labels(name):
        supplied.append("classes")
        given["classes"] = classes
    checked = check_options(f"method '{name}'", method_class, options, supplied=supplied)
    try:
        inspect.signature(method_class).bind(backbone, projector, **given, **checked)
    except (TypeError, ValueError):  # the second where there is no signature, as in C
        raise UserError(
            f"expected {name} to be called with a backbone and a projector, as a class of methods "
            "is; see docs/custom-method.md"
        ) from None
    method = method_class(backbone, projector, **given, **checked)
    if not isinstance(method, nn.Module) or not isinstance(
        getattr(method, "backbone", None), Backbone
    ):
        raise UserError(
            f"expected {name} to be a torch.nn.Module that keeps its 'backbone', "
            f"found {type(method).__name__}"
        )
    return method


def _find(name: str) -> Callable[..., Any]:
    return import_factory(name, "method") if ":" in name else lookup(name, _METHODS, "method")
