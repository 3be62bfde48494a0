"""The batched solver against scikit-learn, problem by problem."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from sklearn.linear_model import LogisticRegression

from eigenshot import fit_logistic
from eigenshot.errors import UserError
from eigenshot.evaluation.logistic import NotConverged


def random_problem(
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Support, labels, queries and C: 2 to 20 classes, 1 to 20 shots, d 16 to 2048."""
    ways, shots = int(generator.integers(2, 21)), int(generator.integers(1, 21))
    width = int(2 ** generator.uniform(4, 11))
    strength = float(10 ** generator.uniform(-2, 2))
    centres = generator.normal(size=(ways, width)) * generator.choice([0.0, 0.3, 3.0])
    labels = np.repeat(np.arange(ways), shots)
    support = centres[labels] + generator.normal(size=(len(labels), width))
    query = centres[generator.integers(0, ways, 20)] + generator.normal(size=(20, width))
    if generator.random() < 0.5:
        support /= np.linalg.norm(support, axis=1, keepdims=True)
        query /= np.linalg.norm(query, axis=1, keepdims=True)
    return support, labels, query, strength


def differences_from_scikit_learn(seed: int, problems: int) -> list[float]:
    """The largest difference of a probability in each of so many random problems."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(problems):
        support, labels, query, strength = random_problem(generator)
        ours = fit_logistic(support, labels, C=strength, tol=1e-9).predict_proba(query).numpy()
        model = LogisticRegression(C=strength, tol=1e-9, max_iter=100_000).fit(support, labels)
        theirs = model.predict_proba(query)
        found.append(float(np.abs(ours - theirs).max()))
        assert found[-1] <= 1e-4, f"problem {number} of {seed}: {support.shape}, C={strength:.3g}"
        top_two = np.sort(theirs, axis=1)[:, -2:]
        clear = top_two[:, 1] - top_two[:, 0] > 1e-4
        assert (ours.argmax(1) == theirs.argmax(1))[clear].all()
    return found


def test_five_hundred_problems_agree_with_scikit_learn() -> None:
    # Two processes, for it is the longest of all tests, and scikit-learn's share of it the largest.
    jobs = (delayed(differences_from_scikit_learn)(seed, 125) for seed in range(4))
    found = [value for part in Parallel(n_jobs=2)(jobs) for value in part]
    assert len(found) == 500
    assert max(found) > 0, "two different programs do not agree to the last bit"


def objective(
    coef: np.ndarray, intercept: np.ndarray, x: np.ndarray, y: np.ndarray, C: float
) -> float:
    logits = x @ coef.T + intercept
    logits = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
    return float(C * losses.sum() + 0.5 * (coef**2).sum())


@pytest.mark.parametrize(("count", "width"), [(20, 50), (200, 6)])
@pytest.mark.parametrize("fit_intercept", [True, False])
def test_nothing_nearby_is_better(count: int, width: int, fit_intercept: bool) -> None:
    """The optimum of the stated objective, in the dual and in the primal."""
    generator = np.random.default_rng(1)
    x, y = generator.normal(size=(count, width)), np.arange(count) % 4
    fit = fit_logistic(x, y, C=2.0, fit_intercept=fit_intercept, tol=1e-10)
    coef, intercept = fit.coef.numpy(), fit.intercept.numpy()
    assert fit_intercept or not intercept.any()
    best = objective(coef, intercept, x, y, 2.0)
    for _ in range(20):
        moved = coef + 1e-3 * generator.normal(size=coef.shape)
        shifted = intercept + fit_intercept * 1e-3 * generator.normal(size=intercept.shape)
        assert objective(moved, shifted, x, y, 2.0) > best


class TestBatch:
    def test_a_batch_equals_its_problems_one_by_one(self) -> None:
        generator = np.random.default_rng(2)
        x = generator.normal(size=(6, 15, 30))
        y = np.stack([generator.permutation(np.repeat(np.arange(5), 3)) for _ in range(6)])
        together = fit_logistic(x, y, C=1.0, tol=1e-10)
        for number in range(6):
            alone = fit_logistic(x[number], y[number], C=1.0, tol=1e-10)
            torch.testing.assert_close(together.coef[number], alone.coef, atol=1e-7, rtol=0)
            torch.testing.assert_close(
                together.intercept[number], alone.intercept, atol=1e-6, rtol=0
            )
        query = generator.normal(size=(6, 4, 30))
        assert together.predict_proba(query).shape == (6, 4, 5)
        assert together.predict(query).shape == (6, 4)

    @pytest.mark.parametrize("width", [3, 40])
    def test_padding_changes_nothing(self, width: int) -> None:
        """Ragged supports: rows with label −1 are not there, whatever stands in them."""
        generator = np.random.default_rng(3)
        x, y = generator.normal(size=(2, 12, width)), np.tile(np.arange(12) % 3, (2, 1))
        y[1, 7:] = -1
        x[1, 7:] = 1e6
        ragged = fit_logistic(x, y, C=3.0, tol=1e-10)
        whole = fit_logistic(x[0], y[0], C=3.0, tol=1e-10)
        short = fit_logistic(x[1, :7], y[1, :7], C=3.0, tol=1e-10)
        for number, alone in enumerate((whole, short)):
            torch.testing.assert_close(ragged.coef[number], alone.coef, atol=1e-6, rtol=0)

    def test_unequal_counts(self) -> None:
        generator = np.random.default_rng(4)
        y = np.array([0] * 9 + [1] + [2] * 3)
        x = generator.normal(size=(13, 8)) + y[:, None]
        ours = fit_logistic(x, y, C=0.5, tol=1e-10).predict_proba(x).numpy()
        theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=10_000).fit(x, y).predict_proba(x)
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


class TestTwoClasses:
    def test_binomial_is_scikit_learn_s_and_softmax_is_another(self) -> None:
        generator = np.random.default_rng(5)
        y = np.arange(20) % 2
        x = generator.normal(size=(20, 5)) + y[:, None]
        theirs = LogisticRegression(C=1.0, tol=1e-10).fit(x, y).predict_proba(x)
        binomial = fit_logistic(x, y, C=1.0, tol=1e-10).predict_proba(x).numpy()
        softmax = fit_logistic(x, y, C=1.0, tol=1e-10, binary="multinomial")
        np.testing.assert_allclose(binomial, theirs, atol=1e-6)
        assert np.abs(softmax.predict_proba(x).numpy() - theirs).max() > 0.01
        # The softmax form has weights of opposite sign for the two classes.
        torch.testing.assert_close(softmax.coef[0], -softmax.coef[1])


class TestConvergence:
    def test_every_problem_meets_the_stated_gradient(self) -> None:
        """Easy and hard ones in one batch; the gradient is computed here anew."""
        generator = np.random.default_rng(6)
        x = generator.normal(size=(8, 20, 30)) * np.array([0.1, 1, 10, 30] * 2)[:, None, None]
        y = np.tile(np.repeat(np.arange(4), 5), (8, 1))
        fit = fit_logistic(x, y, C=50.0, tol=1e-7)
        assert float(fit.gradient.max()) <= 1e-7
        one_hot = np.eye(4)[y]
        error = fit.predict_proba(x).numpy() - one_hot
        slope = fit.coef.numpy() + 50 * np.einsum("bnk,bnd->bkd", error, x)
        assert np.abs(slope).max() / (50 * 20) <= 1.01e-7
        assert np.abs(error.sum(axis=1)).max() / 20 <= 1.01e-7

    def test_what_does_not_converge_is_an_error(self) -> None:
        generator = np.random.default_rng(7)
        x = generator.normal(size=(30, 40))
        with pytest.raises(NotConverged, match="1 of 1 problems stopped at a gradient"):
            fit_logistic(x, np.arange(30) % 3, C=1.0, tol=1e-300)

    def test_a_penalty_that_hardly_exists(self) -> None:
        x = 1e4 * np.random.default_rng(8).normal(size=(30, 40))
        fit = fit_logistic(x, np.arange(30) % 3, C=1e6, tol=1e-6)
        assert (fit.predict(x).numpy() == np.arange(30) % 3).all()

    def test_duplicate_and_constant_rows(self) -> None:
        x = np.ones((6, 4))
        x[3:] = 2.0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fit = fit_logistic(x, np.array([0, 0, 1, 1, 2, 2]), C=10.0, tol=1e-8)
        assert torch.isfinite(fit.coef).all()


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (np.zeros((4, 3)), np.zeros(3, int), {}, r"found \(1, 4, 3\) and \(1, 3\)"),
        (np.zeros((4, 3)), np.zeros(4), {}, "labels must be whole numbers, found torch.float64"),
        (np.zeros((4, 3)), np.zeros(4, int), {}, "two classes at least"),
        (np.zeros((4, 3)), np.array([0, 0, 2, 2]), {}, "class 1 has no support in problem 0"),
        (
            np.full((4, 3), np.nan),
            np.arange(4) % 2,
            {},
            r"4 feature rows hold NaN .* \(rows 0",
        ),
        (np.zeros((4, 3)), np.arange(4) % 2, {"C": 0.0}, "C must be positive"),
    ],
)
def test_bad_input(x: np.ndarray, y: np.ndarray, options: dict, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UserError, match=message):
        fit_logistic(x, y, **options)


def test_features_of_another_width() -> None:
    fit = fit_logistic(np.random.default_rng(0).normal(size=(6, 5)), np.arange(6) % 2)
    with pytest.raises(UserError, match="expected features of width 5, found 4"):
        fit.predict(np.zeros((2, 4)))
