"""Episodes and few-shot accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

import eigenshot
from eigenshot.errors import UserError
from eigenshot.evaluation.episodes import draw_episodes
from eigenshot.evaluation.fewshot import evaluate_fewshot
from eigenshot.evaluation.knn import leave_one_out_knn
from eigenshot.evaluation.tables import unit_length


@pytest.fixture
def clusters() -> tuple[np.ndarray, np.ndarray]:
    """Eight overlapping classes of 25 in 12 dimensions."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(8, 12))
    labels = np.repeat(np.arange(8), 25)
    return centres[labels] + 0.8 * generator.normal(size=(200, 12)), labels


class TestEpisodes:
    def test_each_task_has_distinct_classes_and_images(self) -> None:
        labels = np.random.default_rng(1).permutation(np.repeat(np.arange(7), 12))
        tasks = draw_episodes(labels, ways=4, shots=2, queries=5, episodes=50, seed=0)
        assert tasks.support.shape == (50, 4, 2)
        assert tasks.query.shape == (50, 4, 5)
        for support, query in zip(tasks.support, tasks.query, strict=True):
            both = np.concatenate([support, query], axis=1)
            assert len(np.unique(both)) == both.size
            classes = labels[both]
            assert (classes == classes[:, :1]).all()
            assert len(np.unique(classes[:, 0])) == 4

    def test_the_seed_decides_and_the_order_is_pinned(self) -> None:
        labels = np.repeat(np.arange(6), 10)
        options = {"ways": 3, "shots": 1, "queries": 2, "episodes": 4}
        one = draw_episodes(labels, **options, seed=5)
        again = draw_episodes(labels, **options, seed=5)
        other = draw_episodes(labels, **options, seed=6)
        np.testing.assert_array_equal(one.support, again.support)
        assert (one.support != other.support).any()
        # Written down once: a change of platform or library must not change the tasks.
        assert one.support[0].ravel().tolist() == [10, 29, 35]

    def test_all_classes_and_images_are_equally_likely(self) -> None:
        labels = np.repeat(np.arange(10), 20)
        tasks = draw_episodes(labels, ways=5, shots=1, queries=3, episodes=4000, seed=0)
        counts = np.bincount(tasks.support.ravel(), minlength=200)
        # 20,000 draws over 200 images: mean 100, deviation 10.
        assert counts.min() > 60
        assert counts.max() < 140

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"ways": 9}, "9-way episodes need 9 classes, found 3"),
            ({"shots": 4}, "class 'cat' has 6 images, but 4 shots [+] 3 queries need 7"),
            ({"shots": 4}, "smallest class allows 6 of both together, as with --shots 4 --quer"),
            ({"shots": 4}, "--queries 2, or leave that class out"),
            ({"shots": 7}, "allows 6 of both together, as with --shots 1 --queries 5, or leave"),
            ({"labels": [0, 0, 0, 1]}, "class 'cat' has 1 images, .* add images to it, or leave"),
            ({"ways": 1}, "ways must be at least 2, found 1"),
            ({"shots": 0}, "shots must be at least 1, found 0"),
            ({"episodes": 0}, "episodes must be at least 1"),
        ],
    )
    def test_impossible_requests_are_refused(self, options: dict[str, Any], message: str) -> None:
        labels = np.array([0] * 8 + [1] * 6 + [2] * 9)
        given = {"labels": labels, "ways": 2, "shots": 2, "queries": 3, "episodes": 5, **options}
        with pytest.raises(UserError, match=message):
            draw_episodes(**given, seed=0, class_names=("dog", "cat", "cow"))

    def test_one_class_is_none_to_tell_apart(self) -> None:
        with pytest.raises(UserError, match="need 2 classes, found 1; add some"):
            draw_episodes(np.zeros(9, int), ways=2, shots=1, queries=1, episodes=1, seed=0)


class TestAccuracy:
    def test_equals_a_loop_over_scikit_learn(self, clusters: tuple[np.ndarray, np.ndarray]) -> None:
        features, labels = clusters
        result = evaluate_fewshot(features, labels, shots=3, queries=6, episodes=20, seed=4)
        tasks = draw_episodes(labels, ways=5, shots=3, queries=6, episodes=20, seed=4)
        table = features / np.linalg.norm(features, axis=1, keepdims=True)
        expected = []
        for support, query in zip(tasks.support, tasks.query, strict=True):
            model = LogisticRegression(C=1.0, max_iter=1000)
            model.fit(table[support.ravel()], labels[support.ravel()])
            expected.append(100 * model.score(table[query.ravel()], labels[query.ravel()]))
        np.testing.assert_allclose(result.per_episode, expected)
        assert result.accuracy == pytest.approx(np.mean(expected))
        half_width = 1.96 * np.std(expected, ddof=1) / np.sqrt(20)
        assert result.ci95 == pytest.approx(half_width)

    def test_arrays_and_tensors_give_the_same(
        self, clusters: tuple[np.ndarray, np.ndarray]
    ) -> None:
        features, labels = clusters
        one = eigenshot.evaluate_fewshot(features, labels, episodes=10, queries=5)
        other = eigenshot.evaluate_fewshot(
            torch.from_numpy(features), torch.from_numpy(labels), episodes=10, queries=5
        )
        np.testing.assert_array_equal(one.per_episode, other.per_episode)

    def test_perfect_and_useless_features(self) -> None:
        labels = np.repeat(np.arange(6), 20)
        perfect = np.eye(6)[labels]
        assert evaluate_fewshot(perfect, labels, episodes=10).accuracy == 100.0
        noise = np.random.default_rng(0).normal(size=(120, 8))
        result = evaluate_fewshot(noise, labels, episodes=200)
        assert abs(result.accuracy - 20) < 3 * result.ci95

    def test_a_zero_vector_stays_zero(self) -> None:
        np.testing.assert_allclose(
            unit_length(np.array([[0.0, 0.0], [3.0, 4.0]])), [[0, 0], [0.6, 0.8]]
        )

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda f, y: (f[0], y), r"shape \(N, d\), found \(12,\)"),
            (lambda f, y: (f, y[:-1]), r"labels must have shape \(200,\)"),
            (lambda f, y: (f, y + 0.5), "labels must be integers, found float64"),
            (lambda f, y: (np.where(f == f[7], np.nan, f), y), r"hold NaN or infinity \(rows 7\)"),
        ],
    )
    def test_bad_input(self, clusters: tuple, change, message: str) -> None:  # type: ignore[no-untyped-def, type-arg]
        features, labels = change(*clusters)
        with pytest.raises(UserError, match=message):
            evaluate_fewshot(features, labels)

    def test_c_must_be_positive(self, clusters: tuple[np.ndarray, np.ndarray]) -> None:
        with pytest.raises(UserError, match="C must be positive, found 0"):
            evaluate_fewshot(*clusters, C=0)


class TestNearestNeighbours:
    def test_equals_scikit_learn_without_the_image_itself(
        self, clusters: tuple[np.ndarray, np.ndarray]
    ) -> None:
        features, labels = clusters
        table = unit_length(features)
        correct = 0
        for row in range(len(table)):
            others = np.arange(len(table)) != row
            model = KNeighborsClassifier(
                9,
                weights=lambda d: np.exp((1 - d**2 / 2) / 0.1),  # cosine from distance
            )
            model.fit(table[others], labels[others])
            correct += int(model.predict(table[row : row + 1])[0] == labels[row])
        found = leave_one_out_knn(features, labels, neighbours=9, chunk=64)
        assert found == pytest.approx(100 * correct / len(table))
