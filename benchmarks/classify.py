"""How far the answers of `classify` can be believed, on characters that no encoder was trained on.

    eigenshot demo --out demo
    python benchmarks/classify.py demo/run [--out results/benchmarks/classify.json]

For many small tasks: accuracy on fresh drawings beside the estimate that the support alone gives,
calibration before and after, false alarms of "none of these" among known characters, how many
unknown ones it notices, and whether one mislabelled example is found. Its peer is the same
logistic regression without calibration.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eigenshot.data.glyphs import load_glyphs
from eigenshot.encoder import load_encoder
from eigenshot.evaluation.calibration import expected_calibration_error
from eigenshot.evaluation.classifier import FewShotClassifier
from eigenshot.files import write_json
from eigenshot.hardware import environment

TASKS, UNKNOWN, QUERIES = 60, 100, 8
SUPPORTS: list[tuple[int, ...]] = [(1,) * 5, (2,) * 5, (5,) * 5, (10,) * 5, (5,) * 20, (1, 4, 12)]


def measure(
    features: np.ndarray, labels: np.ndarray, shots: tuple[int, ...], classifier: FewShotClassifier
) -> dict[str, Any]:
    """Means over tasks with ``shots[k]`` examples of the k-th class."""
    generator = np.random.default_rng(0)
    raw, calibrated, answers, alarms, noticed, estimates, found = [], [], [], [], [], [], []
    for _ in range(TASKS):
        classes = generator.choice(labels.max() + 1, len(shots), replace=False)
        drawn = [generator.permutation(np.flatnonzero(labels == label)) for label in classes]
        support = np.concatenate([rows[:n] for rows, n in zip(drawn, shots, strict=True)])
        query = np.concatenate([rows[-QUERIES:] for rows in drawn])
        others = generator.choice(np.flatnonzero(~np.isin(labels, classes)), UNKNOWN, replace=False)
        fitted = classifier.fit_features(features[support], labels[support])
        judged = fitted.judge_features(features[query])
        raw.append(fitted.logistic_.predict_proba(features[query]))
        calibrated.append(judged.probabilities)
        answers.append(np.searchsorted(fitted.classes_, labels[query]))
        alarms.append(judged.unlike.mean())
        noticed.append(fitted.judge_features(features[others]).unlike.mean())
        estimates.append(fitted.assessment_.accuracy)
        if min(shots) > 1:
            wrong = labels[support].copy()
            row = int(generator.integers(len(wrong)))
            wrong[row] = generator.choice(classes[classes != wrong[row]])
            suspects = classifier.fit_features(features[support], wrong).assessment_.suspects
            found.append(row in [suspect.row for suspect in suspects])
    truth = np.concatenate(answers)
    plain, better = np.concatenate(raw), np.concatenate(calibrated)
    known = [estimate for estimate in estimates if estimate is not None]
    return {
        "ways": len(shots),
        "shots": list(shots) if len(set(shots)) > 1 else shots[0],
        "accuracy": round(100 * float(np.mean(better.argmax(axis=1) == truth)), 2),
        "estimated_from_support": round(100 * float(np.mean(known)), 2) if known else None,
        "calibration_error_before": round(expected_calibration_error(plain, truth), 4),
        "calibration_error": round(expected_calibration_error(better, truth), 4),
        "false_alarms": round(100 * float(np.mean(alarms)), 2),
        "unknown_noticed": round(100 * float(np.mean(noticed)), 2),
        "mislabelled_found": round(100 * float(np.mean(found)), 1) if found else None,
    }


def main() -> None:
    """Measure every kind of support and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="a run's folder")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    encoder = load_encoder(options.run)
    test = load_glyphs("test")
    features, labels = encoder.transform(test), np.asarray(test.labels)
    rows = [measure(features, labels, s, FewShotClassifier(encoder)) for s in SUPPORTS]
    for row in rows:
        print("  ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.items()))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        config = {"tasks": TASKS, "reject": 0.05, "C": 1.0, "seed": 0, "split": "glyphs test"}
        record = {"rows": rows, "config": config, "encoder": encoder.provenance}
        write_json(options.out, {**record, **environment(torch.device("cpu"))})


if __name__ == "__main__":
    main()
