"""Nearest-neighbour accuracy, and the checks that it shares with linear evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from torch.utils._python_dispatch import TorchDispatchMode

from eigenshot.data.source import ArraySource
from eigenshot.errors import UserError
from eigenshot.evaluation.knn import knn_accuracy, leave_one_out_knn, unit_rows
from eigenshot.evaluation.tables import aligned_labels, checked_table, unit_length

Tables = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class LargestTensor(TorchDispatchMode):
    """Entries of the largest tensor that any operation makes; views of another do not count."""

    entries = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {value.untyped_storage().data_ptr() for value in _tensors(args)}
        for value in _tensors(result):
            if value.untyped_storage().data_ptr() not in given:
                self.entries = max(self.entries, value.numel())
        return result


def _tensors(values: Any) -> list[torch.Tensor]:
    several = values if isinstance(values, tuple | list) else [values]
    return [value for value in several if isinstance(value, torch.Tensor)]


def clusters(seed: int = 0, train: int = 300, test: int = 120, classes: int = 6) -> Tables:
    """Overlapping classes in 10 dimensions: training and test features with labels."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(classes, 10))
    labels = np.arange(train + test) % classes
    features = centres[labels] + 1.2 * generator.normal(size=(train + test, 10))
    return features[:train], labels[:train], features[train:], labels[train:]


def with_scikit_learn(tables: Tables, neighbours: int, temperature: float) -> float:
    model = KNeighborsClassifier(
        neighbours,
        algorithm="brute",
        weights=lambda distance: np.exp((1 - distance**2 / 2) / temperature),
    )
    model.fit(unit_length(tables[0]), tables[1])
    return 100 * float(model.score(unit_length(tables[2]), tables[3]))


class TestAccuracy:
    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize(("neighbours", "temperature"), [(1, 0.1), (25, 0.1), (200, 0.5)])
    def test_equals_scikit_learn(self, seed: int, neighbours: int, temperature: float) -> None:
        tables = clusters(seed)
        found = knn_accuracy(*tables, neighbours=neighbours, temperature=temperature)
        assert 30 < found < 95  # a problem on which one wrong vote shows
        assert found == pytest.approx(with_scikit_learn(tables, neighbours, temperature))

    @pytest.mark.parametrize(("chunk", "block"), [(1, 300), (7, 13), (120, 1), (1000, 299)])
    def test_pieces_do_not_change_the_result(self, chunk: int, block: int) -> None:
        tables = clusters()
        whole = knn_accuracy(*tables, neighbours=25)
        assert knn_accuracy(*tables, neighbours=25, chunk=chunk, block=block) == whole
        alone = leave_one_out_knn(*tables[:2], neighbours=25)
        assert leave_one_out_knn(*tables[:2], neighbours=25, chunk=chunk, block=block) == alone

    def test_an_image_does_not_vote_for_itself(self) -> None:
        # Each image's twin has the other class, so that whoever saw itself would be right.
        points = np.random.default_rng(0).normal(size=(20, 5))
        features, labels = np.repeat(points, 2, axis=0), np.tile([0, 1], 20)
        assert leave_one_out_knn(features, labels, neighbours=1, chunk=6, block=4) == 0
        assert knn_accuracy(points, labels[:20], points, labels[:20], neighbours=1) == 100

    def test_more_neighbours_than_images_are_all_images(self) -> None:
        tables = clusters(train=40)
        assert knn_accuracy(*tables) == knn_accuracy(*tables, neighbours=40)

    def test_a_low_temperature_is_the_single_nearest(self) -> None:
        tables = clusters()
        cold = knn_accuracy(*tables, temperature=1e-5)
        assert cold == knn_accuracy(*tables, neighbours=1)

    def test_labels_need_not_be_consecutive(self) -> None:
        train, labels, test, truth = clusters()
        assert knn_accuracy(train, 10 * labels - 7, test, 10 * truth - 7) == knn_accuracy(
            train, labels, test, truth
        )

    def test_no_tensor_grows_with_train_times_test(self) -> None:
        for count in (600, 2400):
            tables = clusters(train=count, test=count)
            with LargestTensor() as largest:
                knn_accuracy(*tables, chunk=64, block=128)
                leave_one_out_knn(*tables[:2], chunk=64, block=128)
            # A table, or a tile with the candidates beside it.
            assert largest.entries <= max(count * 10, 64 * (128 + 200))


class TestChecks:
    def test_sound_features_are_not_copied(self) -> None:
        features = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
        features.flags.writeable = False
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            table, _ = checked_table(features, np.arange(50))
        assert table.data_ptr() == features.ctypes.data

    def test_rows_of_unit_length(self) -> None:
        features = np.random.default_rng(0).normal(size=(9000, 3))
        features[5] = 0
        found = unit_rows(torch.from_numpy(features))
        np.testing.assert_array_equal(found, unit_length(features).astype(np.float32))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda a, y, b, z: (a, y, b[:, :9], z), "one width, found 10 and 9"),
            (lambda a, y, b, z: (a, y, b, z + 1), "20 test images have a class .*: '6' in row 5"),
            (lambda a, y, b, z: (a, 0 * y, b, 0 * z), "at least 2 classes, found only '0'"),
            (lambda a, y, b, z: (a[:0], y[:0], b, z), "at least 2 classes, found no image"),
            (lambda a, y, b, z: (a, y, b[:0], z[:0]), "at least one test image, found none"),
            (lambda a, y, b, z: (a, y[1:], b, z), r"training features: labels .* \(300,\)"),
            (lambda a, y, b, z: (a, y, b, z / 2), "test features: labels must be integers"),
            (lambda a, y, b, z: (a.astype(str), y, b, z), "that are numbers, found <U"),
        ],
    )
    def test_bad_tables(self, change: Callable[..., Tables], message: str) -> None:
        with pytest.raises(UserError, match=message):
            knn_accuracy(*change(*clusters()))

    @pytest.mark.parametrize(("which", "role"), [(0, "training"), (2, "test")])
    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_rows_that_are_not_finite_are_named(self, which: int, role: str, value: float) -> None:
        tables = clusters()
        tables[which][[3, 8], 2] = value
        with pytest.raises(
            UserError, match=rf"{role} features: 2 .* hold NaN or infinity \(rows 3, 8\)"
        ):
            knn_accuracy(*tables)

    @pytest.mark.parametrize("option", ["neighbours", "temperature", "chunk", "block"])
    def test_options_must_be_positive(self, option: str) -> None:
        with pytest.raises(UserError, match=f"{option} must be positive, found 0"):
            knn_accuracy(*clusters(), **{option: 0})

    def test_one_image_has_no_neighbour(self) -> None:
        with pytest.raises(UserError, match="at least 2 images"):
            leave_one_out_knn(np.ones((1, 3)), np.zeros(1, dtype=int))


class TestAlignedLabels:
    def source(self, labels: list[str] | None, names: list[str] | None = None) -> ArraySource:
        count = len(labels) if labels else 3
        images = np.zeros((count, 4, 4), dtype=np.uint8)
        return ArraySource.from_array(images, labels, names, name="pets")

    def test_names_decide_not_numbers(self) -> None:
        train = self.source(["ant", "bee", "cat"])
        test = self.source(["cat", "bee", "cat"])
        assert test.labels is not None
        assert test.labels.tolist() == [1, 0, 1]
        assert aligned_labels(train, test)[1].tolist() == [2, 1, 2]

    def test_a_class_that_was_never_seen(self) -> None:
        train, test = self.source(["ant", "bees"]), self.source(["ant", "bee"])
        with pytest.raises(UserError, match=r"'bee' is not among .*; did you mean 'bees'"):
            aligned_labels(train, test)

    def test_a_name_without_images_is_no_obstacle(self) -> None:
        train = self.source(["ant", "bee"])
        test = self.source(["bee", "ant"], ["wasp", "bee", "ant"])
        assert aligned_labels(train, test)[1].tolist() == [1, 0]

    def test_labels_are_needed(self) -> None:
        with pytest.raises(UserError, match="'pets' has no labels, but the test images need"):
            aligned_labels(self.source(["ant"]), self.source(None))
