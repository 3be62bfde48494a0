"""The theory, exact: similarity graph, random walk, partition, generalised eigenvectors.

A graph is a symmetric, non-negative, finite N×N matrix S, SciPy sparse or a dense array: s_ij is
the similarity of nodes i and j. Equation numbers are the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import connected_components

from eigenshot.eigensolver import NotConvergedError, positive_eigenpairs
from eigenshot.errors import UserError

Array = NDArray[Any]

# --- graphs -----------------------------------------------------------------------------------


def _as_graph(graph: Any) -> sp.csr_array:
    """``graph`` as a float64 CSR array (N, N), after checking that it is one."""
    if sp.issparse(graph):
        S = sp.csr_array(graph, dtype=np.float64)
    else:
        dense = np.asarray(graph, dtype=np.float64)
        if dense.ndim != 2:
            raise UserError(f"expected a graph of shape (N, N), found shape {dense.shape}")
        S = sp.csr_array(dense)
    if S.shape[0] != S.shape[1] or S.shape[0] == 0:
        raise UserError(f"expected a graph of shape (N, N) with N > 0, found shape {S.shape}")
    if not np.isfinite(S.data).all():
        raise UserError("expected finite similarities, found NaN or infinity in the graph")
    if S.nnz and S.data.min() < 0:
        raise UserError(f"expected similarities of at least 0, found {S.data.min():g}")
    S.sum_duplicates()
    S.eliminate_zeros()
    asymmetry = abs(S - S.T).max() if S.nnz else 0.0
    if asymmetry > 1e-10 * (S.data.max() if S.nnz else 1.0):
        raise UserError(
            f"expected a symmetric graph, found |s_ij - s_ji| up to {asymmetry:g}; "
            "symmetrise it, for instance with (S + S.T) / 2"
        )
    return S


def _positive_degrees(S: sp.csr_array) -> Array:
    d = np.asarray(S.sum(axis=1)).ravel()
    isolated = np.flatnonzero(d == 0)
    if isolated.size:
        names = ", ".join(map(str, isolated[:5])) + (", …" if isolated.size > 5 else "")
        raise UserError(
            f"expected every node to have a neighbour, found {isolated.size} isolated: {names}; "
            "remove them or join them to the graph"
        )
    return d


def _as_subset(subset: ArrayLike, n_nodes: int) -> Array:
    """Node indices or a boolean mask, as a mask (N,)."""
    chosen = np.asarray(subset)
    if chosen.dtype == bool:
        if chosen.shape != (n_nodes,):
            raise UserError(f"expected a mask of shape ({n_nodes},), found {chosen.shape}")
        return chosen
    if chosen.size and (
        chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= n_nodes
    ):
        raise UserError(f"expected node indices from 0 to {n_nodes - 1}, found {chosen!r}")
    mask = np.zeros(n_nodes, dtype=bool)
    mask[chosen.astype(np.intp)] = True
    return mask


def _as_labels(labels: ArrayLike, n_nodes: int) -> tuple[Array, int]:
    """Class number of each node (N,), in sorted order of the labels, and the number of classes."""
    given = np.asarray(labels)
    if given.shape != (n_nodes,):
        raise UserError(f"expected labels of shape ({n_nodes},), found shape {given.shape}")
    classes, number = np.unique(given, return_inverse=True)
    return number, len(classes)


def views_graph(
    image_of_view: ArrayLike, *, weights: Literal["binary", "uniform"] = "binary"
) -> sp.csr_array:
    """Graph of augmented views: those of one image are joined, without self-loops.

    ``image_of_view`` (N,) holds the image each view was made from. ``"binary"`` gives every pair
    the weight 1; ``"uniform"`` gives every node the degree 1, however many views its image has.

    >>> views_graph([0, 0, 1, 1]).toarray().astype(int).tolist()
    [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    """
    if weights not in ("binary", "uniform"):
        raise UserError(f"expected weights 'binary' or 'uniform', found {weights!r}")
    images = np.asarray(image_of_view)
    if images.ndim != 1 or images.size == 0:
        raise UserError(f"expected image_of_view of shape (N,), found shape {images.shape}")
    _, image, views = np.unique(images, return_inverse=True, return_counts=True)
    if views.min() < 2:
        alone = images[views[image] < 2]
        raise UserError(
            f"expected at least two views of an image, found one of image {alone[0]}"
            f" (and of {alone.size - 1} others)"
        )
    n = images.size
    weight = np.ones(n) if weights == "binary" else 1.0 / (views[image] - 1)
    member = sp.csr_array((np.ones(n), (np.arange(n), image)), shape=(n, len(views)))
    S = sp.csr_array(sp.diags_array(weight) @ (member @ member.T) - sp.diags_array(weight))
    S.eliminate_zeros()
    return S


def pairs_graph(
    first: ArrayLike, second: ArrayLike, *, weights: ArrayLike | None = None, n_nodes: int
) -> sp.csr_array:
    """Graph of positive pairs (first[m], second[m]), each with its weight or probability (1).

    Repeated pairs add up; half of a weight goes to s_ij and half to s_ji.
    """
    a, b = np.asarray(first), np.asarray(second)
    w = np.ones(a.shape) if weights is None else np.asarray(weights, dtype=np.float64)
    if a.ndim != 1 or not a.shape == b.shape == w.shape:
        raise UserError(f"expected pairs of one length, found {a.shape}, {b.shape} and {w.shape}")
    _as_subset(a, n_nodes), _as_subset(b, n_nodes)  # only to check the indices
    half = sp.coo_array((w / 2, (a, b)), shape=(n_nodes, n_nodes)).tocsr()
    return _as_graph(half + half.T)


def neighbour_graph(
    points: ArrayLike,
    n_neighbours: int,
    *,
    weights: Literal["binary", "heat"] = "binary",
    bandwidth: float | None = None,
) -> sp.csr_array:
    """Symmetric nearest-neighbour graph of ``points`` (N, F): i ~ j if either is near the other.

    ``"binary"`` weighs an edge 1; ``"heat"`` weighs it exp(−‖x_i − x_j‖² / bandwidth²), with the
    median edge length as the default bandwidth.
    """
    if weights not in ("binary", "heat"):
        raise UserError(f"expected weights 'binary' or 'heat', found {weights!r}")
    X = np.asarray(points, dtype=np.float64)
    if X.ndim != 2 or not np.isfinite(X).all():
        raise UserError(f"expected finite points of shape (N, F), found shape {X.shape}")
    if not 1 <= n_neighbours < len(X):
        raise UserError(f"expected 1 to {len(X) - 1} neighbours, found {n_neighbours}")
    if bandwidth is not None and not bandwidth > 0:
        raise UserError(f"expected a positive bandwidth, found {bandwidth}")
    mode = "connectivity" if weights == "binary" else "distance"
    # Here, for it takes longer to load than all the rest, and few who train need it.
    from sklearn.neighbors import kneighbors_graph

    near = sp.csr_array(kneighbors_graph(X, n_neighbours, mode=mode))
    if weights == "heat":
        width = bandwidth or float(np.median(near.data)) or 1.0
        near.data = np.exp(-((near.data / width) ** 2))
    return sp.csr_array(near.maximum(near.T))


# --- random walk and partition (Section 2.1, 2.2) -----------------------------------------------


def degrees(graph: Any) -> Array:
    """d_i = Σ_j s_ij, shape (N,)."""
    return np.asarray(_as_graph(graph).sum(axis=1)).ravel()


def volume(graph: Any, subset: ArrayLike | None = None) -> float:
    """Σ d_i over all nodes, or over ``subset`` (indices or a boolean mask)."""
    d = degrees(graph)
    return float(d.sum() if subset is None else d[_as_subset(subset, len(d))].sum())


def laplacian(graph: Any) -> sp.csr_array:
    """L = D − S."""
    S = _as_graph(graph)
    return sp.csr_array(sp.diags_array(np.asarray(S.sum(axis=1)).ravel()) - S)


def transition_matrix(graph: Any) -> sp.csr_array:
    """P = D⁻¹S: p_ij is the probability of the step i → j; rows sum to 1.

    >>> transition_matrix([[0, 1, 1], [1, 0, 0], [1, 0, 0]]).toarray().tolist()
    [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    S = _as_graph(graph)
    return sp.csr_array(sp.diags_array(1.0 / _positive_degrees(S)) @ S)


def random_walk_laplacian(graph: Any) -> sp.csr_array:
    """I − P."""
    P = transition_matrix(graph)
    return sp.csr_array(sp.eye_array(P.shape[0]) - P)


def stationary_distribution(graph: Any) -> Array:
    """π_i = d_i / Vol(X), shape (N,): πP = π."""
    d = _positive_degrees(_as_graph(graph))
    return d / d.sum()


def transition_probability(graph: Any, source: ArrayLike, target: ArrayLike) -> float:
    """P(X₁ ∈ target | X₀ ∈ source) of the stationary walk, Eq. 1."""
    S = _as_graph(graph)
    n = S.shape[0]
    a, b = _as_subset(source, n), _as_subset(target, n)
    vol = float(S[a].sum())
    if vol == 0:
        raise UserError("expected a source set with edges, found one of volume 0")
    return float(S[a][:, b].sum()) / vol  # Eq. 1, last line


def interclass_transition(graph: Any, labels: ArrayLike) -> Array:
    """P(C̄_k | C_k) of every class, in sorted order of the labels; shape (classes,).

    >>> interclass_transition([[0, 1, 0], [1, 0, 1], [0, 1, 0]], ["a", "a", "b"]).round(3).tolist()
    [0.333, 1.0]
    """
    S = _as_graph(graph)
    Z = indicator_matrix(S, labels)
    leaving = np.asarray((Z * (laplacian(S) @ Z)).sum(axis=0)).ravel()  # Eq. 3
    return np.maximum(leaving, 0.0)  # a probability, but for rounding


def indicator_matrix(graph: Any, labels: ArrayLike) -> sp.csr_array:
    """Z of Eq. 2, (N, classes): 1/√Vol(C_k) where node i is of class k; ZᵀDZ = I."""
    S = _as_graph(graph)
    n = S.shape[0]
    number, n_classes = _as_labels(labels, n)
    vol = np.bincount(number, weights=np.asarray(S.sum(axis=1)).ravel(), minlength=n_classes)
    if not vol.all():
        raise UserError("expected classes with edges, found one of volume 0")
    return sp.csr_array((1 / np.sqrt(vol[number]), (np.arange(n), number)), shape=(n, n_classes))


def trace_objective(graph: Any, Z: Any) -> float:
    """Tr(ZᵀLZ) = ½ Σ s_ij ‖z_i − z_j‖² (Eq. 7, with its ½), for Z (N, K)."""
    S = _as_graph(graph)
    rows = Z.toarray() if sp.issparse(Z) else np.asarray(Z, dtype=np.float64)
    if rows.ndim != 2 or len(rows) != S.shape[0]:
        raise UserError(f"expected Z of shape ({S.shape[0]}, K), found shape {rows.shape}")
    d = np.asarray(S.sum(axis=1)).ravel()
    return float(np.sum(d[:, None] * rows**2) - np.sum(rows * (S @ rows)))


# --- generalised eigenvectors (Eq. 5) -----------------------------------------------------------


@dataclass(frozen=True)
class Eigenmaps:
    """Solutions of Lz = λDz: ``eigenvalues`` (K,) ascending, ``embedding`` (N, K), ZᵀDZ = I."""

    eigenvalues: Array
    embedding: Array


def laplacian_eigenmaps(
    graph: Any, n_components: int, *, drop_first: bool = True, tol: float = 1e-8
) -> Eigenmaps:
    """The relaxed problem, Eq. 5: eigenvectors of Lz = λDz with the smallest eigenvalues.

    Column 1 is the constant vector; ``drop_first`` leaves it out, so that the columns are
    eigenvectors 2 … n_components + 1. A graph of several connected parts has one eigenvalue 0 a
    part: the constant still comes first, and the rest of the null space (contrasts between the
    parts, each constant on every part, D-orthogonal to the constant) follows, kept exactly.

    Raises NotConvergedError unless every ‖Lz − λDz‖ ≤ tol ‖Dz‖. Equal calls give equal results;
    within an eigenvalue of multiplicity m the m columns are one basis of its space. In every column
    the largest entry is positive.

    >>> ring = np.roll(np.eye(6), 1, axis=1) + np.roll(np.eye(6), -1, axis=1)
    >>> laplacian_eigenmaps(ring, 3).eigenvalues.round(6).tolist()
    [0.5, 0.5, 1.5]
    """
    S = _as_graph(graph)
    d = _positive_degrees(S)
    first = 1 if drop_first else 0
    if not 1 <= n_components <= len(d) - first:
        raise UserError(
            f"expected 1 to {len(d) - first} components of a graph of {len(d)} nodes, "
            f"found n_components={n_components}"
        )
    if not tol > 0:
        raise UserError(f"expected a positive tol, found {tol}")
    wanted = n_components + first
    n_parts, part = connected_components(S, directed=False)
    values = np.zeros(wanted)
    Z = np.zeros((len(d), wanted))
    n_null = min(n_parts, wanted)
    Z[:, :n_null] = _null_space(part, np.bincount(part, weights=d), n_null)
    if wanted > n_null:
        values[n_null:], Z[:, n_null:] = positive_eigenpairs(S, d, part, wanted - n_null, tol)
    values, Z = values[first:], Z[:, first:]
    residual = float(np.max(_residuals(S, d, values, Z)))
    if not residual <= tol:
        raise NotConvergedError(f"the residual is {residual:.1e}, above tol={tol:.1e}")
    return Eigenmaps(values, Z * _signs(Z))


def _residuals(S: sp.csr_array, d: Array, values: Array, Z: Array) -> Array:
    """‖Lz − λDz‖ / ‖Dz‖ of every column."""
    DZ = d[:, None] * Z
    return np.linalg.norm(DZ - S @ Z - values * DZ, axis=0) / np.linalg.norm(DZ, axis=0)


def _signs(Z: Array) -> Array:
    """±1 a column: the first of the entries largest in size (but for rounding) becomes positive."""
    size = np.abs(Z)
    row = np.argmax(size >= size.max(axis=0) * (1 - 1e-6), axis=0)
    return np.sign(Z[row, np.arange(Z.shape[1])])


def _null_space(part: Array, volumes: Array, n_columns: int) -> Array:
    """(N, n_columns): the constant, then contrasts of part j with all larger ones before it."""
    order = np.argsort(-volumes, kind="stable")
    v = volumes[order]
    before = np.cumsum(v) - v
    rows = np.zeros((len(v), n_columns))
    rows[:, 0] = 1 / np.sqrt(v.sum())
    for j in range(1, n_columns):
        total = before[j] + v[j]
        rows[:j, j] = np.sqrt(v[j] / (before[j] * total))
        rows[j, j] = -np.sqrt(before[j] / (v[j] * total))
    return rows[np.argsort(order)][part]


# --- the linear special case --------------------------------------------------------------------


@dataclass(frozen=True)
class Projection:
    """``eigenvalues`` (K,), ``projection`` A (F, K), ``mean`` (F,), ``embedding`` (X − mean)A."""

    eigenvalues: Array
    projection: Array
    mean: Array
    embedding: Array


def locality_preserving_projection(
    graph: Any, X: ArrayLike, n_components: int, *, centre: bool = True, rank_tol: float = 1e-10
) -> Projection:
    """Eq. 6 with a linear f: XᵀLX a = λ XᵀDX a, smallest λ first, AᵀXᵀDXA = I.

    ``X`` (N, F) holds the nodes' features. ``centre`` takes their degree-weighted mean away, which
    removes the constant solution. Directions in which X does not vary (singular values of D^½X
    below ``rank_tol`` times the largest) are left out: A has no part in them.
    """
    S = _as_graph(graph)
    d = _positive_degrees(S)
    features = np.asarray(X, dtype=np.float64)
    if features.ndim != 2 or len(features) != len(d) or not np.isfinite(features).all():
        raise UserError(
            f"expected finite features of shape ({len(d)}, F), found shape {features.shape}"
        )
    mean = d @ features / d.sum() if centre else np.zeros(features.shape[1])
    features = features - mean
    U, s, Vt = scipy.linalg.svd(np.sqrt(d)[:, None] * features, full_matrices=False)
    rank = int(np.sum(s > rank_tol * s[0])) if s.size and s[0] > 0 else 0
    if not 1 <= n_components <= rank:
        raise UserError(
            f"expected 1 to {rank} components, the rank of the features, "
            f"found n_components={n_components}"
        )
    basis = Vt[:rank].T / s[:rank]  # basisᵀ XᵀDX basis = I
    Y = U[:, :rank] / np.sqrt(d)[:, None]
    small = Y.T @ (d[:, None] * Y - S @ Y)
    values, vectors = scipy.linalg.eigh((small + small.T) / 2)
    A = basis @ vectors[:, :n_components]
    embedding = features @ A
    signs = _signs(embedding)
    return Projection(values[:n_components], A * signs, mean, embedding * signs)
