"""Classifiers, transforms, support views, selection and paired differences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import NearestCentroid

from eigenshot import Encoder, create_backbone
from eigenshot.encoder import Preprocessing
from eigenshot.errors import UserError
from eigenshot.evaluation.bench import Bench
from eigenshot.evaluation.classifiers import CLASSIFIERS, get_classifier
from eigenshot.evaluation.episodes import draw_episodes
from eigenshot.evaluation.fewshot import (
    _CHUNK_BYTES,
    evaluate_fewshot,
    half_width,
    paired_difference,
)
from eigenshot.evaluation.protocol import fewshot_of_run, knn_of_run, linear_of_run
from eigenshot.evaluation.selection import select_settings
from eigenshot.evaluation.transforms import transform_features
from eigenshot.evaluation.views import extract_views


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    """Ten overlapping classes of 30 in 24 positive dimensions."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(10), 30)
    centres = generator.normal(size=(10, 24))
    return np.abs(centres[labels] + 0.9 * generator.normal(size=(300, 24))), labels


def one_task(
    table: tuple[np.ndarray, np.ndarray],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    features, labels = table
    tasks = draw_episodes(labels, ways=5, shots=3, queries=8, episodes=6, seed=0)
    x = torch.from_numpy(features)
    return (
        x[tasks.support.reshape(6, -1)],
        torch.arange(5).repeat_interleave(3),
        x[tasks.query.reshape(6, -1)],
    )


class TestAgainstScikitLearn:
    def test_logistic(self, table: tuple[np.ndarray, np.ndarray]) -> None:
        support, labels, query = one_task(table)
        scores = CLASSIFIERS["logistic"].scores(support, labels, query, C=2.0, tol=1e-9)
        for number in range(len(support)):
            model = LogisticRegression(C=2.0, tol=1e-9, max_iter=10_000).fit(
                support[number], labels
            )
            ours = scores[number].softmax(dim=1).numpy()
            np.testing.assert_allclose(ours, model.predict_proba(query[number]), atol=1e-5)

    def test_ridge(self, table: tuple[np.ndarray, np.ndarray]) -> None:
        support, labels, query = one_task(table)
        scores = CLASSIFIERS["ridge"].scores(support, labels, query, C=3.0)
        targets = np.eye(5)[labels]
        for number in range(len(support)):
            # ‖Y − XW‖² + α‖W‖² with α = 1/(2C)
            model = Ridge(alpha=1 / 6).fit(support[number], targets)
            np.testing.assert_allclose(scores[number], model.predict(query[number]), atol=1e-8)

    def test_nearest_centroid(self, table: tuple[np.ndarray, np.ndarray]) -> None:
        support, labels, query = one_task(table)
        scores = CLASSIFIERS["nearest-centroid"].scores(support, labels, query)
        for number in range(len(support)):
            model = NearestCentroid().fit(support[number], labels)
            assert (scores[number].argmax(1).numpy() == model.predict(query[number])).all()

    def test_cosine_is_the_centroid_of_directions(
        self, table: tuple[np.ndarray, np.ndarray]
    ) -> None:
        support, labels, query = one_task(table)
        scores = CLASSIFIERS["cosine"].scores(support, labels, query)
        lengths = torch.rand(6, 15, 1, dtype=torch.float64) + 0.1
        stretched = CLASSIFIERS["cosine"].scores(support * lengths, labels, 7 * query)
        torch.testing.assert_close(scores, stretched)
        assert scores.abs().max() <= 1


class TestTransductive:
    def test_only_these_see_the_other_queries(self, table: tuple[np.ndarray, np.ndarray]) -> None:
        """Removing other queries changes an answer only where the classifier says so."""
        support, labels, query = one_task(table)
        for name, classifier in CLASSIFIERS.items():
            whole = classifier.scores(support, labels, query)[:, :10]
            part = classifier.scores(support, labels, query[:, :10])
            same = torch.allclose(whole, part, atol=1e-9)
            assert same is not classifier.transductive, name

    def test_transport_shares_the_queries_out_evenly(
        self, table: tuple[np.ndarray, np.ndarray]
    ) -> None:
        support, labels, query = one_task(table)
        plan = CLASSIFIERS["optimal-transport"].scores(support, labels, query, sinkhorn_rounds=300)
        torch.testing.assert_close(plan.sum(dim=2), torch.ones(6, 40, dtype=torch.float64))
        shares = torch.full((6, 5), 8.0, dtype=torch.float64)
        torch.testing.assert_close(plan.sum(dim=1), shares, atol=0.2, rtol=0)

    def test_smoothness_zero_is_the_nearest_centroid(
        self, table: tuple[np.ndarray, np.ndarray]
    ) -> None:
        support, labels, query = one_task(table)
        smooth = CLASSIFIERS["laplacian-shot"].scores(support, labels, query, smoothness=0.0)
        plain = CLASSIFIERS["nearest-centroid"].scores(support, labels, query)
        assert (smooth.argmax(2) == plain.argmax(2)).all()

    def test_they_help_and_say_what_they_are(self, table: tuple[np.ndarray, np.ndarray]) -> None:
        plain = evaluate_fewshot(*table, episodes=200, classifier="nearest-centroid")
        for name in ("optimal-transport", "laplacian-shot"):
            result = evaluate_fewshot(*table, episodes=200, classifier=name)
            assert result.transductive
            assert "(transductive)" in str(result)
            assert paired_difference(result, plain)[0] > 0
        assert "transductive" not in str(plain)


def test_unknown_names_and_options() -> None:
    with pytest.raises(UserError, match="unknown classifier 'logistik'; did you mean 'logistic'"):
        get_classifier("logistik", {})
    with pytest.raises(UserError, match="classifier 'cosine' has no option 'C'"):
        get_classifier("cosine", {"C": 1.0})


class TestTransforms:
    def test_their_definitions(self) -> None:
        x = torch.tensor([[3.0, -4.0], [0.0, 0.0]])
        assert transform_features(x, "none") is x
        torch.testing.assert_close(transform_features(x, "l2")[0], torch.tensor([0.6, -0.8]))
        power = torch.tensor([3**0.5, -2.0]) / 7**0.5
        torch.testing.assert_close(transform_features(x, "power")[0], power)
        centred = transform_features(x, "centre", torch.tensor([3.0, 0.0]))
        torch.testing.assert_close(centred[0], torch.tensor([0.0, -1.0]))
        assert transform_features(x, "l2")[1].tolist() == [0.0, 0.0]

    def test_bad_input(self) -> None:
        x = torch.zeros(2, 3)
        with pytest.raises(UserError, match="needs the mean of the training images"):
            transform_features(x, "centre")
        with pytest.raises(UserError, match=r"shape \(3,\), found \(2,\)"):
            transform_features(x, "centre", torch.zeros(2))
        with pytest.raises(UserError, match="unknown transform 'log'; known: none, l2"):
            transform_features(x, "log")  # type: ignore[arg-type]


class TestIntervals:
    def test_student_is_scipy_s_and_wider(self) -> None:
        values = np.random.default_rng(0).normal(size=12)
        low, high = stats.t.interval(0.95, 11, values.mean(), stats.sem(values))
        assert half_width(values, "student") == pytest.approx((high - low) / 2)
        assert half_width(values, "student") > half_width(values)
        with pytest.raises(UserError, match="unknown interval 'exact'"):
            half_width(values, "exact")  # type: ignore[arg-type]

    def test_a_paired_difference_is_narrower_than_two_intervals(
        self, table: tuple[np.ndarray, np.ndarray]
    ) -> None:
        one = evaluate_fewshot(*table, episodes=200)
        other = evaluate_fewshot(*table, episodes=200, classifier="ridge")
        difference, width = paired_difference(one, other)
        assert difference == pytest.approx(one.accuracy - other.accuracy)
        assert width < np.hypot(one.ci95, other.ci95) / 2
        short = evaluate_fewshot(*table, episodes=100)
        with pytest.raises(UserError, match="the same episodes, found 200 and 100"):
            paired_difference(one, short)

    def test_one_episode_has_no_interval(self, table: tuple[np.ndarray, np.ndarray]) -> None:
        with pytest.raises(UserError, match="at least 2 episodes, found 1"):
            evaluate_fewshot(*table, episodes=1)


def test_chunks_do_not_matter(
    table: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded by the chunk, whatever the number of episodes."""
    whole = evaluate_fewshot(*table, episodes=50)
    monkeypatch.setitem(_CHUNK_BYTES, "cpu", 1)
    np.testing.assert_array_equal(
        whole.per_episode, evaluate_fewshot(*table, episodes=50).per_episode
    )


def test_support_views_join_the_support(table: tuple[np.ndarray, np.ndarray]) -> None:
    features, labels = table
    copies = np.repeat(features[:, None], 2, axis=1)
    plain = evaluate_fewshot(features, labels, episodes=30, classifier="nearest-centroid")
    same = evaluate_fewshot(
        features, labels, episodes=30, classifier="nearest-centroid", support_views=copies
    )
    np.testing.assert_array_equal(plain.per_episode, same.per_episode)
    with pytest.raises(UserError, match=r"shape \(300, k, 24\), found \(300, 24\)"):
        evaluate_fewshot(features, labels, support_views=features)


class TestSelection:
    def test_the_best_of_what_was_tried(self, table: tuple[np.ndarray, np.ndarray]) -> None:
        chosen = select_settings(*table, episodes=60, strengths=(0.01, 1.0))
        assert chosen.accuracy == max(chosen.tried.values())
        assert len(chosen.tried) == 6
        again = evaluate_fewshot(*table, episodes=60, C=chosen.C, transform=chosen.transform)
        assert again.accuracy == pytest.approx(chosen.accuracy)

    def test_centring_is_tried_when_the_mean_is_known(
        self, table: tuple[np.ndarray, np.ndarray]
    ) -> None:
        mean = table[0].mean(axis=0)
        chosen = select_settings(*table, episodes=20, base_mean=mean, classifier="cosine")
        assert {name for name, _ in chosen.tried} == {"none", "l2", "power", "centre"}
        assert len(chosen.tried) == 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained encoder for 28×28 glyphs that says how it was trained."""
    torch.manual_seed(0)
    options = {"widths": [4, 8, 8, 16]}
    augment = {"kind": "strokes", "options": {"noise": 0.0}, "view_a": {}, "view_b": {}}
    encoder = Encoder(
        create_backbone("conv4", in_channels=1, **options),
        Preprocessing(28, 1, (0.1,), (0.3,)),
        {"name": "conv4", "options": options},
        {"config": {"augment": augment}},
    )
    return encoder.save(tmp_path_factory.mktemp("run") / "encoder.safetensors")


class TestProtocols:
    def test_few_shot_with_everything(self, run: Path) -> None:
        results = fewshot_of_run(
            Bench(run, device="cpu"),
            "glyphs",
            episodes=20,
            base="glyphs",
            select_on="glyphs",
            support_views=2,
            interval="student",
        )
        assert [result.shots for result, _ in results] == [1, 5]
        assert all(result.accuracy > 25 and chosen for result, chosen in results)

    def test_views_are_random_seeded_and_of_the_training(self, run: Path) -> None:
        bench = Bench(run, device="cpu")
        source = bench.open("glyphs", "validation")
        one = extract_views(bench.encoder, source, 2, seed=0)
        assert one.shape == (len(source), 2, 16)
        assert np.abs(one[:, 0] - one[:, 1]).max() > 0
        np.testing.assert_array_equal(one, extract_views(bench.encoder, source, 2, seed=0))
        with pytest.raises(UserError, match="at least 1, found 0"):
            extract_views(bench.encoder, source, 0)
        bench.encoder.provenance = {}
        with pytest.raises(UserError, match="does not say how it was trained"):
            extract_views(bench.encoder, source, 1)

    def test_another_domain_s_own_normalisation(self, run: Path) -> None:
        bench = Bench(run, device="cpu", normalisation="data")
        source = bench.open("glyphs", "test")
        own = bench.suited(source).preprocessing
        images = source.images(np.arange(len(source))).double() / 255
        assert own.mean[0] == pytest.approx(float(images.mean()), abs=1e-5)
        assert own.std[0] == pytest.approx(float(images.std(unbiased=False)), abs=1e-5)
        with pytest.raises(UserError, match="unknown normalisation 'own'"):
            Bench(run, normalisation="own")  # type: ignore[arg-type]

    def test_linear_and_nearest_neighbours_align_classes_by_name(
        self, run: Path, tmp_path: Path
    ) -> None:
        """The test set lacks the first class, so its label numbers are shifted."""
        generator = np.random.default_rng(0)
        images = generator.integers(0, 40, (40, 28, 28), dtype=np.uint8)
        labels = np.repeat(np.arange(4), 10)
        for label in range(4):
            images[labels == label, :, 7 * label : 7 * label + 6] = 255
        names = np.array(list("abcd"))
        np.savez(tmp_path / "train.npz", images=images, labels=labels, class_names=names)
        np.savez(
            tmp_path / "test.npz", images=images[10:], labels=labels[10:] - 1, class_names=names[1:]
        )
        train, test = tmp_path / "train.npz", tmp_path / "test.npz"
        bench = Bench(run, device="cpu")
        assert knn_of_run(bench, train, test, neighbours=5).accuracy == 100.0
        exact = linear_of_run(bench, train, test, exact=True, C=100.0)
        assert (exact.accuracy, exact.protocol) == (100.0, "exact")
        assert linear_of_run(bench, train, test, epochs=2).protocol == "sgd"
