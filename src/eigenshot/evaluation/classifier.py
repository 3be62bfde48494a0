"""Few-shot classifiers: of features, and of images through an encoder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from eigenshot.data.opening import as_images
from eigenshot.encoder import Encoder
from eigenshot.errors import UserError, check_strength
from eigenshot.evaluation.assessment import assess
from eigenshot.evaluation.calibration import balance, hold_out, logit_spread, tempered
from eigenshot.evaluation.copies import twins_across
from eigenshot.evaluation.logistic import fit_logistic
from eigenshot.evaluation.rejection import check_rate, fit_rejection, likeness_to
from eigenshot.evaluation.support import check_labels, open_support
from eigenshot.evaluation.tables import check_finite, checked_width, unit_length


class FewShotLogistic(ClassifierMixin, BaseEstimator):
    """L2-regularised logistic regression of feature vectors, as a scikit-learn classifier.

    Parameters
    ----------
    C : inverse strength of the penalty, as in scikit-learn.
    normalize : scale every feature vector to unit length first.
    fit_intercept : whether there is an intercept; it is not penalised.
    tol : bound on the gradient of the mean objective.
    balanced : let all classes weigh the same, however many images they have.

    Attributes
    ----------
    classes_ : the labels, sorted, ``(K,)``.
    coef_, intercept_ : ``(K, d)`` and ``(K,)``, also for two classes.
    n_features_in_ : d.

    Examples
    --------
    >>> model = FewShotLogistic().fit([[1.0, 0.1], [0.2, 1.0]], ["right", "up"])
    >>> model.predict([[0.9, 0.3]])
    array(['right'], dtype='<U5')
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        normalize: bool = True,
        fit_intercept: bool = True,
        tol: float = 1e-6,
        balanced: bool = False,
    ) -> None:
        self.C = C
        self.normalize = normalize
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.balanced = balanced

    def fit(self, X: Any, y: Any) -> FewShotLogistic:
        """Fit to features ``(n, d)`` and labels ``(n,)`` of any type."""
        table, labels = validate_data(self, X, y, dtype=np.float64, ensure_all_finite=False)
        check_finite(table)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(
                f"expected two classes at least, found one class only: {self.classes_[0]}"
            )
        rows, factor = balance(numbers) if self.balanced else (np.arange(len(numbers)), 1.0)
        fit = fit_logistic(
            self._scaled(table)[rows],
            numbers[rows],
            C=self.C * factor,
            fit_intercept=self.fit_intercept,
            tol=self.tol,
        )
        self.coef_ = fit.coef.numpy()
        self.intercept_ = fit.intercept.numpy()
        return self

    def logits(self, X: Any) -> np.ndarray:
        """One logit a class, ``(m, K)``, whatever K is; their softmax is `predict_proba`."""
        check_is_fitted(self, "coef_")
        table = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=False)
        check_finite(table)
        logits: np.ndarray = self._scaled(table) @ self.coef_.T + self.intercept_
        return logits

    def decision_function(self, X: Any) -> np.ndarray:
        """`logits`; of two classes their difference ``(m,)``, as scikit-learn has it."""
        logits = self.logits(X)
        return logits[:, 1] - logits[:, 0] if len(self.classes_) == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities ``(m, K)``, not calibrated."""
        return tempered(self.logits(X), 1.0)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row, ``(m,)``."""
        logits = self.logits(X)
        predicted: np.ndarray = self.classes_[logits.argmax(axis=1)]
        return predicted

    def _scaled(self, table: np.ndarray) -> np.ndarray:
        return unit_length(table) if self.normalize else table


@dataclass(frozen=True)
class Judgement:
    """What a classifier says of m images.

    ``probabilities`` is ``(m, K)``, given that an image is of one of the classes; ``likeness``
    ``(m,)`` its largest cosine to the support; ``unlike`` bool ``(m,)``, whether it is none of
    these. ``paths`` has the file of each, relative to the folder they came from. Of others it is
    None: they have the order in which they were given, less what a warning says was skipped.
    """

    probabilities: np.ndarray
    likeness: np.ndarray
    unlike: np.ndarray
    paths: tuple[str, ...] | None = None


class FewShotClassifier(BaseEstimator):
    """Classify images from one to hundreds of examples of each class.

    Probabilities are calibrated with a temperature chosen on held-out support images; see
    `eigenshot.evaluation.calibration`. Whether an image is none of the classes is told by its
    likeness to the support; see `eigenshot.evaluation.rejection`.

    Parameters
    ----------
    encoder : turns images into features; it is not changed.
    C, normalize, fit_intercept, tol, balanced : of the logistic regression, see
        `FewShotLogistic`.
    calibrate : choose a temperature; otherwise it is 1.
    reject : tolerated rate of false alarms of "none of these"; None never rejects.
    batch_size, device : of the encoder, as `Encoder.transform` takes them.

    Attributes
    ----------
    classes_ : the labels, sorted, ``(K,)``.
    logistic_ : the fitted `FewShotLogistic`.
    temperature_ : what the logits are divided by.
    assessment_ : accuracy and calibration on held-out support images, and doubtful labels.
    rejection_ : the `RejectionRule`, or None.
    support_, support_labels_ : features ``(n, d)`` float32, and positions in ``classes_``.
    support_unreadable_ : (file, reason) of support files that were left out.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        C: float = 1.0,
        normalize: bool = True,
        fit_intercept: bool = True,
        tol: float = 1e-6,
        balanced: bool = True,
        calibrate: bool = True,
        reject: float | None = 0.05,
        batch_size: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.encoder = encoder
        self.C = C
        self.normalize = normalize
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.balanced = balanced
        self.calibrate = calibrate
        self.reject = reject
        self.batch_size = batch_size
        self.device = device

    def fit(self, images: Any, labels: Any = None) -> FewShotClassifier:
        """Fit to labelled images.

        Parameters
        ----------
        images : a folder with a sub-folder a class, or whatever `Encoder.transform` takes.
        labels : one an image; None takes them from the folder or source.
        """
        if not isinstance(self.encoder, Encoder):
            raise UserError(
                f"expected an encoder, found {type(self.encoder).__name__}: "
                "load_encoder(path) reads one from a run"
            )
        support = open_support(images, labels, self.encoder.preprocessing)
        self.fit_features(self.features(support.source), support.labels, support.names)
        self.support_unreadable_ = support.unreadable
        return self

    def fit_features(
        self, features: Any, labels: Any, names: tuple[str, ...] | None = None
    ) -> FewShotClassifier:
        """Fit to features ``(n, d)`` that the encoder made; ``names`` are for messages."""
        table = checked_width(features, self.encoder.out_features)
        targets = check_labels(labels, len(table))
        check_strength(self.C)
        if self.reject is not None:
            check_rate(self.reject)
        options: dict[str, Any] = {
            name: getattr(self, name) for name in ("C", "fit_intercept", "tol", "balanced")
        }
        self.logistic_ = FewShotLogistic(normalize=self.normalize, **options).fit(table, targets)
        self.classes_ = self.logistic_.classes_
        numbers = np.searchsorted(self.classes_, targets)
        scaled = unit_length(table.astype(np.float64)) if self.normalize else table.astype(float)
        names = names or tuple(f"image {row}" for row in range(len(table)))
        assessment, sharpness = assess(
            # One number is chosen from these: they need not be as exact as the classifier itself.
            hold_out(scaled, numbers, **{**options, "tol": max(self.tol, 1e-5)}),
            numbers,
            class_names=[str(label) for label in self.classes_],
            image_names=names,
            calibrate=self.calibrate,
        )
        twins = tuple((names[one], names[other]) for one, other in twins_across(table, numbers))
        self.assessment_ = replace(assessment, twins=twins)
        spread = logit_spread(self.logistic_.logits(table))
        self.temperature_ = spread / sharpness if self.calibrate else 1.0
        self.support_, self.support_labels_ = table, numbers
        self.support_unreadable_ = ()
        self.rejection_ = (
            None if self.reject is None else fit_rejection(table, numbers, self.reject)
        )
        return self

    def judge(self, images: Any) -> Judgement:
        """Probabilities, likeness and rejection of images, and the files of a folder's."""
        return self._judged(images)

    def judge_features(self, features: Any) -> Judgement:
        """The same of features ``(m, d)`` that the encoder made."""
        check_is_fitted(self, "logistic_")
        table = checked_width(features, self.encoder.out_features)
        likeness, nearest = likeness_to(table, self.support_)
        return Judgement(
            tempered(self.logistic_.logits(table), self.temperature_),
            likeness,
            np.zeros(len(table), dtype=bool)
            if self.rejection_ is None
            else self.rejection_.rejects(likeness, self.support_labels_[nearest]),
        )

    def predict_proba(self, images: Any) -> np.ndarray:
        """Calibrated probabilities ``(m, K)``."""
        return self._judged(images).probabilities

    def predict(self, images: Any) -> np.ndarray:
        """The most probable label of each image ``(m,)``; `judge` says which are none of them."""
        probabilities = self._judged(images).probabilities  # says when nothing is fitted yet
        predicted: np.ndarray = self.classes_[probabilities.argmax(axis=1)]
        return predicted

    def score(self, images: Any, labels: Any = None) -> float:
        """Accuracy, a fraction; ``labels`` as in `fit`."""
        check_is_fitted(self, "logistic_")
        queries = open_support(images, labels, self.encoder.preprocessing, split="test")
        unknown = sorted(set(map(str, queries.labels)) - set(map(str, self.classes_)))
        if unknown:
            raise UserError(
                f"label '{unknown[0]}' is not in the support; "
                f"known: {', '.join(map(str, self.classes_))}"
            )
        return float(np.mean(self.predict(queries.source) == queries.labels))

    def save(self, path: str | Path) -> Path:
        """Write the classifier with its encoder to one safetensors file, for `load_classifier`."""
        from eigenshot.evaluation.classifier_file import save_classifier

        return save_classifier(self, path)

    def _judged(self, images: Any) -> Judgement:
        """What `judge` gives; a warning names the line that called who calls this."""
        check_is_fitted(self, "logistic_")
        like = self.encoder.preprocessing
        # Each is wanted by itself: what cannot be read is reported, none too many.
        source = as_images(
            images,
            image_size=like.image_size,
            channels=like.channels,
            max_unreadable=1.0,
            stacklevel=4,
        )
        judgement = self.judge_features(self.features(source))
        return replace(judgement, paths=getattr(source, "paths", None))

    def features(self, images: Any) -> np.ndarray:
        """What `fit_features` and `judge_features` take, ``(m, d)``, of images."""
        return self.encoder.transform(images, batch_size=self.batch_size, device=self.device)
