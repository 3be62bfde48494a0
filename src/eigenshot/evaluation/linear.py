"""Linear evaluation: a linear classifier on a frozen encoder, by the paper's recipe or exactly.

``linear_probe`` trains on augmented views by SGD, as the paper does. ``linear_exact`` finds the
optimum of the regularised problem on features that were extracted once. They answer the same
question by different protocols, so every result says which one it is of.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from eigenshot.data.source import Source
from eigenshot.data.views.views import View, create_view
from eigenshot.encoder import Encoder, busy_batch
from eigenshot.errors import (
    TrainingDiverged,
    UserError,
    check_at_least,
    check_positive,
    check_strength,
)
from eigenshot.evaluation.optimum import Objective, blocks_of, minimise
from eigenshot.evaluation.tables import checked_split, source_classes
from eigenshot.evaluation.views import view_size
from eigenshot.hardware import Precision, widest_float
from eigenshot.randomness import numpy_generator, torch_generator


@dataclass(frozen=True)
class LinearResult:
    """Test accuracy of a linear classifier, in percent.

    ``protocol`` is ``"sgd"`` (the paper's recipe) or ``"exact"``; ``details`` are its settings and,
    where features of all images are there, how many test images are ``copies`` of training images.
    ``per_class`` is the accuracy on each class that has test images. ``coef`` ``(K, d)`` and
    ``intercept`` ``(K,)`` belong to ``class_names`` in order.
    """

    accuracy: float
    protocol: Literal["sgd", "exact"]
    per_class: dict[str, float]
    details: dict[str, Any]
    class_names: tuple[str, ...]
    coef: np.ndarray = field(repr=False, compare=False)
    intercept: np.ndarray = field(repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.accuracy:.2f} % ({self.protocol})"

    def summary(self) -> dict[str, Any]:
        """What goes into a result file."""
        return {"accuracy": round(self.accuracy, 4), "protocol": self.protocol, **self.details}


def probe_view(encoder: Encoder, *, crop_area_min: float = 0.2, flip: float = 0.5) -> View:
    """The customary view for `linear_probe`: a random resized crop and a flip, nothing else."""
    neither = dict.fromkeys(("jitter", "grey", "blur", "solarise"), 0.0)
    options = {"crop_area_min": crop_area_min, "flip": flip, **neither}
    like = encoder.preprocessing
    return create_view("simclr", options, size=view_size(encoder), mean=like.mean, std=like.std)


def probe_rate(epoch: int, *, epochs: int, lr: float, milestones: Sequence[float]) -> float:
    """Learning rate of ``epoch`` (from 0): a tenth after each milestone, which is of 100 epochs."""
    passed = sum(100 * epoch >= milestone * epochs for milestone in milestones)
    return lr / 10**passed


def linear_probe(
    encoder: Encoder,
    train: Source,
    test: Source,
    *,
    view: nn.Module,
    epochs: int = 100,
    batch_size: int = 256,
    lr: float = 30.0,
    momentum: float = 0.9,
    milestones: Sequence[float] = (60, 80),
    seed: int = 0,
    device: torch.device | str = "cpu",
    precision: Precision = "auto",
    together: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LinearResult:
    """Accuracy of a linear classifier trained by SGD on views of ``train``, the paper's recipe.

    The backbone is frozen, in evaluation mode. There is no weight decay; the classifier starts at
    zero; the last, smaller batch of an epoch counts. Test images are looked at once, at the end.

    Parameters
    ----------
    view : maker of augmented views, uint8 images and a generator to what the backbone takes;
        `probe_view` makes the customary one.
    milestones : when the rate falls to a tenth, of 100 epochs; fewer epochs bring them forward.
    seed : of the order of the images and of their views.
    precision : of the backbone's work on all images, as `Encoder.transform` takes it.
    together : images whose views are made at once, in whole batches, at least one; by default as
        many as go through the frozen backbone at once. Views are drawn for all of them, so another
        number draws others.
    progress : called with the number of batches done and of all.
    """
    check_positive(epochs=epochs, batch_size=batch_size, lr=lr)
    check_at_least(0, seed=seed)
    together = busy_batch(device) if together is None else together
    check_at_least(1, together=together)
    if not 0 <= momentum < 1:
        raise UserError(f"momentum must be in [0, 1), found {momentum}")
    if not all(0 < milestone < 100 for milestone in milestones):
        raise UserError(f"milestones are of 100 epochs, between 0 and 100, found {milestones}")
    classes, truth, names = source_classes(train, test)
    # Copies: the caller's own stay where they are, in their mode.
    encoder, view = copy.deepcopy(encoder), copy.deepcopy(view).to(device)
    encoder.to(device).backbone.eval()
    weight = torch.zeros((len(names), encoder.out_features), device=device, requires_grad=True)
    bias = torch.zeros(len(names), device=device, requires_grad=True)
    sgd = torch.optim.SGD([weight, bias], lr=lr, momentum=momentum)
    batches = -(-len(train) // batch_size)
    for epoch in range(epochs):
        sgd.param_groups[0]["lr"] = probe_rate(epoch, epochs=epochs, lr=lr, milestones=milestones)
        mean_loss = torch.zeros((), dtype=widest_float(device), device=device)
        looked_at = _batches(
            encoder,
            train,
            view,
            batch_size=batch_size,
            together=together,
            seed=seed,
            epoch=epoch,
            device=device,
            precision=precision,
        )
        for batch, (rows, features) in enumerate(looked_at):
            with torch.enable_grad():
                logits = functional.linear(features, weight, bias)
                loss = functional.cross_entropy(logits, classes[rows].to(device))
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            mean_loss += len(rows) / len(train) * loss.detach()
            if progress is not None:
                progress(epoch * batches + batch + 1, epochs * batches)
        if not bool(torch.isfinite(mean_loss)):
            raise TrainingDiverged(
                f"the loss was not finite in epoch {epoch + 1} of the linear evaluation: the "
                f"encoder's features of '{train.name}' are not finite, or lr={lr:g} is too large"
            )
    coef, intercept = weight.detach().cpu(), bias.detach().cpu()
    features = torch.from_numpy(encoder.transform(test, device=device, precision=precision))
    predicted = functional.linear(features, coef, intercept).argmax(dim=1)
    accuracy, per_class = _accuracies(predicted, truth, names)
    details: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "seed": seed}
    details |= {"momentum": momentum, "milestones": [*milestones], "train_loss": float(mean_loss)}
    return LinearResult(accuracy, "sgd", per_class, details, names, coef.numpy(), intercept.numpy())


def _batches(
    encoder: Encoder,
    train: Source,
    view: nn.Module,
    *,
    batch_size: int,
    together: int,
    seed: int,
    epoch: int,
    device: torch.device | str,
    precision: Precision,
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """The batches of an epoch: rows ``(b,)`` of ``train`` and features ``(b, d)`` of their views.

    What the network makes of a view does not depend on the classifier. So the views of several
    batches go through it at once.
    """
    order = numpy_generator(seed, "linear", "order", epoch).permutation(len(train))
    block_size = batch_size * max(1, together // batch_size)
    for block, start in enumerate(range(0, len(train), block_size)):
        rows = order[start : start + block_size]
        generator = torch_generator(seed, "linear", "view", epoch, block, device=device)
        with torch.no_grad():
            views = view(train.images(rows).to(device), generator)
            features = encoder.features_in_parts(views, precision=precision)
        for first in range(0, len(rows), batch_size):
            batch = slice(first, first + batch_size)
            yield rows[batch], features[batch]


def linear_exact(
    train_features: np.ndarray | Tensor,
    train_labels: np.ndarray | Tensor,
    test_features: np.ndarray | Tensor,
    test_labels: np.ndarray | Tensor,
    *,
    C: float = 1.0,
    normalize: bool = True,
    tol: float = 1e-6,
    max_iterations: int = 1000,
    chunk: int = 4096,
    device: torch.device | str = "cpu",
    class_names: Sequence[str] = (),
) -> LinearResult:
    """Accuracy at the optimum of L2-regularised logistic regression on features, by L-BFGS.

    The objective is scikit-learn's, C Σ_i loss_i + ½‖W‖² with the intercept unpenalised; two
    classes take its binomial form. Features stay as they are given; ``chunk`` rows at a time are
    worked on.

    Parameters
    ----------
    train_features, test_features : ``(N, d)`` and ``(M, d)``.
    train_labels, test_labels : ``(N,)`` and ``(M,)`` integers of one numbering.
    normalize : scale every feature vector to unit length first.
    tol : bound on the largest entry of the gradient, in float64, of the mean objective (that above
        divided by C N) of features in units of their root mean square length, which is 1 if they
        are normalised; `NotConverged` if it is not reached.
    """
    split = checked_split(
        train_features, train_labels, test_features, test_labels, class_names=class_names
    )
    check_strength(C)
    check_positive(tol=tol, max_iterations=max_iterations, chunk=chunk)
    table, classes = split.train.to(device), split.train_classes.to(device)
    split = replace(split, train=table, train_classes=classes)
    blocks = partial(blocks_of, normalize=normalize, chunk=chunk, device=device)
    # Softmax with weights ±w/2 is the logistic of w, with half the penalty: C/2 makes them equal.
    strength = C / 2 if len(split.names) == 2 else C
    objective = Objective(split, 1 / (strength * len(split.train)), blocks)
    gradient = minimise(objective, tol, max_iterations)
    coef, intercept = objective.coef, objective.intercept
    predicted = [torch.addmm(intercept, rows, coef).argmax(dim=1) for rows in blocks(split.test)]
    accuracy, per_class = _accuracies(torch.cat(predicted).cpu(), split.test_classes, split.names)
    details = {"C": C, "normalize": normalize, "tol": tol}
    details |= {"gradient": gradient, "evaluations": objective.evaluations}
    fitted = coef.T.cpu().numpy(), intercept.cpu().numpy()
    return LinearResult(accuracy, "exact", per_class, details, split.names, *fitted)


def _accuracies(
    predicted: Tensor, truth: Tensor, names: Sequence[str]
) -> tuple[float, dict[str, float]]:
    """Percent of all and of each class, from ``(M,)`` and ``(M,)``."""
    hits = 100.0 * (predicted == truth).double()
    present = truth.unique().tolist()
    return float(hits.mean()), {names[k]: float(hits[truth == k].mean()) for k in present}
