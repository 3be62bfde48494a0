"""The method as a scikit-learn estimator."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from eigenshot.errors import UserError
from eigenshot.hardware import choose_device
from eigenshot.methods import learns_from_labels
from eigenshot.reporter import ConsoleReporter, Reporter
from eigenshot.training.lengthen import settings_for
from eigenshot.training.pretrain import pretrain


class DeepLaplacianEigenmaps(TransformerMixin, BaseEstimator):
    """Learn an encoder from unlabelled images.

    Parameters
    ----------
    recipe : name or TOML file of the settings to start from; by default the benchmark's own, and
        ``"folder"`` for other images.
    backbone : name of a registered backbone, ``"package.module:Factory"``, or a module.
    epochs, batch_size : override the recipe; None leaves them to it.
    image_size : the side at which pictures are kept, views are cut and the encoder looks, if the
        recipe's ``training.resolution`` says nothing else of views; None leaves it to the recipe.
    settings : further overrides, e.g. ``{"optimizer.lr": 0.1, "method.options.alpha": 0.2}``.
    initial : an encoder file or state dict to start from.
    lengthen : folder of a run of fewer epochs, whose ``optimizer.schedule`` is ``"trapezoid"``, to
        go on from with its settings, as if it had been asked for as many.
    out : folder to keep the run in; a temporary one by default.
    resume : go on from the last checkpoint in `out`.
    seed : of weights, order, augmentation and mixing; 0 beside `lengthen` is that run's.
    device : ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"mps"``.
    verbose : show progress.

    Attributes
    ----------
    encoder_ : the learned `Encoder`.
    summary_ : time, images a second, versions and last metrics of the run.
    n_features_out_ : length of a feature vector.

    Examples
    --------
    >>> import numpy as np
    >>> images = np.random.default_rng(0).integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)
    >>> model = DeepLaplacianEigenmaps(backbone="conv4", epochs=1, batch_size=16)
    >>> model.fit(images).transform(images).shape
    (32, 64)
    """

    def __init__(
        self,
        *,
        recipe: str | None = None,
        backbone: str | nn.Module | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        image_size: int | None = None,
        settings: Mapping[str, Any] | None = None,
        initial: str | Path | None = None,
        lengthen: str | Path | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        seed: int = 0,
        device: str = "auto",
        verbose: bool = False,
    ) -> None:
        self.recipe = recipe
        self.backbone = backbone
        self.epochs = epochs
        self.batch_size = batch_size
        self.image_size = image_size
        self.settings = settings
        self.initial = initial
        self.lengthen = lengthen
        self.out = out
        self.resume = resume
        self.seed = seed
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> DeepLaplacianEigenmaps:
        """Learn from a source of images: ``"glyphs"``, a folder, an npz file, an array.

        An array is ``(N, H, W)``, ``(N, H, W, C)`` or ``(N, C, H, W)``. ``y``, ``(N,)``, are labels
        of an array's images for a method that learns from labels; all others ignore them.
        """
        own = self.backbone if isinstance(self.backbone, nn.Module) else None
        # A run that is lengthened has a seed of its own, which another one contradicts.
        own_seed = self.lengthen is not None and self.seed == 0
        overrides: dict[str, Any] = {} if own_seed else {"training.seed": self.seed}
        for key, value in (
            ("backbone.name", type(own).__name__ if own is not None else self.backbone),
            ("training.epochs", self.epochs),
            ("training.batch_size", self.batch_size),
            ("data.image_size", self.image_size),
        ):
            if value is not None:
                overrides[key] = value
        overrides.update(self.settings or {})
        if self.resume and self.out is None:
            raise UserError("resume=True needs out, the folder of the run to go on with")
        begun = self.out if self.resume else None
        config = settings_for(X, overrides, recipe=self.recipe, lengthen=self.lengthen, begun=begun)
        if y is not None and learns_from_labels(config.method.name):
            if not isinstance(X, np.ndarray | Tensor):
                raise UserError("labels are taken beside an array of images; a folder has its own")
            X = (X, y)
        reporter: Reporter = Reporter()
        if self.verbose:
            reporter = ConsoleReporter(Console(stderr=True), epochs=config.training.epochs)
        with tempfile.TemporaryDirectory() as temporary:
            run = pretrain(
                X,
                config,
                self.out if self.out is not None else Path(temporary) / "run",
                resume=self.resume,
                initial=self.initial,
                lengthen=self.lengthen,
                backbone=own,
                device=self.device,
                reporter=reporter,
            )
        self.encoder_ = run.encoder
        self.summary_ = run.summary
        self.n_features_out_ = run.encoder.out_features
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Features of images, ``(N, n_features_out_)``; takes what `Encoder.transform` takes."""
        check_is_fitted(self, "encoder_")
        features: np.ndarray = self.encoder_.transform(X, device=choose_device(self.device))
        return features
