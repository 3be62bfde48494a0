"""The eigensolver under ``spectral``: smallest positive solutions of Lz = λDz on a sparse graph.

Every connected part is solved by itself, small ones densely and many at a time, large ones by
Lanczos on a Chebyshev polynomial. With y = D^½ z the problem is M y = (1 − λ) y, M = D^-½ S D^-½.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

Array = NDArray[Any]
Operator = Callable[[Array], Array]

DENSE_NODES = 1200  # connected parts up to this size are solved densely
BLOCK_ENTRIES = 4_000_000  # entries of one stack of small dense parts (32 MB)


class NotConvergedError(RuntimeError):
    """The eigensolver did not reach the residual that was asked for."""


def positive_eigenpairs(
    S: sp.csr_array, d: Array, part: Array, n_wanted: int, tol: float
) -> tuple[Array, Array]:
    """The ``n_wanted`` smallest positive eigenvalues of Lz = λDz over all parts, and their z.

    ``S`` (N, N), degrees ``d`` (N,), number of the connected part of each node ``part`` (N,);
    returns (n_wanted,) ascending and (N, n_wanted).
    """
    sizes = np.bincount(part)
    order = np.lexsort((part, sizes[part]))  # parts contiguous, small ones first
    S, d = S[order][:, order], d[order]
    root = np.sqrt(d)
    M = sp.csr_array(sp.diags_array(1 / root) @ S @ sp.diags_array(1 / root))
    solver_tol = max(tol * float(root.min() / root.max()), 1e-15)
    found: list[tuple[int, Array, Array]] = []  # first row, eigenvalues, vectors of one part
    start = 0
    for size, count in zip(*np.unique(sizes, return_counts=True), strict=True):
        keep = min(n_wanted, size - 1)
        stack = max(1, BLOCK_ENTRIES // size**2)
        dense = size <= DENSE_NODES or keep > size // 5
        for done in range(0, count if keep else 0, stack if dense else 1):
            a = start + done * size
            if dense:
                n = min(stack, count - done)
                w, Y = np.linalg.eigh(_dense_blocks(M[a : a + n * size], a, size))
                found += [
                    (a + i * size, 1 - w[i, ::-1][1 : keep + 1], Y[i][:, ::-1][:, 1 : keep + 1])
                    for i in range(n)
                ]
            else:
                rows = slice(a, a + size)
                # Thousands of short products: threads that wait for one another cost up to 4 times
                # the time on a busy machine.
                with threadpool_limits(1, "blas"):
                    pairs = _iterative_eigenpairs(M[rows, rows], root[rows], keep, solver_tol)
                found.append((a, *pairs))
        start += count * size
    values = np.concatenate([w for _, w, _ in found])
    source = [(i, k) for i, (_, w, _) in enumerate(found) for k in range(len(w))]
    chosen = np.argsort(values, kind="stable")[:n_wanted]
    Z = np.zeros((len(d), n_wanted))
    for column, (i, k) in enumerate(source[c] for c in chosen):
        a, _, Y = found[i]
        Z[a : a + len(Y), column] = Y[:, k] / root[a : a + len(Y)]
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    return values[chosen], Z[back]


def _dense_blocks(rows: sp.csr_array, first: int, size: int) -> Array:
    """Equal diagonal blocks, stacked (n, size, size), of the rows from ``first`` on."""
    entries = rows.tocoo()
    blocks = np.zeros((rows.shape[0] // size, size, size))
    r, c = entries.coords
    blocks[r // size, r % size, (c - first) % size] = entries.data
    return blocks


def _iterative_eigenpairs(
    M: sp.csr_array, root: Array, n_wanted: int, tol: float
) -> tuple[Array, Array]:
    """1 − μ and y of the largest eigenvalues μ of M = D^-½ S D^-½, connected, but for μ = 1.

    Lanczos (ARPACK) on a Chebyshev polynomial of M: fewer and better separated basis vectors for
    cheap products. One start vector may miss a copy of a multiple eigenvalue, so what is left over
    is probed and solved for again until nothing larger is there.
    """
    order = reverse_cuthill_mckee(sp.csr_matrix(M), symmetric_mode=True)  # products stay in cache
    M = M[order][:, order]
    n = M.shape[0]
    rng = np.random.default_rng(0)
    known = (root[order] / np.linalg.norm(root))[:, None]  # the eigenvector of μ = 1
    ritz, remainder = _ritz_values(lambda x: M @ x, rng.normal(size=n), 3 * (n_wanted + 1))
    if len(ritz) > n_wanted + 1:
        # The k-th largest Ritz value never exceeds the k-th largest eigenvalue: a safe cut.
        low, cut = max(-1.0, ritz[0] - remainder), min(ritz[-(n_wanted + 1)], 1 - 1e-6)
    else:  # few distinct eigenvalues (a complete graph): cut below all of them
        low, cut = -3.0, -1.5
    filtered, inverse = _chebyshev_filter(M, low, cut)

    def rest(x: Array) -> Array:
        y = filtered(x)
        return y - known @ (known.T @ y)

    n_new = n_wanted
    for _ in range(50):
        try:
            _, new = eigsh(
                LinearOperator((n, n), matvec=rest, dtype=np.float64),
                k=n_new,
                which="LA",
                ncv=min(n - 1, max(2 * n_new + 1, 40)),
                v0=rng.normal(size=n),
                tol=tol,
                maxiter=3000,
            )
        except ArpackNoConvergence as error:
            raise NotConvergedError(
                f"{len(error.eigenvalues)} of {n_new} eigenvectors reached the residual {tol:.1e}; "
                "give a larger tol"
            ) from error
        basis = np.linalg.qr(np.hstack([known, new]))[0][:, 1:]
        mu, V = np.linalg.eigh(basis.T @ (M @ basis))
        mu, vectors = mu[::-1][:n_wanted], basis @ V[:, ::-1][:, :n_wanted]
        known = np.hstack([known[:, :1], vectors])
        left_over, _ = _ritz_values(rest, rng.normal(size=n), n_wanted + 20)
        if inverse(left_over[-1]) <= mu[-1] + 10 * tol:
            back = np.empty_like(order)
            back[order] = np.arange(n)
            return 1 - mu, vectors[back]
        n_new = min(n_wanted, 10)
    raise NotConvergedError("eigenvalues of very high multiplicity were still being found")


def _ritz_values(operator: Operator, start: Array, n_steps: int) -> tuple[Array, float]:
    """Ascending Ritz values of ``n_steps`` Lanczos steps and the norm of the last remainder."""
    V = np.zeros((min(n_steps, len(start)), len(start)))
    diagonal: list[float] = []
    beside: list[float] = []
    v = operator(start)  # one product: brings the start into the operator's range
    v = v / np.linalg.norm(v)
    for j in range(len(V)):
        V[j] = v
        u = operator(v)
        diagonal.append(float(u @ v))
        for _ in range(2):
            u = u - V[: j + 1].T @ (V[: j + 1] @ u)
        beside.append(float(np.linalg.norm(u)))
        if beside[-1] < 1e-12:
            break
        v = u / beside[-1]
    return scipy.linalg.eigvalsh_tridiagonal(diagonal, beside[:-1]), beside[-1]


def _chebyshev_filter(
    M: sp.csr_array, low: float, cut: float
) -> tuple[Operator, Callable[[float], float]]:
    """x ↦ T_m(M mapped) x: within ±1 on [low, cut], growing beyond cut; and its inverse there."""
    middle, half = (cut + low) / 2, (cut - low) / 2
    degree = max(2, int(np.ceil(4 / np.arccosh((1 - middle) / half))))  # T_m(1) ≈ e⁴/2
    B = sp.csr_array((M - middle * sp.eye_array(M.shape[0])) * (1 / half))
    twice = 2 * B

    def filtered(x: Array) -> Array:
        x = x.ravel()
        before, now = x, B @ x
        for _ in range(degree - 1):
            after = twice @ now
            after -= before
            before, now = now, after
        return now

    def inverse(value: float) -> float:
        return float(middle + half * np.cosh(np.arccosh(max(value, 1.0)) / degree))

    return filtered, inverse
