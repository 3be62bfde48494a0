"""A fitted classifier as one safetensors file that suffices: its encoder is inside.

The encoder is nearly all of the file's size (50 MB for a ResNet-12); besides it there are a row of
coefficients a class and a feature an image of the support.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eigenshot.encoder import encoder_from
from eigenshot.errors import CorruptFileError, UserError, reason_of
from eigenshot.evaluation.assessment import Assessment
from eigenshot.evaluation.classifier import FewShotClassifier, FewShotLogistic
from eigenshot.evaluation.rejection import fit_rejection
from eigenshot.tensorfile import read_tensors, write_tensors

FORMAT = "eigenshot-classifier"
# The first five are those of the logistic regression.
_OPTIONS = ("C", "normalize", "fit_intercept", "tol", "balanced", "calibrate", "reject")
_WEIGHTS = "encoder."  # before the names of the encoder's own weights


def save_classifier(classifier: FewShotClassifier, path: str | Path) -> Path:
    """Write a fitted classifier; equal classifiers give equal bytes."""
    if not hasattr(classifier, "logistic_"):
        raise UserError("this classifier is not fitted yet, so there is nothing to save")
    file = Path(path)
    if not file.parent.is_dir():
        raise UserError(f"no such folder: '{file.parent}'")
    if file.is_dir():
        raise UserError(f"expected a file to write, found a folder: '{file}'")
    weights = classifier.encoder.backbone.state_dict()
    tensors = {
        "coef": torch.from_numpy(classifier.logistic_.coef_),
        "intercept": torch.from_numpy(classifier.logistic_.intercept_),
        "support": torch.from_numpy(classifier.support_),
        "support_labels": torch.from_numpy(classifier.support_labels_),
        **{f"{_WEIGHTS}{name}": tensor for name, tensor in weights.items()},
    }
    header = {
        "classes": _plain_labels(classifier.classes_),
        "temperature": classifier.temperature_,
        "options": {name: _plain(getattr(classifier, name)) for name in _OPTIONS},
        "assessment": classifier.assessment_.to_dict(),
        "support_unreadable": [list(entry) for entry in classifier.support_unreadable_],
        "encoder": classifier.encoder.header(),
    }
    try:
        write_tensors(file, tensors, header, kind=FORMAT)
    except OSError as error:
        raise UserError(f"cannot write the classifier to '{file}': {reason_of(error)}") from error
    return file


def load_classifier(
    path: str | Path, *, backbone: nn.Module | str | None = None
) -> FewShotClassifier:
    """Read a classifier that `FewShotClassifier.save` wrote. No code in the file is ever run.

    Parameters
    ----------
    backbone : the module, for an encoder that was trained with a user's own one.
    """
    file = Path(path).expanduser()
    tensors, header = read_tensors(file, kind=FORMAT)
    try:
        return _rebuild(file, tensors, header, backbone)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise CorruptFileError(
            f"'{file}' is no classifier of ours: {error!r} in its content"
        ) from error


def _rebuild(
    file: Path, tensors: dict[str, Tensor], header: dict[str, Any], backbone: nn.Module | str | None
) -> FewShotClassifier:
    weights = {n.removeprefix(_WEIGHTS): t for n, t in tensors.items() if n.startswith(_WEIGHTS)}
    encoder = encoder_from(weights, header["encoder"], str(file), backbone=backbone)
    options = {option: header["options"][option] for option in _OPTIONS}
    classifier = FewShotClassifier(encoder, **options)
    classes = np.array(header["classes"])
    table, labels = tensors["support"].numpy(), tensors["support_labels"].numpy()
    coef, intercept = tensors["coef"].numpy(), tensors["intercept"].numpy()
    shapes = (coef.shape, intercept.shape, table.shape, labels.shape)
    width, ways = encoder.out_features, len(classes)
    if shapes != ((ways, width), (ways,), (len(labels), width), (len(labels),)):
        raise CorruptFileError(
            f"'{file}' does not fit together: {ways} classes and an encoder of width {width}, "
            f"found arrays of shapes {', '.join(map(str, shapes))}"
        )
    logistic = FewShotLogistic(**{name: options[name] for name in _OPTIONS[:5]})
    logistic.classes_, logistic.coef_, logistic.intercept_ = classes, coef, intercept
    logistic.n_features_in_ = width
    classifier.logistic_, classifier.classes_ = logistic, classes
    classifier.temperature_ = float(header["temperature"])
    classifier.support_, classifier.support_labels_ = table, labels
    classifier.support_unreadable_ = tuple(
        (str(a), str(b)) for a, b in header["support_unreadable"]
    )
    classifier.assessment_ = Assessment.from_dict(header["assessment"])
    reject = options["reject"]
    classifier.rejection_ = None if reject is None else fit_rejection(table, labels, reject)
    return classifier


def _plain_labels(classes: np.ndarray) -> list[Any]:
    if classes.dtype.kind not in "Uiub" and not all(isinstance(c, str) for c in classes):
        raise UserError(
            f"only labels that are strings or whole numbers can be saved, found {classes.dtype}"
        )
    return list(classes.tolist())


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
