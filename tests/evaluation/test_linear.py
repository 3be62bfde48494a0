"""Linear evaluation: the paper's recipe, and the exact optimum."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from eigenshot import Encoder, create_backbone
from eigenshot.data.source import ArraySource
from eigenshot.encoder import Preprocessing
from eigenshot.errors import TrainingDiverged, UserError
from eigenshot.evaluation.linear import LinearResult, linear_exact, linear_probe, probe_rate
from eigenshot.evaluation.linear import probe_view as view_for
from eigenshot.evaluation.logistic import NotConverged
from eigenshot.evaluation.tables import unit_length
from eigenshot.randomness import numpy_generator, torch_generator
from tests.evaluation.test_knn import LargestTensor, Tables, clusters

SIZE = 16


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """A small network with running statistics that are not those of its birth."""
    torch.manual_seed(0)
    backbone = create_backbone("conv4", widths=[6, 6, 6, 8])
    backbone(torch.randn(32, 3, SIZE, SIZE))
    preprocessing = Preprocessing(SIZE, 3, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    return Encoder(backbone, preprocessing, {"name": "conv4", "options": {}})


def tints(count: int, seed: int, kind: type = ArraySource) -> ArraySource:
    """Three classes: noise with a shade of red, green or blue."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    shade = 25 * np.eye(3)[labels][:, :, None, None]
    noise = 50 * generator.normal(size=(count, 3, SIZE, SIZE))
    pixels = np.clip(120 + shade + noise, 0, 255).astype(np.uint8)
    return kind(torch.from_numpy(pixels), labels, "abc", "tints")


def probe(encoder: Encoder, **options: object) -> LinearResult:
    given = {"view": view_for(encoder), "epochs": 5, "batch_size": 25, "lr": 1.0, **options}
    return linear_probe(encoder, tints(90, 0), tints(60, 1), **given)  # type: ignore[arg-type]


class TestRecipe:
    def test_the_rate_falls_at_60_and_80_of_100(self) -> None:
        def rates(epochs: int) -> list[float]:
            return [
                probe_rate(epoch, epochs=epochs, lr=30.0, milestones=(60, 80))
                for epoch in range(epochs)
            ]

        assert rates(100) == pytest.approx([30.0] * 60 + [3.0] * 20 + [0.3] * 20)
        assert rates(10) == pytest.approx([30.0] * 6 + [3.0] * 2 + [0.3] * 2)
        assert rates(1) == [30.0]

    @pytest.mark.parametrize(
        ("together", "blocks"),
        [(10, [25, 50, 75]), (60, [50]), (256, []), (None, [25, 50, 75])],
        ids=["less than a batch", "two batches", "all", "by default on a CPU"],
    )
    def test_equals_the_recipe_written_out(
        self, encoder: Encoder, together: int | None, blocks: list[int]
    ) -> None:
        # Momentum without weight decay, from zero, by hand in float64: last weights, last batch.
        # The views of a block are drawn together, whatever batches it has.
        train, view, backbone = tints(90, 0), view_for(encoder), encoder.backbone.eval()
        assert train.labels is not None
        weights = np.zeros((9, 3))
        velocity = np.zeros((9, 3))
        for epoch in range(5):
            rate = [1.0, 1.0, 1.0, 0.1, 0.01][epoch]
            order = numpy_generator(4, "linear", "order", epoch).permutation(90)
            rows_of_blocks = np.split(order, blocks)
            with torch.no_grad():
                views = [
                    view(train.images(rows), torch_generator(4, "linear", "view", epoch, block))
                    for block, rows in enumerate(rows_of_blocks)
                ]
                found = backbone(torch.cat(views)).double().numpy()
            every, truth = np.hstack([found, np.ones((90, 1))]), np.eye(3)[train.labels[order]]
            for batch in np.split(np.arange(90), [25, 50, 75]):
                scores = np.exp(every[batch] @ weights)
                errors = scores / scores.sum(axis=1, keepdims=True) - truth[batch]
                velocity = 0.9 * velocity + every[batch].T @ errors / len(batch)
                weights -= rate * velocity
        result = probe(encoder, seed=4, together=together)
        np.testing.assert_allclose(result.coef, weights[:-1].T, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(result.intercept, weights[-1], rtol=1e-3, atol=1e-4)

    def test_the_result_is_of_the_weights_after_the_last_epoch(self, encoder: Encoder) -> None:
        done: list[int] = []

        class Watched(ArraySource):
            def images(self, indices: np.ndarray) -> torch.Tensor:
                seen_after.extend([done[-1]] * len(indices))
                return super().images(indices)

        seen_after: list[int] = []
        test = tints(60, 1, kind=Watched)
        result = linear_probe(
            encoder,
            tints(90, 0),
            test,
            view=view_for(encoder),
            epochs=3,
            batch_size=40,
            lr=1.0,
            progress=lambda step, total: done.append(step),
        )
        assert done == list(range(1, 10))
        assert seen_after == [9] * 60  # each once, when nothing is left to choose
        logits = encoder.transform(test) @ result.coef.T + result.intercept
        assert result.accuracy == pytest.approx(100 * np.mean(logits.argmax(1) == test.labels))

    def test_it_learns(self, encoder: Encoder) -> None:
        result = probe(encoder, epochs=20)
        assert result.accuracy > 60  # 33 by chance
        assert result.details["train_loss"] < np.log(3)
        assert set(result.per_class) == {"a", "b", "c"}
        assert np.mean(list(result.per_class.values())) == pytest.approx(result.accuracy)

    @pytest.mark.parametrize("training", [True, False])
    def test_the_encoder_stays_as_it_was(self, encoder: Encoder, training: bool) -> None:
        encoder.backbone.train(training)
        before = {name: value.clone() for name, value in encoder.backbone.state_dict().items()}
        assert any("running_var" in name for name in before)
        probe(encoder)
        for name, value in encoder.backbone.state_dict().items():
            assert torch.equal(value, before[name]), name
        assert encoder.backbone.training is training
        assert all(weight.grad is None for weight in encoder.backbone.parameters())

    def test_the_seed_decides_and_the_caller_draws_undisturbed(self, encoder: Encoder) -> None:
        torch.manual_seed(3)
        state = torch.random.get_rng_state()
        one = probe(encoder, seed=1)
        assert torch.equal(torch.random.get_rng_state(), state)
        torch.manual_seed(99)
        with torch.no_grad():
            again = probe(encoder, seed=1)
        np.testing.assert_array_equal(one.coef, again.coef)
        assert one == again
        assert (probe(encoder, seed=2).coef != one.coef).any()

    def test_the_result_says_what_it_is(self, encoder: Encoder) -> None:
        result = probe(encoder)
        assert str(result) == f"{result.accuracy:.2f} % (sgd)"
        summary = json.loads(json.dumps(result.summary()))
        assert summary["protocol"] == "sgd"
        assert (summary["epochs"], summary["lr"], summary["momentum"]) == (5, 1.0, 0.9)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"epochs": 0}, "epochs must be positive, found 0"),
            ({"lr": -1.0}, "lr must be positive, found -1"),
            ({"together": 0}, "together must be at least 1, found 0"),
            ({"momentum": 1.0}, r"momentum must be in \[0, 1\), found 1.0"),
            ({"milestones": (60, 120)}, "between 0 and 100, found"),
        ],
    )
    def test_bad_recipes(self, encoder: Encoder, options: dict[str, object], message: str) -> None:
        with pytest.raises(UserError, match=message):
            probe(encoder, **options)

    def test_bad_sources(self, encoder: Encoder) -> None:
        train, test = tints(30, 0), tints(30, 1)
        assert train.labels is not None
        view = view_for(encoder)
        with pytest.raises(UserError, match="'bare' has no labels, but the training images"):
            linear_probe(encoder, ArraySource(train.pixels, name="bare"), test, view=view)
        only_a = train.subset(train.labels == 0)
        with pytest.raises(UserError, match="at least 2 classes, found only 'a'"):
            linear_probe(encoder, only_a, test, view=view)
        without_c = train.subset(train.labels < 2)
        with pytest.raises(UserError, match=r"10 test images .* without a training image: 'c'"):
            linear_probe(encoder, without_c, test, view=view)

    def test_features_that_are_not_finite(self, encoder: Encoder) -> None:
        class Broken(torch.nn.Module):
            def forward(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
                return torch.full(images.shape, torch.nan)

        with pytest.raises(TrainingDiverged, match=r"epoch 1 .* features of 'tints' are not"):
            probe(encoder, view=Broken())


class TestExact:
    @pytest.mark.parametrize("classes", [2, 3, 8])
    @pytest.mark.parametrize("C", [0.01, 1.0, 30.0])
    @pytest.mark.parametrize("normalize", [True, False])
    def test_equals_scikit_learn(self, classes: int, C: float, normalize: bool) -> None:
        train, labels, test, truth = clusters(classes, classes=classes)
        result = linear_exact(train, labels, test, truth, C=C, normalize=normalize, tol=1e-8)
        if normalize:
            train, test = unit_length(train), unit_length(test)
        model = LogisticRegression(C=C, tol=1e-10, max_iter=10000).fit(train, labels)
        scores = test @ result.coef.T + result.intercept
        probabilities = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(probabilities, model.predict_proba(test), atol=1e-5)
        if classes > 2:
            np.testing.assert_allclose(result.coef, model.coef_, atol=1e-4 * max(1.0, C))
        assert result.accuracy == pytest.approx(100 * model.score(test, truth))
        assert result.details["gradient"] <= 1e-8

    def test_the_gradient_is_within_its_bound(self) -> None:
        # Recomputed from the weights alone: the reported figure is not taken on trust.
        train, labels, test, truth = clusters()
        result = linear_exact(train, labels, test, truth, C=3.0, tol=1e-7)
        x = unit_length(train)
        scores = np.exp(x @ result.coef.T + result.intercept)
        errors = scores / scores.sum(axis=1, keepdims=True) - np.eye(6)[labels]
        slope = errors.T @ x / len(x) + result.coef / (3.0 * len(x))
        largest = max(np.abs(slope).max(), np.abs(errors.mean(axis=0)).max())
        assert largest == pytest.approx(result.details["gradient"], rel=1e-3)
        assert largest <= 1e-7

    def test_units_of_the_features_do_not_matter(self) -> None:
        train, labels, test, truth = clusters()
        options = {"normalize": False, "tol": 1e-7}
        one = linear_exact(train, labels, test, truth, C=1.0, **options)
        other = linear_exact(1e4 * train, labels, 1e4 * test, truth, C=1e-8, **options)
        np.testing.assert_allclose(1e4 * other.coef, one.coef, atol=1e-4)

    def test_precision_and_pieces_do_not_change_the_result(self) -> None:
        train, labels, test, truth = clusters()
        whole = linear_exact(train, labels, test, truth)
        tensors = [torch.from_numpy(table) for table in (train, labels, test, truth)]
        for result in (
            linear_exact(train, labels, test, truth, chunk=17),
            linear_exact(train.astype(np.float32), labels, test.astype(np.float32), truth),
            linear_exact(*tensors),
        ):
            np.testing.assert_allclose(result.coef, whole.coef, atol=2e-3)
            assert result.accuracy == whole.accuracy

    def test_no_copy_of_the_table_is_made(self) -> None:
        tables = clusters(train=20_000, test=100)
        with LargestTensor() as largest:
            linear_exact(*tables, chunk=512, tol=1e-3)
        assert largest.entries < tables[0].size / 2

    def test_stopping_short_is_an_error(self) -> None:
        with pytest.raises(NotConverged, match=r"above tol=1.0e-08; use a smaller C"):
            linear_exact(*clusters(), tol=1e-8, max_iterations=2)

    def test_constant_and_zero_features(self) -> None:
        train, labels, test, truth = clusters()
        train[:, 3] = test[:, 3] = 2.0
        train[7] = 0.0
        assert linear_exact(train, labels, test, truth).accuracy > 50
        nothing = linear_exact(0 * train, labels, test, truth)
        assert nothing.accuracy == pytest.approx(100 / 6)

    def test_the_result_says_what_it_is(self) -> None:
        result = linear_exact(*clusters(), class_names=["a", "b", "c", "d", "e", "f"])
        assert str(result) == f"{result.accuracy:.2f} % (exact)"
        assert result.class_names == tuple("abcdef") == tuple(result.per_class)
        summary = json.loads(json.dumps(result.summary()))
        assert (summary["protocol"], summary["C"], summary["normalize"]) == ("exact", 1.0, True)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda a, y, b, z: (a, y, b[:, :9], z), "one width, found 10 and 9"),
            (lambda a, y, b, z: (a, y, b, z + 1), "class without a training image: 'six'"),
            (lambda a, y, b, z: (a, 0 * y, b, 0 * z), "at least 2 classes, found only 'zero'"),
            (lambda a, y, b, z: (np.where(a == a[7], np.nan, a), y, b, z), r"\(rows 7\)"),
        ],
    )
    def test_bad_tables(self, change: Callable[..., Tables], message: str) -> None:
        names = ["zero", "one", "two", "three", "four", "five", "six"]
        with pytest.raises(UserError, match=message):
            linear_exact(*change(*clusters()), class_names=names)

    @pytest.mark.parametrize("option", ["C", "tol", "max_iterations", "chunk"])
    def test_options_must_be_positive(self, option: str) -> None:
        with pytest.raises(UserError, match=f"{option} must be positive, found 0"):
            linear_exact(*clusters(), **{option: 0})

    @pytest.mark.parametrize("C", [1e11, 1e-11])
    def test_a_penalty_that_rounding_outweighs_is_refused(self, C: float) -> None:
        with pytest.raises(UserError, match=r"C must lie between 1e-10 and 1e\+10"):
            linear_exact(*clusters(), C=C)

    def test_an_infinite_one_is_no_penalty(self) -> None:
        with pytest.raises(UserError, match="C must be a finite number, found inf"):
            linear_exact(*clusters(), C=np.inf)
