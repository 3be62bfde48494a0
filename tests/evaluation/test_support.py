"""The labelled images that a person brings, and which of them are taken."""

from __future__ import annotations

import errno
import warnings
from pathlib import Path

import numpy as np
import pytest

from eigenshot.data.source import ArraySource
from eigenshot.errors import UnreadableWarning, UserError
from eigenshot.evaluation import classify as classifying
from eigenshot.evaluation.classifier import FewShotClassifier
from eigenshot.evaluation.classify import classify
from eigenshot.evaluation.support import open_support
from tests.data.benchmarks.test_hub import Listener
from tests.data.parquet_files import picture, write, write_hub
from tests.evaluation.test_classifier import small_encoder, stripes
from tests.evaluation.test_classify import write_pictures

SHAPE = small_encoder().preprocessing


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "cache"))
    for split, count in (("train", 6), ("test", 4)):
        contents: list[bytes | None] = [picture(row + 10 * count) for row in range(count)]
        path = tmp_path / "shards" / f"{split}-00000-of-00001.parquet"
        write_hub(path, contents, [row % 2 for row in range(count)], ["cat", "dog"])
    return tmp_path / "shards"


def test_an_unknown_label_is_no_example() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    source = ArraySource.from_array(pixels, [0, -1, 1, 1], ["cat", "dog"], name="pets")
    with pytest.warns(UserWarning, match="left out 1 of 4 images of pets whose label is unknown"):
        support = open_support(source, None, SHAPE)
    assert support.labels.tolist() == ["cat", "dog", "dog"]
    assert support.names == ("image 0", "image 2", "image 3")
    assert len(support.source) == 3


def test_in_python_broken_pictures_are_named_where_they_were_asked_for(tmp_path: Path) -> None:
    write_pictures(tmp_path, *stripes((8, 8)))
    (tmp_path / "blue" / "broken.png").write_text("no image")
    classifier = FewShotClassifier(small_encoder())
    with pytest.warns(
        UnreadableWarning, match=r"left out 1 unreadable picture:\n .*broken\.png"
    ) as w:
        classifier.fit(tmp_path)
    assert w[0].filename == __file__
    assert [file for file, _ in classifier.support_unreadable_] == ["blue/broken.png"]
    with pytest.warns(
        UnreadableWarning, match=r"skipped 1 unreadable picture:\n .*broken\.png"
    ) as w:
        assert len(small_encoder().transform(tmp_path)) == 16
    assert w[0].filename == __file__


def test_a_report_lists_broken_examples_instead_of_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    write_pictures(tmp_path / "support", *stripes((3, 3)))
    (tmp_path / "support" / "blue" / "broken.png").write_text("no image")
    report = classify(small_encoder(), tmp_path / "support", tmp_path / "support" / "green")
    assert any("support image left out: blue/broken.png" in text for text in report.warnings())
    assert not [one for one in recwarn if issubclass(one.category, UnreadableWarning)]


@pytest.mark.parametrize("name", ["train-00000-of-00001", "own"])
def test_broken_rows_of_shards_are_named_as_files_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("EIGENSHOT_CACHE", str(tmp_path / "cache"))
    contents: list[bytes | None] = [picture(row) for row in range(12)]
    contents[3] = b"no picture"
    folder, labels = tmp_path / "shards", [row % 2 for row in range(12)]
    write_hub(folder / f"{name}.parquet", contents, labels, ["cat", "dog"])
    place = f"{name}.parquet, row 3"
    classifier = FewShotClassifier(small_encoder())
    with pytest.warns(UnreadableWarning, match=f"left out 1 unreadable picture:\n  {place}") as w:
        classifier.fit(folder)
    assert [one.filename for one in w] == [__file__]
    assert [where for where, _ in classifier.support_unreadable_] == [place]
    write_pictures(tmp_path / "queries", *stripes((1, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnreadableWarning)
        report = classify(small_encoder(), folder, tmp_path / "queries")
    assert any(f"support image left out: {place}: " in text for text in report.warnings())
    assert report.to_dict()["support_unreadable"][0]["file"] == place
    contents[4:9] = [None] * 5  # as many as there may be, since each is named
    write_hub(folder / f"{name}.parquet", contents, labels, ["cat", "dog"])
    with pytest.warns(UnreadableWarning, match="left out 6 unreadable pictures"):
        assert len(classifier.fit(folder).support_) == 6


def test_of_data_with_splits_the_train_images_are_the_examples(
    shards: Path, tmp_path: Path
) -> None:
    assert len(open_support(shards, None, SHAPE).source) == 6
    assert len(open_support(shards, None, SHAPE, split="test").source) == 4
    write_pictures(tmp_path / "queries", *stripes((1, 1, 1)))
    listener = Listener()
    report = classify(small_encoder(), str(shards), tmp_path / "queries", reporter=listener)
    assert report.support_counts == (3, 3)
    assert listener.notes == [f"the examples are the split 'train' of {shards}"]


def test_queries_are_image_files(shards: Path, tmp_path: Path) -> None:
    write_pictures(tmp_path / "support", *stripes((2, 2, 2)))
    for queries in (shards, next(shards.iterdir()), tmp_path / "x.npz"):
        with pytest.raises(UserError, match="expected image files or folders of them to classify"):
            classify(small_encoder(), tmp_path / "support", queries)


def test_a_table_of_features_beside_pictures_is_ignored_everywhere(tmp_path: Path) -> None:
    write_pictures(tmp_path / "both", *stripes((2, 2, 2)))
    write(tmp_path / "both" / "features.parquet", {"features": [[0.5]], "label": [0]})
    listener = Listener()
    report = classify(small_encoder(), tmp_path / "both", tmp_path / "both", reporter=listener)
    assert (report.support_counts, len(report.predictions)) == ((2, 2, 2), 6)
    ignored = "ignored, without a column of images: features.parquet"
    assert listener.notes[:2] == [ignored] * 2


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pictures(tmp_path / "support", *stripes((2, 2, 2)))
    report = classify(small_encoder(), tmp_path / "support", tmp_path / "support")

    def full(path: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(classifying, "atomic_write", full)
    with pytest.raises(UserError, match=r"cannot write predictions to 'out\.csv': no space left"):
        report.write_csv("out.csv")
