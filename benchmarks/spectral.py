"""Laplacian eigenmaps of a large sparse graph: time, memory and residual of ours and of peers.

    python benchmarks/spectral.py [--nodes 100000] [--neighbours 20] [--components 50]

Each solver runs in a process of its own on the same graph, one after the other, with one BLAS
thread (two compete badly on a machine that does other work as well). Peers:
``scipy`` is eigsh on the normalised similarity with its defaults; ``scikit-learn`` is
spectral_embedding with eigen_solver "lobpcg" (and "arpack", which factorises the Laplacian).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.datasets import make_swiss_roll
from sklearn.manifold import spectral_embedding

from eigenshot.files import write_json
from eigenshot.hardware import environment
from eigenshot.spectral import laplacian_eigenmaps, neighbour_graph

SOLVERS = ("eigenshot", "scipy", "scikit-learn lobpcg", "scikit-learn arpack")
POOLS = ("OMP", "OPENBLAS", "MKL")
KINDS = ("swiss roll", "clusters in 10 dimensions")


def make_points(kind: str, nodes: int) -> np.ndarray:
    """(nodes, F): a surface (clustered small eigenvalues) or overlapping clusters (a wide gap)."""
    if kind == "swiss roll":
        return np.asarray(make_swiss_roll(nodes, random_state=0)[0])
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(200, 10))
    return np.asarray(centres[rng.integers(200, size=nodes)] + rng.normal(size=(nodes, 10)))


def solve(solver: str, S: sp.csr_array, components: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (components,) and vectors (nodes, components), the constant one left out."""
    if solver == "eigenshot":
        maps = laplacian_eigenmaps(S, components)
        return maps.eigenvalues, maps.embedding
    d = np.asarray(S.sum(axis=1)).ravel()
    if solver == "scipy":
        half = sp.diags_array(1 / np.sqrt(d))
        w, Y = sp.linalg.eigsh(sp.csr_array(half @ S @ half), components + 1, which="LA")
        return 1 - w[::-1][1:], Y[:, ::-1][:, 1:] / np.sqrt(d)[:, None]
    Z = spectral_embedding(
        sp.csr_matrix(S),
        n_components=components,
        eigen_solver=solver.split()[1],
        random_state=0,
        drop_first=True,
    )
    values = np.sum(Z * (d[:, None] * Z - S @ Z), axis=0) / np.sum(d[:, None] * Z**2, axis=0)
    return values, Z


def residual(S: sp.csr_array, values: np.ndarray, Z: np.ndarray) -> float:
    """max_k ‖Lz − λDz‖ / ‖Dz‖."""
    DZ = np.asarray(S.sum(axis=1)).reshape(-1, 1) * Z
    R = DZ - S @ Z - values * DZ
    return float(np.max(np.linalg.norm(R, axis=0) / np.linalg.norm(DZ, axis=0)))


def measure_here(solver: str, graph: str, components: int, memory_gib: float) -> None:
    """The child process: solve, print one line of JSON."""
    limit = int(memory_gib * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    S = sp.csr_array(sp.load_npz(graph), dtype=np.float64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    try:
        values, Z = solve(solver, S, components)
    except MemoryError:
        print(json.dumps({"status": f"over {memory_gib:g} GiB"}))
        return
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps(
            {
                "status": "done",
                "seconds": round(seconds, 2),
                "peak_mib": round(peak / 1024),
                "before_mib": round(before / 1024),
                "residual": residual(S, values, Z),
                "eigenvalue_sum": float(np.sum(values)),
            }
        )
    )


def measure(solver: str, graph: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--solver", solver, "--graph", graph]
    command += ["--components", str(options.components), "--memory-gib", str(options.memory_gib)]
    try:
        child = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=options.time_limit,
            check=False,
            env={**os.environ, **{f"{name}_NUM_THREADS": str(options.threads) for name in POOLS}},
        )
    except subprocess.TimeoutExpired:
        return {"status": f"over {options.time_limit:g} s"}
    lines = child.stdout.strip().splitlines()
    if child.returncode or not lines:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        return {"status": f"failed with code {child.returncode}: {last[:120]}"}
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def print_table(rows: dict[str, dict[str, Any]]) -> None:
    ours = rows["eigenshot"]
    print(f"{'solver':22}{'seconds':>9}{'ratio':>7}{'peak MiB':>10}{'residual':>11}{'Σλ':>12}")
    for solver, row in rows.items():
        if row["status"] != "done":
            print(f"{solver:22}{row['status']}")
            continue
        ratio = row["seconds"] / ours["seconds"] if "seconds" in ours else float("nan")
        print(
            f"{solver:22}{row['seconds']:9.1f}{ratio:7.2f}{row['peak_mib']:10d}"
            f"{row['residual']:11.1e}{row['eigenvalue_sum']:12.6f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--neighbours", type=int, default=20)
    parser.add_argument("--components", type=int, default=50)
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds a solver")
    parser.add_argument("--memory-gib", type=float, default=8.0, help="address space a solver")
    parser.add_argument("--threads", type=int, default=1, help="BLAS threads of every solver")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/spectral.json"))
    parser.add_argument("--solver", help=argparse.SUPPRESS)
    parser.add_argument("--graph", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.solver:
        measure_here(options.solver, options.graph, options.components, options.memory_gib)
        return

    start = time.perf_counter()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            S = neighbour_graph(make_points(kind, options.nodes), options.neighbours)
            graph = str(Path(folder, "graph.npz"))
            sp.save_npz(graph, sp.csr_matrix(S))
            print(
                f"\n{kind}: {options.nodes} nodes, {S.nnz} entries, {options.components} components"
            )
            results[kind] = {solver: measure(solver, graph, options) for solver in SOLVERS}
            print_table(results[kind])
    report = {
        "command": "python benchmarks/spectral.py",
        "config": {
            name: getattr(options, name)
            for name in (
                "nodes",
                "neighbours",
                "components",
                "threads",
                "time_limit",
                "memory_gib",
            )
        },
        "libraries": {name: version(name) for name in ("scipy", "scikit-learn")},
        "cpu_count": os.cpu_count(),
        "load_average_at_end": [round(x, 2) for x in os.getloadavg()],
        "duration_seconds": round(time.perf_counter() - start, 1),
        "results": results,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, {**report, **environment(torch.device("cpu"))})
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
