"""Identities of the paper's Sections 2 to 4, in float64, and equality with independent solvers."""

from __future__ import annotations

import os

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_swiss_roll
from sklearn.manifold import spectral_embedding

from eigenshot import eigensolver, spectral
from eigenshot.errors import UserError


def random_graph(n: int, seed: int = 0, density: float = 0.5) -> np.ndarray:
    """Connected (through a ring), irregular, with self-loops."""
    rng = np.random.default_rng(seed)
    W = rng.exponential(size=(n, n)) * (rng.random((n, n)) < density)
    ring = np.roll(np.eye(n), 1, axis=1)
    return np.triu(W) + np.triu(W, 1).T + 0.1 * (ring + ring.T)


def ring_graph(n: int) -> sp.csr_array:
    i = np.arange(n)
    return spectral.pairs_graph(i, (i + 1) % n, weights=np.full(n, 2.0), n_nodes=n)


def standardised(B: int, K: int, seed: int = 0) -> torch.Tensor:
    z = torch.from_numpy(np.random.default_rng(seed).normal(size=(B, K)))
    return (z - z.mean(0)) / z.std(0, unbiased=False)


def reference(S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    D = np.diag(S.sum(1))
    return scipy.linalg.eigh(D - S, D)


def same_space(A: np.ndarray, B: np.ndarray, d: np.ndarray, atol: float = 1e-8) -> bool:
    """D-orthonormal columns that span one space have a cross product with singular values 1."""
    return np.allclose(np.linalg.svd(A.T @ (d[:, None] * B), compute_uv=False), 1, atol=atol)


# --- 2.1, 2.2: random walk and partition ----------------------------------------------------------


def test_walk_identities() -> None:
    S = random_graph(12)
    P = spectral.transition_matrix(S).toarray()
    pi = spectral.stationary_distribution(S)
    np.testing.assert_allclose(P.sum(1), 1, atol=1e-14)
    np.testing.assert_allclose(pi @ P, pi, atol=1e-14)
    np.testing.assert_allclose(pi, S.sum(1) / S.sum(), atol=1e-15)
    np.testing.assert_allclose(spectral.random_walk_laplacian(S).toarray(), np.eye(12) - P)
    np.testing.assert_allclose(spectral.laplacian(S).toarray(), np.diag(S.sum(1)) - S)
    assert spectral.volume(S) == pytest.approx(S.sum())
    assert spectral.volume(S, [1, 4]) == pytest.approx(S[[1, 4]].sum())


def test_p_is_not_a_laplacian() -> None:
    """The paper calls P the random-walk Laplacian; that is I − P, which annihilates constants."""
    S = random_graph(9)
    one = np.ones(9)
    np.testing.assert_allclose(spectral.transition_matrix(S) @ one, one)
    np.testing.assert_allclose(spectral.random_walk_laplacian(S) @ one, 0, atol=1e-14)


def test_eq_1_both_forms_and_from_the_walk_itself() -> None:
    S = random_graph(12)
    C, C2 = np.array([0, 3, 5]), np.array([1, 2, 7, 8])
    between = S[np.ix_(C, C2)].sum()
    value = spectral.transition_probability(S, C, C2)
    assert value == pytest.approx((between / S.sum()) / (spectral.volume(S, C) / S.sum()))
    assert value == pytest.approx(between / spectral.volume(S, C))
    pi = spectral.stationary_distribution(S)
    P = spectral.transition_matrix(S).toarray()
    joint = (pi[C, None] * P[np.ix_(C, C2)]).sum()
    assert value == pytest.approx(joint / pi[C].sum())
    mask = np.isin(np.arange(12), C)
    assert spectral.transition_probability(S, mask, ~mask) == pytest.approx(
        1 - spectral.transition_probability(S, mask, mask)
    )


def test_eq_2_indicators_are_orthonormal() -> None:
    S = random_graph(12)
    labels = np.arange(12) % 3
    Z = spectral.indicator_matrix(S, labels).toarray()
    np.testing.assert_allclose(Z.T @ np.diag(S.sum(1)) @ Z, np.eye(3), atol=1e-14)
    assert Z[4, 1] == pytest.approx(1 / np.sqrt(S[labels == 1].sum()))


def test_eq_3_every_line_and_not_one_half() -> None:
    S = random_graph(12)
    labels = np.arange(12) % 3
    Z = spectral.indicator_matrix(S, labels).toarray()
    d, L = S.sum(1), np.diag(S.sum(1)) - S
    for k in range(3):
        z = Z[:, k]
        value = z @ L @ z
        cross = (S * np.outer(z, z)).sum()
        inside = labels == k
        lines = [
            (d * z**2).sum() - cross,
            0.5 * ((d * z**2).sum() - 2 * cross + (d * z**2).sum()),
            0.5 * ((S * z[:, None] ** 2).sum() - 2 * cross + (S.T * z[:, None] ** 2).sum()),
            0.5 * (S * (z[:, None] - z[None, :]) ** 2).sum(),
            S[np.ix_(inside, ~inside)].sum() / spectral.volume(S, inside),
            spectral.transition_probability(S, inside, ~inside),
        ]
        np.testing.assert_allclose(lines, value, rtol=1e-12)
        printed = 0.5 * spectral.transition_probability(S, inside, ~inside)
        assert abs(printed - value) > 0.1 * value
        assert spectral.interclass_transition(S, labels)[k] == pytest.approx(value)


def test_eq_4_objective_is_the_sum_of_transitions() -> None:
    S = random_graph(12)
    labels = np.array(list("aabbbccaabcc"))
    total = spectral.trace_objective(S, spectral.indicator_matrix(S, labels))
    assert total == pytest.approx(spectral.interclass_transition(S, labels).sum())


def test_eq_7_needs_its_half() -> None:
    S = random_graph(12)
    Z = np.random.default_rng(1).normal(size=(12, 4))
    pairs = (S * ((Z[:, None] - Z[None]) ** 2).sum(-1)).sum()
    trace = np.trace(Z.T @ (np.diag(S.sum(1)) - S) @ Z)
    assert trace == pytest.approx(0.5 * pairs)
    assert spectral.trace_objective(sp.csr_array(S), Z) == pytest.approx(trace)


@settings(max_examples=60, deadline=None)
@given(st.integers(5, 14), st.integers(0, 10**6), st.floats(0.1, 1.0), st.data())
def test_relaxed_optimum_bounds_every_partition(
    n: int, seed: int, density: float, data: st.DataObject
) -> None:
    """Eq. 5 against Eq. 4: the K smallest eigenvalues, the zero included, sum to a lower bound."""
    S = random_graph(n, seed, density)
    labels = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    K = len(np.unique(labels))
    relaxed = spectral.laplacian_eigenmaps(S, K, drop_first=False).eigenvalues.sum()
    cut = spectral.trace_objective(S, spectral.indicator_matrix(S, labels))
    assert relaxed <= cut + 1e-10


def test_trace_minimum_is_the_sum_of_eigenvalues_whatever_the_rotation() -> None:
    S = random_graph(15)
    d = S.sum(1)
    maps = spectral.laplacian_eigenmaps(S, 4, drop_first=False)
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    for Z in (maps.embedding, maps.embedding @ rotation):
        assert spectral.trace_objective(S, Z) == pytest.approx(maps.eigenvalues.sum())
    for _ in range(20):  # any other feasible Z is worse
        other = np.linalg.qr(rng.normal(size=(15, 4)))[0] / np.sqrt(d)[:, None]
        assert spectral.trace_objective(S, other) > maps.eigenvalues.sum()


# --- 3, 4: decorrelation and gradients ------------------------------------------------------------


def test_eq_13_all_lines() -> None:
    Z = standardised(10, 6).numpy()
    B = len(Z)
    C, G = Z.T @ Z / B, Z @ Z.T
    lines = [
        np.linalg.norm(Z.T @ Z) ** 2 / B**2,
        np.trace(Z.T @ Z @ (Z.T @ Z).T) / B**2,
        np.trace(G @ G) / B**2,
        np.trace(G.T @ G) / B**2,
        (G * G).sum() / B**2,
        sum((Z[i] @ Z[j]) ** 2 for i in range(B) for j in range(B)) / B**2,
    ]
    np.testing.assert_allclose(lines, np.linalg.norm(C) ** 2, rtol=1e-12)
    off_diagonal = (C**2).sum() - (np.diag(C) ** 2).sum()
    assert off_diagonal == pytest.approx(np.linalg.norm(C) ** 2 - 6)


def test_unit_variance_gives_mean_squared_norm_k_not_1() -> None:
    Z = standardised(10, 6).numpy()
    norms = (Z**2).sum(1)
    assert norms.mean() == pytest.approx(6)
    assert norms.std() > 0.1  # so the squared inner products are not K² times squared cosines


@pytest.mark.parametrize(("factor", "right"), [(2.0, True), (1.0, False)])
def test_eq_14_gradient_has_2_gamma(factor: float, right: bool) -> None:
    """Squared-norm trace (Eq. 8), off-diagonal decorrelation (Eq. 9), unit diagonal of C."""
    B, gamma = 12, 0.3
    z, z_plus = standardised(B, 5).requires_grad_(), standardised(B, 5, seed=1)
    C = z.T @ z / B
    loss = (z - z_plus).pow(2).sum(1).mean() + gamma * (C - torch.diag(C.diag())).pow(2).sum()
    (gradient,) = torch.autograd.grad(loss, z)
    with torch.no_grad():
        g = factor * gamma
        formula = (2 / B) * ((1 - g) * z - z_plus + g * (z @ z.T / B) @ z)
    assert torch.allclose(gradient, formula, rtol=1e-12, atol=1e-14) is right


def info_nce(anchors: torch.Tensor, positives: torch.Tensor, tau: float) -> torch.Tensor:
    """−Σ_i log softmax over V = the positives (a batch of keys, or a memory bank)."""
    logits = anchors @ positives.T / tau
    return -(logits.diag() - logits.logsumexp(1)).sum()


def test_section_4_infonce_gradient_holds_when_the_anchor_is_no_candidate() -> None:
    """V holds keys apart from the anchors: only anchor i's own term depends on z_i."""
    tau = 0.5
    z, keys = standardised(7, 4).requires_grad_(), standardised(7, 4, seed=1)
    (gradient,) = torch.autograd.grad(info_nce(z, keys, tau), z)
    with torch.no_grad():
        weights = (z @ keys.T / tau).softmax(1)
        assert torch.allclose(gradient, (-keys + weights @ keys) / tau, rtol=1e-12, atol=1e-14)


def test_section_4_infonce_gradient_lacks_terms_when_v_is_the_batch_itself() -> None:
    """With anchors in V, z_i is candidate of the other anchors (and of itself) as well.

    Anchors z_1 … z_2n in one batch, positive of i at i ± n, z_i itself not its own candidate: the
    printed gradient is that of the i-th term with all other terms left out; the whole one adds,
    for every other anchor a, (ω_ai − [i is the positive of a]) z_a / τ.
    """
    tau, n = 0.5, 4
    z = standardised(2 * n, 3).requires_grad_()
    positive = (torch.arange(2 * n) + n) % (2 * n)

    def terms(z: torch.Tensor) -> torch.Tensor:
        logits = (z @ z.T / tau).masked_fill(torch.eye(2 * n, dtype=torch.bool), -torch.inf)
        return logits.logsumexp(1) - logits[torch.arange(2 * n), positive]

    own = torch.stack([torch.autograd.grad(terms(z)[i], z)[0][i] for i in range(2 * n)])
    (whole,) = torch.autograd.grad(terms(z).sum(), z)
    with torch.no_grad():
        logits = (z @ z.T / tau).masked_fill(torch.eye(2 * n, dtype=torch.bool), -torch.inf)
        weights = logits.softmax(1)
        printed = (-z[positive] + weights @ z) / tau
        target = torch.eye(2 * n, dtype=z.dtype)[positive]
        as_candidate = (weights - target).T @ z / tau
    assert torch.allclose(own, printed, rtol=1e-12, atol=1e-14)
    assert torch.allclose(whole, printed + as_candidate, rtol=1e-12, atol=1e-14)
    assert not torch.allclose(whole, printed, rtol=1e-3)


@pytest.mark.parametrize(("B", "K"), [(4, 9), (8, 32), (5, 5)])
def test_floor_of_the_decorrelation_term(B: int, K: int) -> None:
    """Rank at most B − 1 and trace K: ‖C‖_F² ≥ K²/(B−1), reached by a regular simplex."""
    C = (standardised(B, K).T @ standardised(B, K) / B).numpy()
    assert (C**2).sum() >= K**2 / (B - 1)
    hadamard = scipy.linalg.hadamard(8)[:, 1:].astype(float)  # mean 0, variance 1, orthogonal
    Z = np.hstack([hadamard, hadamard, hadamard])  # K = 21 > B = 8
    tight = Z.T @ Z / 8
    assert (tight**2).sum() == pytest.approx(21**2 / 7)


# --- eigenmaps ------------------------------------------------------------------------------------


def test_eigenmaps_equal_a_dense_reference() -> None:
    S = random_graph(40)
    values, vectors = reference(S)
    d = S.sum(1)
    maps = spectral.laplacian_eigenmaps(S, 5)
    np.testing.assert_allclose(maps.eigenvalues, values[1:6], atol=1e-12)
    np.testing.assert_allclose(
        maps.embedding.T @ (d[:, None] * maps.embedding), np.eye(5), atol=1e-12
    )
    np.testing.assert_allclose(np.abs(maps.embedding), np.abs(vectors[:, 1:6]), atol=1e-9)
    with_first = spectral.laplacian_eigenmaps(S, 6, drop_first=False)
    np.testing.assert_allclose(with_first.embedding[:, 0], 1 / np.sqrt(d.sum()))
    np.testing.assert_allclose(with_first.embedding[:, 1:], maps.embedding)


def test_eigenmaps_equal_scikit_learn() -> None:
    S = random_graph(60, density=0.2)
    np.fill_diagonal(S, 0)  # scikit-learn ignores self-loops
    d = S.sum(1)
    theirs = spectral_embedding(S, n_components=4, drop_first=True, random_state=0)
    theirs = theirs / np.sqrt((d[:, None] * theirs**2).sum(0))
    ours = spectral.laplacian_eigenmaps(S, 4)
    np.testing.assert_allclose(np.abs(theirs), np.abs(ours.embedding), atol=1e-7)


@pytest.mark.parametrize("dense_nodes", [1200, 10])
def test_ring_has_double_eigenvalues(monkeypatch: pytest.MonkeyPatch, dense_nodes: int) -> None:
    """1 − cos(2πk/n), each twice; the iterative path must find both copies."""
    monkeypatch.setattr(eigensolver, "DENSE_NODES", dense_nodes)
    n, K = 120, 8
    S = ring_graph(n)
    maps = spectral.laplacian_eigenmaps(S, K)
    k = np.repeat(np.arange(1, K // 2 + 1), 2)
    np.testing.assert_allclose(maps.eigenvalues, 1 - np.cos(2 * np.pi * k / n), atol=1e-10)
    theirs = spectral_embedding(S.toarray(), n_components=K, drop_first=True, random_state=0)
    theirs = theirs / np.linalg.norm(theirs, axis=0) / np.sqrt(2)
    assert same_space(maps.embedding, theirs, spectral.degrees(S), atol=1e-6)


def test_missed_copies_are_found_at_high_multiplicity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypercube of dimension 7: eigenvalue 2j/7 has multiplicity 7 choose j."""
    monkeypatch.setattr(eigensolver, "DENSE_NODES", 10)
    node = np.arange(128)
    flips = [node ^ (1 << b) for b in range(7)]
    S = spectral.pairs_graph(np.tile(node, 7), np.concatenate(flips), n_nodes=128)
    maps = spectral.laplacian_eigenmaps(S, 20)
    np.testing.assert_allclose(maps.eigenvalues, [2 / 7] * 7 + [4 / 7] * 13, atol=1e-9)


def test_iterative_path_on_a_complete_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigensolver, "DENSE_NODES", 10)
    S = np.ones((60, 60)) - np.eye(60)
    maps = spectral.laplacian_eigenmaps(S, 5)
    np.testing.assert_allclose(maps.eigenvalues, 60 / 59, atol=1e-10)


def test_iterative_path_equals_dense_path(monkeypatch: pytest.MonkeyPatch) -> None:
    points, _ = make_swiss_roll(800, random_state=0)
    S = spectral.neighbour_graph(points, 10, weights="heat")
    dense = spectral.laplacian_eigenmaps(S, 12)
    monkeypatch.setattr(eigensolver, "DENSE_NODES", 100)
    iterative = spectral.laplacian_eigenmaps(S, 12)
    np.testing.assert_allclose(iterative.eigenvalues, dense.eigenvalues, atol=1e-12)
    np.testing.assert_allclose(iterative.embedding, dense.embedding, atol=1e-6)


def residual(S: sp.csr_array, maps: spectral.Eigenmaps) -> float:
    d = spectral.degrees(S)
    DZ = d[:, None] * maps.embedding
    R = spectral.laplacian(S) @ maps.embedding - maps.eigenvalues * DZ
    return float(np.max(np.linalg.norm(R, axis=0) / np.linalg.norm(DZ, axis=0)))


def test_medium_sparse_graph() -> None:
    points, _ = make_swiss_roll(5000, random_state=0)
    S = spectral.neighbour_graph(points, 15)
    maps = spectral.laplacian_eigenmaps(S, 30, tol=1e-6)
    assert residual(S, maps) < 1e-6
    gram = maps.embedding.T @ (spectral.degrees(S)[:, None] * maps.embedding)
    np.testing.assert_allclose(gram, np.eye(30), atol=1e-10)
    assert (np.diff(maps.eigenvalues) >= -1e-12).all()
    peer = sp.linalg.eigsh(
        spectral.laplacian(S), 31, sp.diags_array(spectral.degrees(S)), sigma=-1e-4, which="LM"
    )[0]
    np.testing.assert_allclose(maps.eigenvalues, np.sort(peer)[1:], atol=1e-9)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("EIGENSHOT_SLOW") != "1", reason="set EIGENSHOT_SLOW=1")
def test_hundred_thousand_nodes() -> None:
    points, _ = make_swiss_roll(100_000, random_state=0)
    S = spectral.neighbour_graph(points, 20)
    assert residual(S, spectral.laplacian_eigenmaps(S, 50)) < 1e-6


@pytest.mark.parametrize("dense_nodes", [1200, 20])
def test_disconnected_graph(monkeypatch: pytest.MonkeyPatch, dense_nodes: int) -> None:
    monkeypatch.setattr(eigensolver, "DENSE_NODES", dense_nodes)
    sizes = [40, 7, 60, 7]
    shuffle = np.random.default_rng(3).permutation(sum(sizes))
    S = scipy.linalg.block_diag(*[random_graph(n, seed=n) for n in sizes])[shuffle][:, shuffle]
    d = S.sum(1)
    maps = spectral.laplacian_eigenmaps(S, 9)
    values, vectors = reference(S)
    np.testing.assert_allclose(maps.eigenvalues, values[1:10], atol=1e-11)
    assert (maps.eigenvalues[:3] == 0).all()
    np.testing.assert_allclose(d @ maps.embedding, 0, atol=1e-9)  # nothing of the constant
    np.testing.assert_allclose(
        maps.embedding.T @ (d[:, None] * maps.embedding), np.eye(9), atol=1e-10
    )
    whole = spectral.laplacian_eigenmaps(S, 10, drop_first=False)
    assert same_space(whole.embedding[:, :4], vectors[:, :4], d)
    np.testing.assert_allclose(whole.embedding[:, 0], 1 / np.sqrt(d.sum()))


def test_views_graph_of_many_tiny_parts() -> None:
    """30,000 images: the null space alone is enough; of 40 images it runs out and λ > 0 follow."""
    image = np.repeat(np.arange(30_000), 2)
    S = spectral.views_graph(image)
    maps = spectral.laplacian_eigenmaps(S, 20)
    assert (maps.eigenvalues == 0).all()
    np.testing.assert_array_equal(maps.embedding[::2], maps.embedding[1::2])  # views agree
    np.testing.assert_allclose(maps.embedding.T @ maps.embedding, np.eye(20), atol=1e-12)
    few = spectral.laplacian_eigenmaps(spectral.views_graph(np.repeat(np.arange(40), 3)), 60)
    np.testing.assert_allclose(few.eigenvalues, [0] * 39 + [1.5] * 21, atol=1e-12)


def test_all_eigenvectors_of_a_graph() -> None:
    S = random_graph(9)
    maps = spectral.laplacian_eigenmaps(S, 9, drop_first=False)
    np.testing.assert_allclose(maps.eigenvalues, reference(S)[0], atol=1e-12)


def test_results_and_signs_are_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eigensolver, "DENSE_NODES", 10)
    S = sp.csr_array(random_graph(150, density=0.1))
    first, second = spectral.laplacian_eigenmaps(S, 6), spectral.laplacian_eigenmaps(S, 6)
    np.testing.assert_array_equal(first.embedding, second.embedding)
    rows = np.abs(first.embedding).argmax(0)
    assert (first.embedding[rows, np.arange(6)] > 0).all()
    # Another numbering of the nodes is the same embedding, signs included.
    order = np.random.default_rng(0).permutation(150)
    moved = spectral.laplacian_eigenmaps(S[order][:, order], 6)
    np.testing.assert_allclose(moved.embedding, first.embedding[order], atol=1e-6)


def test_an_unreachable_tolerance_is_reported() -> None:
    with pytest.raises(spectral.NotConvergedError, match="residual"):
        spectral.laplacian_eigenmaps(random_graph(30), 3, tol=1e-20)


# --- graphs ---------------------------------------------------------------------------------------


def test_views_graph_weights() -> None:
    S = spectral.views_graph(["b", "a", "b", "b", "a"], weights="uniform").toarray()
    np.testing.assert_allclose(S.sum(1), 1)
    np.testing.assert_allclose(S[0], [0, 0, 0.5, 0.5, 0])
    np.testing.assert_allclose(S, S.T)


def test_pairs_graph_adds_repeated_pairs() -> None:
    S = spectral.pairs_graph([0, 1, 1], [1, 0, 2], weights=[0.5, 0.25, 0.25], n_nodes=3).toarray()
    np.testing.assert_allclose(S, [[0, 0.375, 0], [0.375, 0, 0.125], [0, 0.125, 0]])
    assert S.sum() == pytest.approx(1)


def test_neighbour_graph_against_brute_force() -> None:
    X = np.random.default_rng(0).normal(size=(30, 3))
    distance = np.linalg.norm(X[:, None] - X[None], axis=-1)
    near = np.zeros((30, 30), dtype=bool)
    np.put_along_axis(near, np.argsort(distance, axis=1)[:, 1:5], True, axis=1)
    near |= near.T
    np.testing.assert_array_equal(spectral.neighbour_graph(X, 4).toarray(), near)
    heat = spectral.neighbour_graph(X, 4, weights="heat", bandwidth=0.7).toarray()
    np.testing.assert_allclose(heat, np.exp(-((distance / 0.7) ** 2)) * near, atol=1e-14)


# --- the linear case ------------------------------------------------------------------------------


def test_lpp_equals_a_direct_solve() -> None:
    S = random_graph(40)
    X = np.random.default_rng(0).normal(size=(40, 6))
    D = np.diag(S.sum(1))
    values, vectors = scipy.linalg.eigh(X.T @ (D - S) @ X, X.T @ D @ X)
    ours = spectral.locality_preserving_projection(S, X, 3, centre=False)
    np.testing.assert_allclose(ours.eigenvalues, values[:3], rtol=1e-10)
    np.testing.assert_allclose(np.abs(ours.projection), np.abs(vectors[:, :3]), atol=1e-10)
    np.testing.assert_allclose(ours.embedding, X @ ours.projection, atol=1e-12)
    centred = spectral.locality_preserving_projection(S, X + 7.0, 3)
    np.testing.assert_allclose(S.sum(1) @ centred.embedding, 0, atol=1e-9)


@pytest.mark.parametrize("seed", [None, 5])
def test_lpp_with_complete_features_is_eigenmaps(seed: int | None) -> None:
    S = random_graph(25)
    X = np.eye(25) if seed is None else np.random.default_rng(seed).normal(size=(25, 25))
    maps = spectral.laplacian_eigenmaps(S, 4)
    linear = spectral.locality_preserving_projection(S, X, 4)
    np.testing.assert_allclose(linear.eigenvalues, maps.eigenvalues, atol=1e-9)
    np.testing.assert_allclose(linear.embedding, maps.embedding, atol=1e-7)


def test_lpp_with_repeated_features_is_that_of_the_distinct_ones() -> None:
    S = random_graph(40)
    X = np.random.default_rng(0).normal(size=(40, 4))
    once = spectral.locality_preserving_projection(S, X, 4)
    twice = spectral.locality_preserving_projection(S, np.hstack([X, X, np.ones((40, 1))]), 4)
    np.testing.assert_allclose(twice.embedding, once.embedding, atol=1e-9)
    with pytest.raises(UserError, match=r"1 to 4 components, the rank .*=5"):
        spectral.locality_preserving_projection(S, np.hstack([X, X]), 5)


def test_eigenmaps_bound_lpp_from_below() -> None:
    S = random_graph(40)
    X = np.random.default_rng(0).normal(size=(40, 10))
    linear = spectral.locality_preserving_projection(S, X, 5).eigenvalues
    assert (spectral.laplacian_eigenmaps(S, 5).eigenvalues <= linear + 1e-12).all()


# --- bad input ------------------------------------------------------------------------------------

TWO = np.array([[0.0, 1.0], [1.0, 0.0]])
THREE = scipy.linalg.block_diag(TWO, 0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: spectral.degrees(np.ones(3)), r"shape \(N, N\), found shape \(3,\)"),
        (lambda: spectral.degrees(np.ones((2, 3))), r"found shape \(2, 3\)"),
        (lambda: spectral.degrees(-TWO), "at least 0, found -1"),
        (lambda: spectral.degrees(TWO * np.nan), "finite similarities"),
        (lambda: spectral.degrees(np.triu(TWO)), r"symmetric graph, found .* up to 1"),
        (lambda: spectral.transition_matrix(THREE), "1 isolated: 2"),
        (lambda: spectral.stationary_distribution(THREE), "1 isolated: 2"),
        (lambda: spectral.laplacian_eigenmaps(THREE, 1), "1 isolated: 2"),
        (lambda: spectral.laplacian_eigenmaps(TWO, 2), "1 to 1 components .* n_components=2"),
        (lambda: spectral.laplacian_eigenmaps(TWO, 0), "n_components=0"),
        (lambda: spectral.laplacian_eigenmaps(TWO, 1, tol=0.0), "positive tol"),
        (lambda: spectral.transition_probability(THREE, [2], [0]), "volume 0"),
        (lambda: spectral.transition_probability(TWO, [2], [0]), "indices from 0 to 1"),
        (lambda: spectral.volume(TWO, [True]), "mask of shape"),
        (lambda: spectral.volume(TWO, [0.5]), "indices from 0 to 1"),
        (lambda: spectral.indicator_matrix(TWO, [0]), r"labels of shape \(2,\)"),
        (lambda: spectral.indicator_matrix(THREE, [0, 0, 1]), "volume 0"),
        (lambda: spectral.trace_objective(TWO, np.ones((3, 1))), r"Z of shape \(2, K\)"),
        (lambda: spectral.views_graph([0, 0, 1]), "found one of image 1"),
        (lambda: spectral.views_graph([[0, 0]]), r"shape \(N,\)"),
        (lambda: spectral.views_graph([0, 0], weights="heat"), "found 'heat'"),
        (lambda: spectral.pairs_graph([0], [0, 1], n_nodes=2), "pairs of one length"),
        (lambda: spectral.pairs_graph([0], [5], n_nodes=2), "indices from 0 to 1"),
        (lambda: spectral.neighbour_graph(np.ones((3, 1)), 3), "1 to 2 neighbours, found 3"),
        (lambda: spectral.neighbour_graph(np.ones(3), 1), r"points of shape \(N, F\)"),
        (lambda: spectral.neighbour_graph(np.ones((3, 1)), 1, weights="x"), "found 'x'"),
        (lambda: spectral.neighbour_graph(TWO, 1, bandwidth=-1.0), "positive bandwidth"),
        (
            lambda: spectral.locality_preserving_projection(TWO, np.ones((3, 1)), 1),
            r"features of shape \(2, F\)",
        ),
        (
            lambda: spectral.locality_preserving_projection(TWO, np.ones((2, 1)), 1),
            "the rank of the features",
        ),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()
