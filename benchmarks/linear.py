"""Linear and nearest-neighbour evaluation of many features: time and memory, beside scikit-learn.

    python benchmarks/linear.py [--train 100000] [--test 10000] [--out FILE]

Every task runs in a process of its own on the same unit-length float32 features, one after the
other, with one thread. ``exact`` is `linear_exact`, beside LogisticRegression(solver="lbfgs") with
its default tolerance; ``knn`` is `knn_accuracy` with 200 neighbours, beside
KNeighborsClassifier(algorithm="brute") with the same weights. Gradients are of the mean objective,
recomputed in float64 from the fitted weights. Peak memory is that of the whole process.
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
import torch

from eigenshot.evaluation.knn import knn_accuracy
from eigenshot.evaluation.linear import linear_exact
from eigenshot.files import write_json
from eigenshot.hardware import environment

NEIGHBOURS, TEMPERATURE, C = 200, 0.1, 1.0
# Task to the task that it is compared with.
TASKS = {
    "exact, tol 1e-4": "exact, scikit-learn",
    "exact, tol 1e-6": "exact, scikit-learn",
    "exact, scikit-learn": None,
    "knn": "knn, scikit-learn",
    "knn, scikit-learn": None,
}
MAKE = "make features"
SIZES = ("train", "test", "features", "classes")
POOLS = ("OMP", "OPENBLAS", "MKL")


def make_features(folder: Path, options: argparse.Namespace) -> None:
    """Rectified clusters whose spectrum falls off as that of pooled features does."""
    generator = np.random.default_rng(0)
    spread = np.arange(1, options.features + 1) ** -0.5
    centres = 0.4 * spread * generator.normal(size=(options.classes, options.features))
    for name, count in (("train", options.train), ("test", options.test)):
        labels = np.arange(count) % options.classes
        features = np.empty((count, options.features), dtype=np.float32)
        for start in range(0, count, 10_000):
            rows = labels[start : start + 10_000]
            noise = generator.normal(size=(len(rows), options.features))
            block = np.maximum(centres[rows] + spread * (noise + 0.3), 0)
            features[start : start + 10_000] = block / np.linalg.norm(block, axis=1, keepdims=True)
        np.save(folder / f"{name}_features.npy", features)
        np.save(folder / f"{name}_labels.npy", labels)


def objective(
    features: np.ndarray, labels: np.ndarray, coef: np.ndarray, intercept: np.ndarray
) -> dict[str, float]:
    """The mean objective and the largest entry of its gradient, in float64."""
    coef, intercept = coef.astype(np.float64), intercept.astype(np.float64)
    value = np.sum(coef**2) / (2 * C * len(features))
    slope, slope_intercept = coef / (C * len(features)), np.zeros_like(intercept)
    for start in range(0, len(features), 5000):
        rows = features[start : start + 5000].astype(np.float64)
        truth = (np.arange(len(rows)), labels[start : start + 5000])
        scores = rows @ coef.T + intercept
        scores -= scores.max(axis=1, keepdims=True)
        totals = np.exp(scores).sum(axis=1)
        value += np.sum(np.log(totals) - scores[truth]) / len(features)
        errors = np.exp(scores) / totals[:, None]
        errors[truth] -= 1
        slope += errors.T @ rows / len(features)
        slope_intercept += errors.sum(axis=0) / len(features)
    largest = max(np.abs(slope).max(), np.abs(slope_intercept).max())
    return {"objective": float(value), "gradient": float(largest)}


def run_task(task: str, tables: list[np.ndarray]) -> tuple[float, tuple[np.ndarray, ...]]:
    """Accuracy in percent, and coefficients and intercept where there are any."""
    train, labels, test, truth = tables
    if task == "knn":
        options = {"neighbours": NEIGHBOURS, "temperature": TEMPERATURE}
        return knn_accuracy(*tables, **options), ()  # type: ignore[arg-type]
    if task == "knn, scikit-learn":
        from sklearn.neighbors import KNeighborsClassifier

        neighbours = KNeighborsClassifier(
            NEIGHBOURS,
            algorithm="brute",
            weights=lambda distance: np.exp((1 - distance**2 / 2) / TEMPERATURE),
        ).fit(train, labels)
        return 100 * float(neighbours.score(test, truth)), ()
    if task == "exact, scikit-learn":
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(C=C, solver="lbfgs", max_iter=1000).fit(train, labels)
        return 100 * float(model.score(test, truth)), (model.coef_, model.intercept_)
    result = linear_exact(*tables, C=C, normalize=False, tol=float(task.split()[-1]))
    return result.accuracy, (result.coef, result.intercept)


def measure_here(task: str, folder: Path) -> None:
    """The child process: run one task, print one line of JSON."""
    names = ("train_features", "train_labels", "test_features", "test_labels")
    tables = [np.load(folder / f"{name}.npy") for name in names]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    accuracy, fitted = run_task(task, tables)
    found: dict[str, Any] = {"seconds": round(time.perf_counter() - began, 2)}
    found["peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    found["before_mib"] = round(before / 1024)
    found["accuracy"] = round(accuracy, 3)
    if fitted:
        found |= objective(tables[0], tables[1], *fitted)
    print(json.dumps(found))


def in_a_child(task: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What a task prints, run in a process of its own."""
    sizes = [f"--{name}={getattr(options, name)}" for name in SIZES]
    child = subprocess.run(
        [sys.executable, __file__, "--task", task, "--folder", str(folder), *sizes],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **{f"{name}_NUM_THREADS": str(options.threads) for name in POOLS}},
    )
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        return {"failed": f"code {child.returncode}: {last[:200]}"}
    found: dict[str, Any] = json.loads(child.stdout.strip().splitlines()[-1])
    return found


def print_table(rows: dict[str, dict[str, Any]]) -> None:
    print(f"{'task':22}{'seconds':>9}{'ratio':>7}{'peak MiB':>10}{'accuracy':>10}{'gradient':>10}")
    for task, row in rows.items():
        if "failed" in row:
            print(f"{task:22}{row['failed']}")
            continue
        ratio = f"{row['times_faster']:.1f}" if "times_faster" in row else ""
        gradient = f"{row['gradient']:.1e}" if "gradient" in row else ""
        print(
            f"{task:22}{row['seconds']:9.1f}{ratio:>7}{row['peak_mib']:10}"
            f"{row['accuracy']:10.2f}{gradient:>10}"
        )


def main() -> None:
    """Measure every task on the same features and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=100_000)
    parser.add_argument("--test", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=640)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task == MAKE:
        make_features(options.folder, options)
        print("{}")
        return
    if options.task:
        measure_here(options.task, options.folder)
        return
    torch.set_num_threads(options.threads)
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        # In a child too: a process inherits the peak of the one that started it.
        in_a_child(MAKE, Path(folder), options)
        for task in TASKS:
            rows[task] = in_a_child(task, Path(folder), options)
    for task, peer in TASKS.items():
        if peer and "seconds" in rows[task] and "seconds" in rows[peer]:
            rows[task]["times_faster"] = round(rows[peer]["seconds"] / rows[task]["seconds"], 2)
    print_table(rows)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        sizes = {name: getattr(options, name) for name in SIZES}
        record = {"sizes": sizes, "rows": rows, **environment(torch.device("cpu"))}
        record["versions"] |= {name: version(name) for name in ("scipy", "scikit-learn")}
        write_json(options.out, record)


if __name__ == "__main__":
    main()
