"""Episodes a second of the batched evaluator, beside the customary loop over scikit-learn fits.

    python benchmarks/fewshot.py [--episodes 1000] [--device cpu] [--out FILE]

Both see the same features and the same episodes, with the same number of threads. The loop is
`LogisticRegression(C=1.0, max_iter=1000)` with its default tolerance.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from eigenshot.evaluation.episodes import Episodes, draw_episodes
from eigenshot.evaluation.fewshot import evaluate_fewshot
from eigenshot.evaluation.tables import unit_length
from eigenshot.files import write_json
from eigenshot.hardware import environment

WAYS, QUERIES, CLASSES, PER_CLASS, WIDTH = 5, 15, 20, 600, 640


def made_up_features() -> tuple[np.ndarray, np.ndarray]:
    """Features like a network's after pooling: positive, skewed, classes that overlap."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    centres = generator.normal(size=(CLASSES, WIDTH))
    noise = generator.normal(size=(len(labels), WIDTH))
    features = np.maximum(0.25 * centres[labels] + noise, 0).astype(np.float32)
    return features, labels


def scikit_learn_loop(table: np.ndarray, tasks: Episodes) -> np.ndarray:
    """Accuracy of each task in percent, one fit after another."""
    ways, shots = tasks.support.shape[1:]
    labels = np.repeat(np.arange(ways), shots)
    answers = np.repeat(np.arange(ways), tasks.query.shape[2])
    accuracies = []
    for support, query in zip(tasks.support, tasks.query, strict=True):
        model = LogisticRegression(C=1.0, max_iter=1000).fit(table[support.ravel()], labels)
        accuracies.append(100 * np.mean(model.predict(table[query.ravel()]) == answers))
    return np.array(accuracies)


def main() -> None:
    """Measure 1 and 5 shots, print rates and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--loop-episodes", type=int, default=1000, help="of the peer's loop")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    features, labels = made_up_features()
    table = unit_length(features)
    on_device = torch.from_numpy(features).to(options.device)
    rows = []
    for shots in (1, 5):
        common: dict[str, Any] = {"ways": WAYS, "shots": shots, "queries": QUERIES, "seed": 0}
        evaluate_fewshot(on_device, labels, **common, episodes=50)  # first use allocates
        times = []
        for _ in range(3):
            began = time.perf_counter()
            ours = evaluate_fewshot(on_device, labels, **common, episodes=options.episodes)
            times.append(time.perf_counter() - began)
        tasks = draw_episodes(labels, **common, episodes=options.episodes)
        count = min(options.loop_episodes, options.episodes)
        began = time.perf_counter()
        theirs = scikit_learn_loop(table, Episodes(tasks.support[:count], tasks.query[:count]))
        loop_rate = count / (time.perf_counter() - began)
        rate = options.episodes / min(times)
        rows.append(
            {
                "shots": shots,
                "episodes": options.episodes,
                "seconds": round(min(times), 4),
                "episodes_per_second": round(rate, 1),
                "loop_episodes": count,
                "loop_episodes_per_second": round(loop_rate, 1),
                "times_faster": round(rate / loop_rate, 1),
                "accuracy": round(ours.accuracy, 3),
                "largest_difference_of_an_episode": float(
                    np.abs(ours.per_episode[:count] - theirs).max()
                ),
                "mean_difference": float(np.abs((ours.per_episode[:count] - theirs).mean())),
            }
        )
        print(
            f"{shots}-shot: {rate:9,.0f} episodes/s, loop {loop_rate:7,.0f}: "
            f"{rate / loop_rate:5.1f} times faster; {ours.accuracy:.2f} % (loop on {count}: "
            f"{theirs.mean():.2f} %)"
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process {peak:,.0f} MiB")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"rows": rows, "peak_mebibytes": round(peak), "threads": torch.get_num_threads()}
        write_json(options.out, {**record, **environment(torch.device(options.device))})


if __name__ == "__main__":
    main()
