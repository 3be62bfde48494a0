"""The method under scikit-learn's conventions, the demonstration, and the examples in the docs."""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from eigenshot import DeepLaplacianEigenmaps, load_encoder
from eigenshot.demo import run_demo
from eigenshot.errors import UserError

DOCS = Path(__file__).parent.parent / "docs"


SMALL = {"backbone": "conv4", "batch_size": 16, "device": "cpu"}


def pictures(count: int = 32) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 20, 20, 3), dtype=np.uint8)


class TestEstimator:
    def test_fit_transform_and_the_kept_run_agree(self, tmp_path: Path) -> None:
        model = DeepLaplacianEigenmaps(
            backbone="conv4", epochs=1, batch_size=16, out=tmp_path / "run", device="cpu"
        )
        features = model.fit(pictures()).transform(pictures())
        assert features.shape == (32, 64) == (32, model.n_features_out_)
        again = load_encoder(tmp_path / "run").transform(pictures())
        np.testing.assert_allclose(features, again, atol=1e-6)
        assert model.summary_["epochs"] == 1

    def test_conventions(self) -> None:
        model = DeepLaplacianEigenmaps(epochs=3, settings={"optimizer.lr": 0.2}, seed=4)
        assert clone(model).get_params() == model.get_params()
        with pytest.raises(NotFittedError):
            model.transform(pictures())

    def test_settings_reach_the_run(self) -> None:
        model = DeepLaplacianEigenmaps(
            backbone="conv4", epochs=1, batch_size=8, image_size=16, device="cpu",
            settings={"projector.width": 32, "method.options.alpha": 0.3}, seed=5,
        )  # fmt: skip
        provenance = model.fit(pictures()).encoder_.provenance
        assert provenance["config"]["projector"]["width"] == 32
        assert provenance["config"]["method"]["options"]["alpha"] == 0.3
        assert provenance["config"]["training"]["seed"] == 5
        assert model.encoder_.preprocessing.image_size == 16

    def test_numbers_of_a_search_are_numbers(self) -> None:
        settings = {
            "optimizer.lr": np.logspace(-2, -1, 2)[0],
            "method.options.alpha": np.float32(0.5),
            "method.options.layers": [np.int64(1)],
            "data.mean": np.array([0.5, 0.5, 0.5]),
            "data.std": np.array([0.25, 0.25, 0.25]),
        }
        model = DeepLaplacianEigenmaps(epochs=np.arange(1, 2)[0], settings=settings, **SMALL)
        model.fit(pictures())
        assert model.summary_["epochs"] == 1

    def test_a_method_with_labels_takes_those_of_fit(self) -> None:
        labels = ["a", "b"] * 16
        model = DeepLaplacianEigenmaps(epochs=1, settings={"method.name": "baseline"}, **SMALL)
        assert model.fit(pictures(), labels).transform(pictures()).shape == (
            32,
            model.n_features_out_,
        )
        with pytest.raises(UserError, match="labels beside an array"):
            model.fit(pictures())
        with pytest.raises(UserError, match="labels"):
            model.fit(pictures(), labels[:5])
        with pytest.raises(UserError, match="labels are taken beside an array of images"):
            model.fit("photos/", labels)

    def test_bad_settings(self) -> None:
        with pytest.raises(UserError, match=r"did you mean 'projector\.width'"):
            DeepLaplacianEigenmaps(settings={"projector.widht": 3}).fit(pictures())


def mixed_photos(folder: Path, count: int) -> list[str]:
    """Photographs of every size and mode, a few of them broken; the names of the broken ones."""
    generator = np.random.default_rng(0)
    modes = ["RGB", "L", "RGBA", "P", "CMYK", "1", "LA", "I;16"]
    suffixes = {"RGB": "jpg", "CMYK": "jpg", "L": "bmp", "P": "gif", "RGBA": "webp", "I;16": "tiff"}
    broken = []
    for number in range(count):
        width, height = (int(side) for side in generator.integers(18, 160, 2))
        mode = modes[number % len(modes)]
        if mode == "I;16":
            picture = Image.fromarray(generator.integers(0, 65536, (height, width), np.uint16))
        else:
            pixels = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
            picture = Image.fromarray(pixels).convert(mode)
        file = folder / f"photo {number:03d}.{suffixes.get(mode, 'png')}"
        picture.save(file)
        if number % 100 == 7:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 3])
            broken.append(file.name)
    return broken


def test_five_hundred_mixed_photos_train_without_a_crash(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    broken = mixed_photos(folder, 500)
    model = DeepLaplacianEigenmaps(
        epochs=1,
        image_size=32,
        out=tmp_path / "run",
        device="cpu",
        settings={"projector.width": 64},
    )
    features = model.fit(folder).transform(folder)
    assert features.shape == (500 - len(broken), 256)
    assert np.isfinite(features).all()
    data = json.loads((tmp_path / "run" / "data.json").read_text())
    assert [name for name, _ in data["unreadable"]] == broken
    assert all(reason for _, reason in data["unreadable"])


def test_the_demonstration_in_small(tmp_path: Path) -> None:
    settings = {"data.per_class": 1, "training.epochs": 1, "backbone.options.widths": [4, 4, 8, 16]}
    result = run_demo(tmp_path, device="cpu", episodes=20, settings=settings)
    stored = json.loads((tmp_path / "demo.json").read_text())
    for key in ("pixels", "untrained", "learned"):
        for shots in ("1", "5"):
            assert 0 <= stored[key][shots]["accuracy"] <= 100
            assert stored[key][shots]["ci95"] > 0
            assert stored[key][shots]["episodes"] == 20
    assert stored["seconds"] > 0
    assert {"config", "seed", "commit", "hardware"} <= set(stored)
    assert "learned encoder" in result.table()
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.size[0] > 800


def test_the_custom_method_of_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's own code, saved under the page's own name, trained by the page's own settings."""
    page = (DOCS / "custom-method.md").read_text()
    (code,) = re.findall(r"```python\n(# my_method\.py\n.*?)```", page, flags=re.S)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 30
    (tmp_path / "my_method.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    small = {"data.per_class": 1, "backbone.options.widths": [4, 4, 4, 8], "projector.width": 16}
    overrides = {"method.name": "my_method:Mine", "method.options.temperature": 0.2}
    model = DeepLaplacianEigenmaps(epochs=2, settings={**small, **overrides}, device="cpu")
    final = model.fit("glyphs").summary_["final"]
    assert np.isfinite(final["loss"])


@pytest.mark.parametrize(
    "name",
    ["estimator", "options", "spectral", "networks.registry"],
)
def test_docstrings_run(name: str) -> None:
    module = __import__(f"eigenshot.{name}", fromlist=["_"])
    outcome = doctest.testmod(module)
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_to_go_on_needs_a_folder() -> None:
    with pytest.raises(UserError, match="resume=True needs out"):
        DeepLaplacianEigenmaps(resume=True).fit("glyphs")
