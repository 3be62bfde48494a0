"""Learn an encoder from unlabelled images; classify from one to five examples a class.

>>> from eigenshot import DeepLaplacianEigenmaps, load_encoder
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eigenshot.data.folder import load_folder
    from eigenshot.data.npz import load_npz
    from eigenshot.data.source import ArraySource
    from eigenshot.encoder import Encoder, load_encoder
    from eigenshot.errors import UserError
    from eigenshot.estimator import DeepLaplacianEigenmaps
    from eigenshot.evaluation.classifier import FewShotClassifier, FewShotLogistic
    from eigenshot.evaluation.classifier_file import load_classifier
    from eigenshot.evaluation.fewshot import FewShotResult, evaluate_fewshot
    from eigenshot.evaluation.logistic import LogisticFit, fit_logistic
    from eigenshot.methods import Method
    from eigenshot.networks import create_backbone, list_backbones

__all__ = [
    "ArraySource",
    "DeepLaplacianEigenmaps",
    "Encoder",
    "FewShotClassifier",
    "FewShotLogistic",
    "FewShotResult",
    "LogisticFit",
    "Method",
    "UserError",
    "create_backbone",
    "evaluate_fewshot",
    "fit_logistic",
    "list_backbones",
    "load_classifier",
    "load_encoder",
    "load_folder",
    "load_npz",
]

_PLACES = {
    "ArraySource": "eigenshot.data.source",
    "DeepLaplacianEigenmaps": "eigenshot.estimator",
    "Encoder": "eigenshot.encoder",
    "FewShotClassifier": "eigenshot.evaluation.classifier",
    "FewShotLogistic": "eigenshot.evaluation.classifier",
    "FewShotResult": "eigenshot.evaluation.fewshot",
    "LogisticFit": "eigenshot.evaluation.logistic",
    "Method": "eigenshot.methods",
    "UserError": "eigenshot.errors",
    "create_backbone": "eigenshot.networks",
    "evaluate_fewshot": "eigenshot.evaluation.fewshot",
    "fit_logistic": "eigenshot.evaluation.logistic",
    "list_backbones": "eigenshot.networks",
    "load_classifier": "eigenshot.evaluation.classifier_file",
    "load_encoder": "eigenshot.encoder",
    "load_folder": "eigenshot.data.folder",
    "load_npz": "eigenshot.data.npz",
}


def __getattr__(name: str) -> Any:
    """Import on first use: ``eigenshot --help`` must not wait for torch."""
    if name not in _PLACES:
        raise AttributeError(f"module 'eigenshot' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
