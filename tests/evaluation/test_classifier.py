"""Few-shot classifiers: probabilities, calibration, rejection, doubtful labels, files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils.estimator_checks import check_estimator

from eigenshot.data.glyphs import load_glyphs
from eigenshot.encoder import Encoder, Preprocessing
from eigenshot.errors import CorruptFileError, UnreadableWarning, UserError
from eigenshot.evaluation.calibration import (
    DEFAULT_SHARPNESS,
    balance,
    choose_sharpness,
    expected_calibration_error,
    hold_out,
    wilson_interval,
)
from eigenshot.evaluation.classifier import FewShotClassifier, FewShotLogistic
from eigenshot.evaluation.classifier_file import load_classifier
from eigenshot.evaluation.rejection import fit_rejection, likeness_to
from eigenshot.networks import create_backbone
from eigenshot.tensorfile import read_tensors, write_tensors

WIDTHS = (4, 4, 4, 6)


def small_encoder(seed: int = 0, width: int = 6) -> Encoder:
    torch.manual_seed(seed)
    options = {"widths": [*WIDTHS[:3], width]}
    preprocessing = Preprocessing(16, 3, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    network = create_backbone("conv4", **options)
    return Encoder(network, preprocessing, {"name": "conv4", "options": options})


def stripes(per_class: tuple[int, ...] = (4, 4, 4), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Pictures ``(n, 16, 16, 3)`` of one colour a class, with noise, and their labels."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.array(["blue", "green", "red"])[: len(per_class)], per_class)
    numbers = np.repeat(np.arange(len(per_class)), per_class)
    images = generator.integers(0, 60, (len(labels), 16, 16, 3))
    images[np.arange(len(labels)), :, :, 2 - numbers] += 190
    return images.astype(np.uint8), labels


def gradients(pixels: torch.Tensor) -> np.ndarray:
    """Histograms of edge directions on a grid, ``(n, 128)``: features that suit characters."""
    pictures = pixels[:, 0].numpy().astype(np.float64)
    down, right = np.gradient(pictures, axis=(1, 2))
    length, turn = np.hypot(down, right), (np.arctan2(down, right) / np.pi + 1) * 4
    cells = []
    for direction in range(8):
        near = np.clip(1 - np.abs((turn - direction + 4) % 8 - 4), 0, 1)
        cells.append((length * near).reshape(-1, 4, 7, 4, 7).sum(axis=(2, 4)).reshape(-1, 16))
    return np.sqrt(np.concatenate(cells, axis=1))


@pytest.fixture(scope="module")
def glyphs() -> tuple[np.ndarray, np.ndarray]:
    source = load_glyphs("validation", per_class=16)
    assert source.labels is not None
    return gradients(source.pixels), source.labels


class Task:
    """Some characters: support, queries of the same, and queries of others."""

    def __init__(self, glyphs: tuple[np.ndarray, np.ndarray], seed: int, shots: int = 8) -> None:
        features, labels = glyphs
        generator = np.random.default_rng(seed)
        chosen = generator.choice(labels.max() + 1, 5, replace=False)
        rows = [generator.permutation(np.flatnonzero(labels == label)) for label in chosen]
        support = np.concatenate([row[:shots] for row in rows])
        query = np.concatenate([row[shots:] for row in rows])
        other = generator.choice(np.flatnonzero(~np.isin(labels, chosen)), 100, replace=False)
        self.support, self.labels = features[support], labels[support]
        self.query, self.truth = features[query], labels[query]
        self.other = features[other]


class TestLogistic:
    def test_it_is_a_scikit_learn_classifier(self) -> None:
        check_estimator(FewShotLogistic())
        check_estimator(FewShotLogistic(balanced=True, C=10.0))

    @pytest.mark.parametrize("classes", [2, 3, 7])
    def test_probabilities_are_scikit_learns(self, classes: int) -> None:
        generator = np.random.default_rng(classes)
        numbers = np.repeat(np.arange(classes), generator.integers(1, 6, classes))
        features = generator.normal(size=(classes, 20))[numbers] + generator.normal(
            size=(len(numbers), 20)
        )
        names = np.array([f"class {number}" for number in range(classes)])[numbers]
        ours = FewShotLogistic(C=3.0).fit(features, names)
        unit = features / np.linalg.norm(features, axis=1, keepdims=True)
        theirs = LogisticRegression(C=3.0, tol=1e-10, max_iter=10_000).fit(unit, names)
        queries = generator.normal(size=(50, 20))
        expected = theirs.predict_proba(queries / np.linalg.norm(queries, axis=1, keepdims=True))
        np.testing.assert_allclose(ours.predict_proba(queries), expected, atol=1e-4)
        assert ours.classes_.tolist() == theirs.classes_.tolist()

    def test_balanced_is_scikit_learns_balanced_weight(self) -> None:
        generator = np.random.default_rng(0)
        numbers = np.repeat([0, 1, 2], [2, 3, 6])  # the largest is a multiple of each
        features = generator.normal(size=(11, 5))
        ours = FewShotLogistic(balanced=True, normalize=False).fit(features, numbers)
        theirs = LogisticRegression(class_weight="balanced", tol=1e-10, max_iter=10_000)
        expected = theirs.fit(features, numbers).predict_proba(features)
        np.testing.assert_allclose(ours.predict_proba(features), expected, atol=1e-5)

    def test_bad_features_are_named(self) -> None:
        features = np.eye(4)
        features[2, 1] = np.nan
        with pytest.raises(UserError, match=r"1 feature rows hold NaN or infinity \(rows 2\)"):
            FewShotLogistic().fit(features, [0, 0, 1, 1])
        with pytest.raises(UserError, match="two classes at least, found one class only: cat"):
            FewShotLogistic().fit(np.eye(3), ["cat"] * 3)


class TestHeldOut:
    @pytest.mark.parametrize("balanced", [False, True])
    def test_equals_a_loop_of_scikit_learn(self, balanced: bool) -> None:
        generator = np.random.default_rng(0)
        labels = np.repeat(np.arange(3), 4)
        features = generator.normal(size=(12, 8)) + np.eye(3, 8)[labels]
        found = hold_out(features, labels, C=2.0, tol=1e-9, balanced=balanced)
        np.testing.assert_array_equal(found.rows, np.arange(12))
        for row in range(12):
            kept = np.arange(12) % 4 != row % 4  # one of each class is left out
            model = LogisticRegression(C=2.0, tol=1e-10, max_iter=10_000)
            model.fit(features[kept], labels[kept])
            expected = model.predict_proba(features[row : row + 1])[0]
            ours = np.exp(found.logits[row]) / np.exp(found.logits[row]).sum()
            np.testing.assert_allclose(ours, expected, atol=1e-5)

    def test_unequal_classes(self) -> None:
        generator = np.random.default_rng(0)
        labels = np.repeat(np.arange(3), [1, 2, 45])
        features = generator.normal(size=(48, 6)) + 4 * np.eye(3, 6)[labels]
        found = hold_out(features, labels, balanced=True)
        np.testing.assert_array_equal(found.rows, np.arange(1, 48))  # nothing is left of the single
        assert found.parts == 10
        assert (found.logits.argmax(axis=1) == labels[1:]).mean() > 0.9
        rows, factor = balance(labels)
        assert np.bincount(labels[rows]).tolist() == [45, 45, 45]
        assert factor == pytest.approx(48 / 135)

    def test_leaving_out_does_not_turn_the_answer_round(
        self, glyphs: tuple[np.ndarray, np.ndarray]
    ) -> None:
        """With a small C the intercept of a class that lost an image decides: it must not."""
        estimates, accuracies = [], []
        for seed in range(20):
            task = Task(glyphs, seed, shots=4)
            model = FewShotClassifier(small_encoder(width=128), C=0.01)
            model.fit_features(task.support, task.labels)
            estimates.append(model.assessment_.accuracy)
            best = model.judge_features(task.query).probabilities.argmax(axis=1)
            accuracies.append(np.mean(model.classes_[best] == task.truth))
        assert np.mean(estimates) == pytest.approx(np.mean(accuracies), abs=0.08)


class TestCalibration:
    def test_held_out_characters_are_better_calibrated(
        self, glyphs: tuple[np.ndarray, np.ndarray]
    ) -> None:
        raw, calibrated, truth = [], [], []
        for seed in range(20):
            task = Task(glyphs, seed)
            model = FewShotClassifier(small_encoder(width=128))
            model.fit_features(task.support, task.labels)
            raw.append(model.logistic_.predict_proba(task.query))
            calibrated.append(model.judge_features(task.query).probabilities)
            truth.append(np.searchsorted(model.classes_, task.truth))
        before, after, labels = np.vstack(raw), np.vstack(calibrated), np.concatenate(truth)
        np.testing.assert_array_equal(before.argmax(axis=1), after.argmax(axis=1))
        assert expected_calibration_error(before, labels) > 0.3
        assert expected_calibration_error(after, labels) < 0.06
        rows = np.arange(len(labels))
        assert np.log(after[rows, labels]).mean() > np.log(before[rows, labels]).mean() + 0.2

    def test_sharpness_without_and_with_evidence(self) -> None:
        assert choose_sharpness(np.empty((0, 3)), np.empty(0, dtype=int)) == DEFAULT_SHARPNESS
        generator = np.random.default_rng(0)
        logits = generator.normal(size=(4000, 3))
        noise = generator.gumbel(size=(4000, 3))
        assert choose_sharpness(logits, (7 * logits + noise).argmax(1)) == pytest.approx(7, rel=0.2)
        certain = choose_sharpness(np.eye(3), np.arange(3))  # no error, yet no certainty
        assert DEFAULT_SHARPNESS < certain < 20

    def test_the_error_itself(self) -> None:
        sure = np.array([[0.9, 0.1]] * 10)
        assert expected_calibration_error(sure, np.array([0] * 9 + [1])) == pytest.approx(0)
        assert expected_calibration_error(sure, np.ones(10, dtype=int)) == pytest.approx(0.9)
        mixed = np.array([[0.9, 0.1]] * 4 + [[0.4, 0.6]] * 4)
        labels = np.array([0, 0, 0, 1, 1, 1, 1, 1])
        assert expected_calibration_error(mixed, labels) == pytest.approx((0.15 + 0.4) / 2)
        with pytest.raises(UserError, match=r"found \(8, 2\) and \(3,\)"):
            expected_calibration_error(mixed, labels[:3])

    def test_wilson(self) -> None:
        # From the formula by hand: 8 of 10.
        assert wilson_interval(8, 10) == pytest.approx((0.4901, 0.9433), abs=1e-3)
        assert wilson_interval(5, 5)[1] == 1.0
        assert wilson_interval(0, 5)[0] == 0.0


class TestRejection:
    def test_rates_on_characters(self, glyphs: tuple[np.ndarray, np.ndarray]) -> None:
        known, unknown, measured = [], [], []
        for seed in range(30):
            task = Task(glyphs, seed)
            model = FewShotClassifier(small_encoder(width=128), reject=0.05)
            model.fit_features(task.support, task.labels)
            known.append(model.judge_features(task.query).unlike.mean())
            unknown.append(model.judge_features(task.other).unlike.mean())
            assert model.rejection_ is not None
            measured.append(model.rejection_.measured)
        assert 0.01 < np.mean(known) < 0.08
        assert 0.03 < np.mean(measured) < 0.08
        assert np.mean(unknown) > 3 * np.mean(known)

    @pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
    def test_the_rate_is_met_when_queries_are_like_the_support(self, rate: float) -> None:
        """A support of 200 knows its 10 % quantile to 2 %; twenty of them to half a percent."""
        generator = np.random.default_rng(0)
        rejected, measured = [], []
        for _ in range(20):
            centres = 3 * generator.normal(size=(4, 10))
            labels = np.repeat(np.arange(4), 50)
            support = centres[labels] + generator.normal(size=(200, 10))
            queries = centres[np.repeat(labels, 5)] + generator.normal(size=(1000, 10))
            rule = fit_rejection(support, labels, rate)
            likeness, nearest = likeness_to(queries, support)
            rejected.append(rule.rejects(likeness, labels[nearest]).mean())
            measured.append(rule.measured)
        assert np.mean(rejected) == pytest.approx(rate, abs=0.02)
        assert np.mean(measured) == pytest.approx(rate, abs=0.01)

    def test_small_classes_have_a_threshold_of_their_own(self) -> None:
        generator = np.random.default_rng(0)
        labels = np.repeat([0, 1, 2], [1, 4, 40])
        support = 3 * np.eye(3, 10)[labels] + generator.normal(size=(45, 10))
        rule = fit_rejection(support, labels, 0.05)
        assert rule.thresholds[0] < rule.thresholds[1] < rule.thresholds[2]

    def test_too_few_for_a_quantile(self) -> None:
        support = np.random.default_rng(0).normal(size=(8, 5)) + 2
        few = fit_rejection(support, np.repeat(np.arange(4), 2), 0.05)
        assert "prediction bound of 8 likenesses" in few.rule
        single = fit_rejection(support, np.arange(8), 0.05)
        assert single.measured is None
        assert "false-alarm rate is unknown" in single.rule
        assert np.isfinite(single.thresholds).all()

    def test_never(self) -> None:
        images, labels = stripes()
        model = FewShotClassifier(small_encoder(), reject=None).fit(images, labels)
        assert not model.judge(255 - images).unlike.any()
        with pytest.raises(UserError, match="false-alarm rate between 0 and 1, found 2"):
            FewShotClassifier(small_encoder(), reject=2).fit(images, labels)


class TestImages:
    def test_fit_predict_and_score(self) -> None:
        images, labels = stripes()
        encoder = small_encoder()
        model = FewShotClassifier(encoder).fit(images, labels)
        queries, truth = stripes(seed=1)
        assert model.classes_.tolist() == ["blue", "green", "red"]
        assert model.score(queries, truth) == 1.0
        probabilities = model.predict_proba(queries)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)
        assert (model.classes_[probabilities.argmax(1)] == model.predict(queries)).all()
        assert clone(model, safe=False).get_params()["C"] == 1.0
        accuracy, interval = model.assessment_.accuracy, model.assessment_.interval
        assert accuracy == 1.0
        assert interval == pytest.approx(wilson_interval(12, 12))
        assert "leave-one-out, 12 of 12 support images" in str(model.assessment_)

    def test_one_image_a_class(self) -> None:
        images, labels = stripes((1, 1, 1))
        model = FewShotClassifier(small_encoder()).fit(images, labels)
        assert model.assessment_.accuracy is None
        assert model.assessment_.calibration_error is None
        assert "every class has one image only" in model.assessment_.note
        assert model.predict(stripes(seed=2)[0]).tolist() == stripes(seed=2)[1].tolist()

    def test_unequal_counts_do_not_favour_the_frequent(self) -> None:
        images, labels = stripes((1, 3, 20))
        model = FewShotClassifier(small_encoder(), C=0.1).fit(images, labels)
        queries, truth = stripes(seed=1)
        assert model.score(queries, truth) == 1.0
        assert "classes of one image cannot be judged" in model.assessment_.note
        frequent = FewShotClassifier(small_encoder(), C=0.1, balanced=False).fit(images, labels)
        assert frequent.score(queries, truth) < 1.0

    def test_a_mislabelled_image_is_found(self) -> None:
        images, labels = stripes((6, 6, 6))
        assert not FewShotClassifier(small_encoder()).fit(images, labels).assessment_.suspects
        labels[7] = "red"
        suspects = FewShotClassifier(small_encoder()).fit(images, labels).assessment_.suspects
        assert [suspect.row for suspect in suspects] == [7]
        assert "image 7 is labelled 'red'" in str(suspects[0])
        assert suspects[0].looks_like == "green"

    def test_a_file_that_cannot_be_written_is_a_sentence(self, tmp_path: Path) -> None:
        model = FewShotClassifier(small_encoder()).fit(*stripes())
        with pytest.raises(UserError, match="expected a file to write, found a folder"):
            model.save(tmp_path)
        if Path("/proc/self").exists():  # where nobody can make a file
            with pytest.raises(UserError, match="cannot write the classifier to '/proc/kept'"):
                model.save("/proc/kept")

    def test_bad_input(self, tmp_path: Path) -> None:
        images, labels = stripes()
        model = FewShotClassifier(small_encoder())
        with pytest.raises(UserError, match=r"label for each of 12 images, found .* \(11,\)"):
            model.fit(images, labels[:-1])
        with pytest.raises(UserError, match="expected labels, one an image, found none"):
            model.fit(images)
        with pytest.raises(UserError, match="found one class only: red"):
            model.fit(images, ["red"] * 12)
        with pytest.raises(UserError, match="no such folder"):
            model.fit(tmp_path / "nowhere")
        features = model.encoder.transform(images)
        with pytest.raises(UserError, match=r"features of width 6, as the encoder .* found 5"):
            model.fit_features(features[:, :5], labels)
        features[3] = np.nan
        with pytest.raises(UserError, match=r"hold NaN or infinity \(rows 3\)"):
            model.fit_features(features, labels)
        model.fit(images, labels)
        with pytest.raises(UserError, match="label 'pink' is not in the support; known: blue"):
            model.score(images, ["pink"] * 12)
        with pytest.raises(UserError, match=r"features of width 6, .* found 7"):
            model.judge_features(np.zeros((1, 7)))


def test_of_a_folder_all_that_can_be_read_is_judged(tmp_path: Path) -> None:
    images, labels = stripes((4, 4))
    model = FewShotClassifier(small_encoder()).fit(images, labels)
    for number, image in enumerate(images[:3]):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
        (tmp_path / f"{number}.jpg").write_bytes(b"no picture")
    with pytest.warns(UnreadableWarning, match="skipped 3 unreadable pictures"):
        judgement = model.judge(tmp_path)
    assert judgement.paths == ("0.png", "1.png", "2.png")
    np.testing.assert_allclose(judgement.probabilities, model.predict_proba(images[:3]), atol=1e-6)


class TestFile:
    def test_read_back_it_says_the_same(self, tmp_path: Path) -> None:
        images, labels = stripes((2, 4, 5))
        model = FewShotClassifier(small_encoder(), C=2.0, reject=0.1).fit(images, labels)
        again = load_classifier(model.save(tmp_path / "c.safetensors"))
        queries = np.concatenate([stripes(seed=3)[0], 255 - images])
        one, other = model.judge(queries), again.judge(queries)
        np.testing.assert_array_equal(one.probabilities, other.probabilities)
        np.testing.assert_array_equal(one.unlike, other.unlike)
        assert again.assessment_ == model.assessment_
        assert again.rejection_ == model.rejection_
        assert again.get_params(deep=False).keys() == model.get_params(deep=False).keys()
        assert again.predict(queries).tolist() == model.predict(queries).tolist()
        again.save(tmp_path / "d.safetensors")
        contents = [(tmp_path / f"{name}.safetensors").read_bytes() for name in "cd"]
        assert contents[0] == contents[1]

    def test_whole_numbers_stay_whole_numbers(self, tmp_path: Path) -> None:
        images, labels = stripes()
        numbers = np.unique(labels, return_inverse=True)[1] + 5
        model = FewShotClassifier(small_encoder()).fit(images, numbers)
        again = load_classifier(model.save(tmp_path / "c.safetensors"))
        assert again.predict(images).dtype.kind == "i"
        assert again.classes_.tolist() == [5, 6, 7]

    @pytest.mark.parametrize("place", [-3, 3000, 0])
    def test_any_damage_is_noticed(self, tmp_path: Path, place: int) -> None:
        file = FewShotClassifier(small_encoder()).fit(*stripes()).save(tmp_path / "c.safetensors")
        content = bytearray(file.read_bytes())
        content[place] ^= 0x40
        file.write_bytes(content)
        with pytest.raises(UserError):
            load_classifier(file)

    def test_what_is_no_classifier(self, tmp_path: Path) -> None:
        file = tmp_path / "f.safetensors"
        small_encoder().save(file)
        with pytest.raises(CorruptFileError, match="is an eigenshot-encoder, where"):
            load_classifier(file)
        write_tensors(file, {"x": torch.zeros(1)}, {}, kind="eigenshot-classifier")
        with pytest.raises(CorruptFileError, match="is no classifier of ours"):
            load_classifier(file)
        FewShotClassifier(small_encoder()).fit(*stripes()).save(file)
        tensors, header = read_tensors(file, kind=None)
        write_tensors(
            file, {**tensors, "coef": torch.zeros(3, 5)}, header, kind="eigenshot-classifier"
        )
        with pytest.raises(CorruptFileError, match="does not fit together"):
            load_classifier(file)
        with pytest.raises(UserError, match="no such file"):
            load_classifier(tmp_path / "nothing")

    def test_a_backbone_of_the_users_own(self, tmp_path: Path) -> None:
        encoder = small_encoder()
        encoder.architecture = {"name": "custom", "options": {}}
        model = FewShotClassifier(encoder).fit(*stripes())
        file = model.save(tmp_path / "c.safetensors")
        with pytest.raises(UserError, match="backbone=module"):
            load_classifier(file)
        again = load_classifier(file, backbone=small_encoder(seed=5).backbone)
        np.testing.assert_array_equal(again.predict(stripes()[0]), model.predict(stripes()[0]))

    def test_nothing_to_save(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="not fitted yet"):
            FewShotClassifier(small_encoder()).save(tmp_path / "c")
        with pytest.raises(UserError, match="no such folder"):
            FewShotClassifier(small_encoder()).fit(*stripes()).save(tmp_path / "a" / "c")
