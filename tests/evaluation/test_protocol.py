"""The protocols as the command line runs them: which images they see."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenshot.errors import UserError
from eigenshot.evaluation.bench import Bench
from eigenshot.evaluation.fewshot import FewShotResult, evaluate_fewshot
from eigenshot.evaluation.knn import KnnResult, knn_accuracy
from eigenshot.evaluation.protocol import fewshot_of_run, knn_of_run, linear_of_run
from tests.data.benchmarks.test_hub import Listener
from tests.data.parquet_files import cells, picture, write, write_hub
from tests.evaluation.test_features import small_encoder

NAMES = ["cat", "dog"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "cache"))
    small_encoder().save(tmp_path / "run.safetensors")
    return Bench(tmp_path / "run.safetensors", device="cpu", reporter=Listener())


def shards(folder: Path, **rows: int) -> Path:
    """As many pictures of each split as said, the classes in turn."""
    for number, (split, count) in enumerate(rows.items()):
        contents: list[bytes | None] = [picture(100 * number + row) for row in range(count)]
        labels = [row % 2 for row in range(count)]
        write_hub(folder / f"{split}-00000-of-00001.parquet", contents, labels, NAMES)
    return folder


def test_unknown_labels_are_no_class_and_counted(bench: Bench, tmp_path: Path) -> None:
    contents: list[bytes | None] = [picture(row) for row in range(6)]
    path = write_hub(tmp_path / "own.parquet", contents, [0, -1, 1, None, 0, 1], NAMES)
    source, labels = bench.open_labelled(path, None, "test")
    assert labels.tolist() == [0, 1, 0, 1]
    assert len(bench.features(source)) == 4
    said = bench.reporter.notes  # type: ignore[attr-defined]
    assert said == ["own.parquet: left out 2 images without a known label"]


def test_learning_from_what_is_tested_is_refused(bench: Bench, tmp_path: Path) -> None:
    single = shards(tmp_path / "single", test=6)
    for use in (knn_of_run, linear_of_run):
        with pytest.raises(UserError, match=r"--train and --test are the same images \(single"):
            use(bench, single, single)
    both = shards(tmp_path / "both", train=6, test=4)
    assert 0 <= knn_of_run(bench, both, both, neighbours=1).accuracy <= 100


def test_settings_may_be_chosen_on_another_split_of_the_same_data(
    bench: Bench, tmp_path: Path
) -> None:
    few = {"ways": 2, "shots": (1,), "queries": 1, "episodes": 2}
    both = shards(tmp_path / "both", validation=8, test=8)
    ((_, selected),) = fewshot_of_run(bench, both, select_on=both, **few)
    assert selected is not None
    single = shards(tmp_path / "single", test=8)
    with pytest.raises(UserError, match="are the same images"):
        fewshot_of_run(bench, single, select_on=single, **few)
    with pytest.raises(UserError, match="are the same images"):
        fewshot_of_run(bench, both, split="validation", select_on=both, **few)
    copied = shutil.copytree(single, tmp_path / "copied")
    with pytest.raises(UserError, match="are the same images"):
        fewshot_of_run(bench, single, select_on=copied, **few)


def test_settings_are_chosen_where_the_rest_is_computed(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[object, object]] = []

    def listening(*tables: Any, **options: Any) -> FewShotResult:
        calls.append((options["device"], options["together"]))
        return evaluate_fewshot(*tables, **options)

    monkeypatch.setattr("eigenshot.evaluation.selection.evaluate_fewshot", listening)
    both = shards(tmp_path / "both", validation=8, test=8)
    few = {"ways": 2, "shots": (1,), "queries": 1, "episodes": 2}
    fewshot_of_run(bench, both, select_on=both, **few)
    assert len(calls) == 12, "three transforms with four strengths"
    assert set(calls) == {("cpu", True)}


def test_shards_without_labels_are_told_what_they_have(bench: Bench, tmp_path: Path) -> None:
    columns = {"image": cells([picture(0)]), "species": ["cat"]}
    path = write(tmp_path / "own.parquet", columns)
    message = "needs a column 'label' in its shards, found the columns image, species"
    with pytest.raises(UserError, match=message):
        bench.open_labelled(path, None, "test")
    with pytest.raises(UserError, match="a sub-folder a class, shards with a column of labels"):
        bench.open_labelled(np.zeros((2, 8, 8), np.uint8), None, "test")


def test_the_choice_of_a_reader_is_said_where_it_is_unusual(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shards(tmp_path / "own", test=4)
    bench.open(folder, "test")
    said = bench.reporter.notes  # type: ignore[attr-defined]
    assert said == []
    monkeypatch.setattr("eigenshot.data.reading.reader.available_memory", lambda: 1)
    bench.open(folder, "test")
    assert [text.partition(" (")[0] for text in said] == ["own"]
    assert "mapped" in said[0]


def test_a_precision_that_the_device_has_not(bench: Bench) -> None:
    assert bench.precision == "float32"
    with pytest.raises(UserError, match="bf16 needs a GPU"):
        Bench(bench.run, device="cpu", precision="bf16")


def test_neighbours_and_temperature_are_those_asked_for(bench: Bench, tmp_path: Path) -> None:
    both = shards(tmp_path / "both", train=30, test=30)
    train, test = (bench.open_labelled(both, split, split) for split in ("train", "test"))
    tables = (bench.features(train[0]), train[1], bench.features(test[0]), test[1])
    found = set()
    for neighbours, temperature in ((1, 0.1), (7, 0.1), (30, 0.1), (30, 1e-4)):
        asked = {"neighbours": neighbours, "temperature": temperature}
        result = knn_of_run(bench, both, both, **asked)
        expected = knn_accuracy(*tables, neighbours=neighbours, temperature=temperature)
        assert result == KnnResult(expected, neighbours, temperature)
        found.add(result.accuracy)
    assert len(found) > 1
    summary = {"accuracy": 33.3333, "neighbours": 5, "temperature": 0.1, "copies": 0}
    assert KnnResult(100 / 3, 5, 0.1).summary() == summary


def test_test_images_that_were_learned_from_are_counted(bench: Bench, tmp_path: Path) -> None:
    contents: list[bytes | None] = [picture(row) for row in range(60)]
    train = write_hub(tmp_path / "a.parquet", contents[:40], [row % 2 for row in range(40)], NAMES)
    test = write_hub(tmp_path / "b.parquet", contents[33:], [row % 2 for row in range(27)], NAMES)
    said = bench.reporter.notes  # type: ignore[attr-defined]
    sentence = "7 of the 27 test images have the very features of a training image"
    result = knn_of_run(bench, train, test, neighbours=5)
    assert (result.copies, result.summary()["copies"]) == (7, 7)
    assert next(text for text in said if "copies" in text).startswith(sentence)
    said.clear()
    assert linear_of_run(bench, train, test, exact=True).summary()["copies"] == 7
    assert next(text for text in said if "copies" in text).startswith(sentence)
    said.clear()
    other = write_hub(tmp_path / "c.parquet", contents[40:], [row % 2 for row in range(20)], NAMES)
    assert knn_of_run(bench, train, other, neighbours=5).copies == 0
    assert not [text for text in said if "copies" in text]


def test_a_vote_of_nearly_all_is_remarked(bench: Bench, tmp_path: Path) -> None:
    both = shards(tmp_path / "both", train=30, test=6)
    said = bench.reporter.notes  # type: ignore[attr-defined]
    knn_of_run(bench, both, both, neighbours=15)
    assert not [text for text in said if "images vote" in text]
    for neighbours, voters in ((16, 16), (200, 30)):
        said.clear()
        knn_of_run(bench, both, both, neighbours=neighbours)
        (remark,) = [text for text in said if "images vote" in text]
        assert remark.startswith(f"{voters} of the 30 training images vote on every test image")
        assert remark.endswith("--neighbours 3")


def test_fewer_views_than_none_are_refused(bench: Bench, tmp_path: Path) -> None:
    both = shards(tmp_path / "both", train=6, test=4)
    with pytest.raises(UserError, match="support_views must be at least 0, found -1"):
        fewshot_of_run(bench, both, ways=2, shots=(1,), queries=1, support_views=-1)


def test_crops_are_of_all_images_that_are_compared(bench: Bench, tmp_path: Path) -> None:
    both = shards(tmp_path / "both", train=6, test=4)
    cropped = Bench(bench.run, device="cpu", reporter=Listener(), crops="five")
    source, _ = cropped.open_labelled(both, "test", "test")
    expected = bench.encoder.with_crops("five").transform(source)
    np.testing.assert_array_equal(cropped.features(source), expected)
    assert not np.allclose(bench.features(source), expected)
    assert 0 <= knn_of_run(cropped, both, both, neighbours=1).accuracy <= 100
    with pytest.raises(UserError, match="unknown crops 'all'"):
        Bench(bench.run, device="cpu", crops="all")  # type: ignore[arg-type]
