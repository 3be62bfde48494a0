"""Baseline and Baseline++: cross-entropy from labels, mixed labels, and runs that learn."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from eigenshot.configfile import load_config, method_table
from eigenshot.data.glyphs import load_glyphs
from eigenshot.errors import UserError
from eigenshot.methods import create_method, learns_from_labels
from eigenshot.methods.baseline import Baseline
from eigenshot.methods.baseline_plus_plus import BaselinePlusPlus, CosineClassifier
from eigenshot.methods.mixing import Mix
from eigenshot.methods.supervised import (
    LabelledMix,
    Labels,
    SupervisedMethod,
    classification_loss,
)
from eigenshot.training.captured import split_draw
from eigenshot.training.engine import says_capturable
from eigenshot.training.pretrain import pretrain
from tests.methods.tiny import mix_at, networks, views

CLASSES = 4
LABELS = torch.tensor([0, 3, 1, 2, 0, 1])
METHODS: dict[str, type[Any]] = {"baseline": Baseline, "baseline++": BaselinePlusPlus}
BOTH = pytest.mark.parametrize("name", METHODS)


def tiny_method(name: str, **options: Any) -> SupervisedMethod:
    given = {"classes": CLASSES, **options}
    method: SupervisedMethod = METHODS[name](*networks(layers=0), **given).double()
    return method


def labelled(mix: Mix) -> LabelledMix:
    return LabelledMix(mix.layer, mix.coefficient, mix.permutation, LABELS)


def surprise(logits: Tensor, label: Tensor) -> float:
    """The cross-entropy of one image."""
    powers = logits.detach().exp()
    return -math.log(float(powers[label] / powers.sum()))


class TestLoss:
    @BOTH
    def test_it_is_the_mean_cross_entropy_of_both_views(self, name: str) -> None:
        method = tiny_method(name)
        pair = views()
        terms = method(*pair, Labels(LABELS))
        tables = [method.classifier(method.embed(view)) for view in pair]
        expected = sum(
            surprise(row, y) for table in tables for row, y in zip(table, LABELS, strict=True)
        )
        assert terms["loss"].item() == pytest.approx(expected / 12, rel=1e-10)
        hits = sum(int(row.argmax() == y) for row, y in zip(tables[0], LABELS, strict=True))
        assert terms["accuracy"].item() == pytest.approx(hits / 6)
        assert not terms["accuracy"].requires_grad

    @BOTH
    def test_labels_are_mixed_as_the_second_view_is(self, name: str) -> None:
        method = tiny_method(name, mixup="manifold")
        view_a, view_b = views()
        mix = mix_at(2)
        embeddings = method.embed_pair(view_a, view_b, mix)
        plain, mixed = (method.classifier(z) for z in embeddings)
        expected = 0.0
        for i in range(6):
            expected += surprise(plain[i], LABELS[i])
            expected += 0.3 * surprise(mixed[i], LABELS[i])
            expected += 0.7 * surprise(mixed[i], LABELS[i - 1])
        found = method(view_a, view_b, labelled(mix))["loss"]
        assert found.item() == pytest.approx(expected / 12, rel=1e-10)

    def test_each_sample_can_have_a_coefficient_of_its_own(self) -> None:
        logits = torch.randn(3, CLASSES, dtype=torch.float64)
        labels, weights = torch.tensor([0, 1, 2]), [0.2, 1.0, 0.5]
        mix = Mix(0, torch.tensor(weights, dtype=torch.float64), torch.tensor([2, 0, 1]))
        expected = 0.0
        for i, weight in enumerate(weights):
            expected += weight * surprise(logits[i], labels[i])
            expected += (1 - weight) * surprise(logits[i], labels[i - 1])
        found = classification_loss(logits, labels, mix)
        assert found.item() == pytest.approx(expected / 3)

    @BOTH
    def test_a_coefficient_of_one_is_no_mixing(self, name: str) -> None:
        method = tiny_method(name)
        for layer in range(5):
            mixed = method(*views(), labelled(mix_at(layer, coefficient=1.0)))["loss"]
            torch.testing.assert_close(mixed, method(*views(), Labels(LABELS))["loss"])

    def test_equal_logits_cost_the_logarithm_of_the_classes(self) -> None:
        loss = classification_loss(torch.ones(6, CLASSES), LABELS)
        assert loss.item() == pytest.approx(math.log(CLASSES))

    @BOTH
    def test_every_parameter_has_a_gradient(self, name: str) -> None:
        method = tiny_method(name)
        method(*views(), Labels(LABELS))["loss"].backward()
        for parameter_name, parameter in method.named_parameters():
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.abs().sum() > 0, parameter_name

    @BOTH
    def test_half_precision_ends_before_the_loss(self, name: str) -> None:
        method = tiny_method(name).float()
        view_a, view_b = (view.float() for view in views())
        with torch.autocast("cpu", torch.bfloat16):
            terms = method(view_a, view_b, labelled(mix_at(1)))
        assert {term.dtype for term in terms.values()} == {torch.float32}


class TestClassifier:
    def test_logits_are_scaled_cosines_times_the_norm_of_a_class(self) -> None:
        classifier = CosineClassifier(3, CLASSES, scale=2.0).double()
        x = torch.randn(5, 3, dtype=torch.float64)
        with torch.no_grad():
            classifier.weight.mul_(7)
            assert classifier.norm is not None
            classifier.norm.copy_(torch.tensor([1.0, 2.0, 0.5, 3.0]))
        found, weight = classifier(x).detach(), classifier.weight.detach()
        for i in range(5):
            for c, norm in enumerate([1.0, 2.0, 0.5, 3.0]):
                cosine = x[i] @ weight[c] / x[i].norm() / weight[c].norm()
                assert found[i, c].item() == pytest.approx(2 * norm * cosine.item(), rel=1e-12)

    @pytest.mark.parametrize(("classes", "scale"), [(200, 2.0), (201, 10.0)])
    def test_the_scale_is_that_of_the_authors_code(self, classes: int, scale: float) -> None:
        method = BaselinePlusPlus(*networks(layers=0), classes=classes)
        assert method.classifier.scale == scale
        method = BaselinePlusPlus(*networks(layers=0), classes=classes, scale=5.0)
        assert method.classifier.scale == 5.0

    def test_without_learned_norms_no_logit_exceeds_the_scale(self) -> None:
        method = tiny_method("baseline++", learned_norm=False, scale=3.0)
        logits = method.classifier(1e6 * torch.randn(50, 8, dtype=torch.float64))
        assert logits.abs().max() <= 3.0 + 1e-9
        assert [name for name, _ in method.classifier.named_parameters()] == ["weight"]

    @BOTH
    def test_it_works_on_the_features(self, name: str) -> None:
        method = tiny_method(name)
        images, _ = views()
        assert torch.equal(method.eval().embed(images), method.backbone(images))


class TestDraw:
    @BOTH
    def test_labels_come_with_the_mix_or_alone(self, name: str) -> None:
        plain = tiny_method(name).draw(6, np.random.default_rng(0), labels=LABELS)
        assert isinstance(plain, Labels)
        assert not isinstance(plain, Mix)
        mixing = tiny_method(name, mixup="manifold")
        drawn = mixing.draw(6, np.random.default_rng(0), labels=LABELS)
        expected = super(SupervisedMethod, mixing).draw(6, np.random.default_rng(0))
        assert isinstance(drawn, LabelledMix)
        assert isinstance(expected, Mix)
        assert (drawn.layer, drawn.coefficient) == (expected.layer, expected.coefficient)
        assert torch.equal(drawn.permutation, expected.permutation)
        for found in (plain, drawn):
            assert torch.equal(found.labels, LABELS)
            assert found.to(torch.device("meta")).labels.is_meta
            assert "labels" in split_draw(found)[0]

    def test_parts_have_the_labels_of_their_images(self) -> None:
        method = tiny_method("baseline", mixup="manifold")
        drawn = method.draw(6, np.random.default_rng(0), blocks=3, labels=LABELS)
        for whole in (drawn, Labels(LABELS)):
            parts = [whole.part(index, 3) for index in range(3)]
            assert all(type(part) is type(whole) for part in parts)
            assert torch.equal(torch.cat([part.labels for part in parts]), LABELS)
        view_a, view_b = views()
        method.eval()  # without batch statistics the mean over parts is that of the whole
        losses = [
            method(view_a[2 * i : 2 * i + 2], view_b[2 * i : 2 * i + 2], drawn.part(i, 3))["loss"]
            for i in range(3)
        ]
        expected = method(view_a, view_b, drawn)["loss"]
        torch.testing.assert_close(torch.stack(losses).mean(), expected)

    def test_missing_labels_are_named(self) -> None:
        method = tiny_method("baseline")
        with pytest.raises(UserError, match="each of 6 images, found none"):
            method.draw(6, np.random.default_rng(0))
        with pytest.raises(UserError, match=r"found labels of shape \(4,\)"):
            method.draw(6, np.random.default_rng(0), labels=LABELS[:4])


@BOTH
class TestByName:
    def test_it_is_known_as_one_that_learns_from_labels(self, name: str) -> None:
        assert learns_from_labels(name)
        assert says_capturable(METHODS[name])
        method = create_method(name, *networks(layers=0), classes=CLASSES)
        assert type(method) is METHODS[name]

    def test_less_than_two_classes_are_refused(self, name: str) -> None:
        for classes in (None, 0, 1):
            with pytest.raises(
                UserError, match=f"at least 2 classes to tell apart, found {classes}"
            ):
                create_method(name, *networks(layers=0), classes=classes)

    def test_the_recipe_says_what_the_class_has_as_defaults(self, name: str) -> None:
        table = method_table(name)
        options = table["method"]["options"]
        given = METHODS[name](*networks(), classes=4, **options)
        plain = METHODS[name](*networks(), classes=4)
        assert given.mixup == plain.mixup == options["mixup"]
        assert str(given) == str(plain)
        assert table["projector"] == {"layers": 0, "standardize": False}


def test_a_scale_below_zero_is_refused() -> None:
    with pytest.raises(UserError, match="scale must be positive, or 0 for the default, found -1"):
        tiny_method("baseline++", scale=-1.0)


def settings(name: str, **changes: Any) -> dict[str, Any]:
    small = {
        "method.name": name,
        "backbone.options.widths": [8, 8, 16, 16],
        "training.batch_size": 16,
    }
    return {**small, **{key.replace("__", "."): value for key, value in changes.items()}}


@pytest.mark.parametrize(("name", "mixup"), [("baseline", "none"), ("baseline++", "manifold")])
def test_a_run_learns_the_labels(name: str, mixup: str, tmp_path: Path) -> None:
    glyphs = load_glyphs("train", per_class=8, seed=0)
    assert glyphs.labels is not None
    rows = np.flatnonzero(glyphs.labels < 8)
    data = (glyphs.images(rows).numpy(), 100 + 10 * glyphs.labels[rows])  # any numbers will do
    changes = {"training__epochs": 40, "method__options__mixup": mixup}
    pretrain(data, load_config("glyphs", settings(name, **changes)), tmp_path, device="cpu")
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    accuracies = [line["accuracy"] for line in lines if "accuracy" in line]
    assert accuracies[0] < 0.5
    # Chance is 1/8. Shuffled labels, learned by heart, come to 0.4 in this time.
    assert accuracies[-1] > 0.7


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(16):
        Image.new("L", (28, 28), 10 * number).save(folder / f"{number}.png")
    config = load_config("glyphs", settings("baseline"))
    with pytest.raises(UserError, match="method 'baseline' learns from labels"):
        pretrain(folder, config, tmp_path / "run", device="cpu")
