"""The README's Python runs as it stands, and its figures are those of the result file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)


def test_the_python_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    for folder in ("photos", "new", *(f"examples/{name}" for name in "abcde")):
        (tmp_path / folder).mkdir(parents=True)
        for number in range(16):
            pixels = generator.integers(0, 256, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    first, second = blocks()
    names: dict[str, object] = {}
    exec(first.replace("epochs=20", "epochs=1").replace("verbose=True", "verbose=False"), names)
    assert names["features"].shape == (16, 256)  # type: ignore[attr-defined]
    exec(second, names)
    assert names["embedding"].shape == (500, 2)  # type: ignore[attr-defined]


def test_the_table_of_the_readme_is_the_result_file() -> None:
    result = json.loads((ROOT / "results" / "glyphs" / "demo.json").read_text())
    text = (ROOT / "README.md").read_text()
    for key, name in (("pixels", "raw pixels"), ("untrained", "untrained"), ("learned", "learned")):
        cells = [f"{result[key][s]['accuracy']:.1f} ± {result[key][s]['ci95']:.1f}" for s in "15"]
        assert re.search(rf"\|[^|]*{name}[^|]*\|[^|]*{cells[0]}[^|]*\|[^|]*{cells[1]}", text), key
    assert f"{result['seconds']:.0f} s on two CPU cores" in text


def test_the_table_of_photographs_is_the_result_files() -> None:
    text = (ROOT / "README.md").read_text()

    def read(name: str) -> Any:
        return json.loads((ROOT / "results" / f"{name}.json").read_text())

    seeds = [read(f"fc100/dle-fc100-best-400ep-seed{seed}") for seed in range(3)]
    for shots, row in (("1", " FC100 [^|]*, 1 example "), ("5", " 5 examples ")):
        mean = sum(result["fewshot"][shots]["accuracy"] for result in seeds) / 3
        assert re.search(rf"\|{row}\| \*\*{mean:.1f} ± ", text), row
    photographs = read("miniimagenet/dle-miniimagenet-best-380ep-seed0")["fewshot"]
    for shots, row in (("1", " miniImageNet [^|]*, 1 example "), ("5", " 5 examples ")):
        accuracy, interval = photographs[shots]["accuracy"], photographs[shots]["ci95"]
        assert re.search(rf"\|{row}\| {accuracy:.1f} ± {interval:.1f} \|", text), row
    for name, row in (
        ("cifar10/dle-cifar10-best+ef91dfc3-800ep-seed0", "CIFAR-10 "),
        ("cifar100/dle-cifar100-best-400ep-seed0", "CIFAR-100 "),
    ):
        accuracy = read(name)["linear"]["accuracy"]
        assert re.search(rf"\| {row}[^|]*\| \*\*{accuracy:.1f}\*\* \|", text), row
