"""Classifying a person's own images: folders in, a table out."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from eigenshot.cli_classify import classify as command
from eigenshot.errors import CannotRead, UnreadableWarning, UserError
from eigenshot.evaluation.classifier import FewShotClassifier
from eigenshot.evaluation.classifier_file import load_classifier
from eigenshot.evaluation.classify import NONE_OF_THESE, classify
from tests.data.benchmarks.test_hub import Listener
from tests.evaluation.test_classifier import small_encoder, stripes


def write_pictures(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / label / f"{number}.png")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with an encoder, a support of three colours, and queries nested by colour."""
    small_encoder().save(tmp_path / "encoder.safetensors")
    write_pictures(tmp_path / "support", *stripes((3, 4, 5)))
    write_pictures(tmp_path / "queries", *stripes((2, 2, 2), seed=1))
    return tmp_path


class TestReport:
    def test_a_folder(self, place: Path) -> None:
        report = classify(place, place / "support", place / "queries")
        assert report.classes == ("blue", "green", "red")
        assert report.support_counts == (3, 4, 5)
        assert len(report.predictions) == 6
        for row in report.predictions:
            best = report.classes[int(np.argmax(row.probabilities))]
            assert best == Path(row.file).parent.name
            assert row.prediction in (best, NONE_OF_THESE)
            assert Path(row.file).is_file()
        summary = report.summary()
        assert "support: blue 3, green 4, red 5" in summary
        assert "95 % interval" in summary
        assert "calibration error" in summary
        assert "is none of these: " in summary

    def test_files_and_what_is_no_image(self, place: Path) -> None:
        (place / "broken.png").write_text("no image")
        files = [place / "queries/blue/0.png", place / "broken.png", place / "missing.png"]
        report = classify(small_encoder(), place / "support", files)
        assert [Path(row.file).name for row in report.predictions] == ["0.png"]
        assert [Path(file).name for file, _ in report.unreadable] == ["broken.png", "missing.png"]
        assert any("broken.png" in warning for warning in report.warnings())
        with pytest.raises(UserError, match="no image to classify can be read"):
            classify(small_encoder(), place / "support", files[1:])

    def test_a_broken_file_in_a_folder(self, place: Path) -> None:
        (place / "queries" / "b.png").write_text("no image")
        report = classify(place, place / "support", place / "queries")
        assert len(report.predictions) == 6
        assert [Path(file).name for file, _ in report.unreadable] == ["b.png"]

    def test_csv_and_json(self, place: Path) -> None:
        (place / "queries" / "ünlesbar, sehr.png").write_text("no image")
        report = classify(place, place / "support", place / "queries", reject=0)
        report.write_csv(place / "predictions.csv")
        with (place / "predictions.csv").open(encoding="utf-8", newline="") as handle:
            rows = list(csv.DictReader(handle))
        assert len(rows) == 7
        assert rows[-1]["file"].endswith("ünlesbar, sehr.png")
        assert rows[-1]["unreadable"]
        assert rows[-1]["prediction"] == ""
        for row, prediction in zip(rows, report.predictions, strict=False):
            assert row["prediction"] == prediction.prediction
            shares = [float(row[f"p({name})"]) for name in report.classes]
            np.testing.assert_allclose(shares, prediction.probabilities, atol=1e-6)
        content = json.loads(json.dumps(report.to_dict()))
        assert content["support"] == {"blue": 3, "green": 4, "red": 5}
        assert content["none_of_these"] is None
        assert content["predictions"][0]["probabilities"].keys() == {"blue", "green", "red"}
        assert content["assessment"]["accuracy"] == 1.0
        assert len(content["unreadable"]) == 1

    def test_an_unlike_image_is_none_of_these(self, place: Path) -> None:
        write_pictures(place / "many", *stripes((12, 12, 12)))
        noise = np.random.default_rng(0).integers(0, 2, (16, 16, 3)).astype(np.uint8) * 255
        Image.fromarray(noise).save(place / "noise.png")
        report = classify(place, place / "many", place / "noise.png")
        assert report.predictions[0].prediction == NONE_OF_THESE
        assert report.predictions[0].unlike
        assert sum(report.predictions[0].probabilities) == pytest.approx(1)
        never = classify(place, place / "many", place / "noise.png", reject=0)
        assert never.predictions[0].prediction in report.classes

    def test_a_mislabelled_image_is_warned_of(self, place: Path) -> None:
        write_pictures(place / "many", *stripes((6, 6, 6)))
        (place / "many/green/7.png").rename(place / "many/red/7.png")
        report = classify(place, place / "many", place / "queries")
        [warning] = report.warnings()
        assert warning.startswith("may be mislabelled: red/7.png is labelled 'red'")

    def test_examples_among_what_is_classified_are_remarked(self, place: Path) -> None:
        listener = Listener()
        report = classify(place, place / "support", place / "queries", reporter=listener)
        assert not any(row.example for row in report.predictions)
        assert listener.notes == []
        both = [place / "support" / "red", place / "queries"]
        report = classify(place, place / "support", both, reporter=listener)
        assert [row.example for row in report.predictions] == [True] * 5 + [False] * 6
        (remark,) = listener.notes
        assert remark.startswith("of 11 images to classify 5 have the very features of an")
        rows = report.to_dict()["predictions"]
        assert sum(row["example"] for row in rows) == 5

    def test_a_picture_in_two_classes_is_warned_of(self, place: Path) -> None:
        report = classify(place, place / "support", place / "queries")
        assert report.warnings() == []
        shutil.copy(place / "support/blue/0.png", place / "support/red/again.png")
        report = classify(place, place / "support", place / "queries")
        sentence = "the same picture stands in two classes, as blue/0.png and red/again.png: leave"
        assert report.warnings()[0].startswith(sentence)
        file = report.classifier.save(place / "kept.safetensors")
        again = classify(load_classifier(file), None, place / "queries")
        assert again.warnings() == report.warnings()
        assert again.to_dict() == report.to_dict()

    @pytest.mark.skipif(sys.platform != "linux", reason="needs file names of any bytes")
    def test_a_file_name_that_is_no_unicode(self, place: Path) -> None:
        odd = os.fsencode(place / "queries") + b"/b\xff\xc3\xbc.png"
        os.rename(place / "queries/blue/0.png", odd)
        os.rename(place / "support/red", os.fsencode(place / "support") + b"/\xfe")
        report = classify(place, place / "support", place / "queries")
        report.write_csv(place / "predictions.csv")
        names = [line.split(",")[0] for line in (place / "predictions.csv").read_text().split()]
        assert f"{place}/queries/b\\xffü.png" in names
        assert "p(\\xfe)" in (place / "predictions.csv").read_text()

    def test_a_fitted_classifier_keeps_its_rate_unless_told(self, place: Path) -> None:
        model = FewShotClassifier(small_encoder(), reject=0.2).fit(place / "support")
        queries = place / "queries"
        assert classify(model, None, queries).classifier.rejection_ == model.rejection_
        other = classify(model, None, queries, reject=0.4).classifier.rejection_
        assert other is not None
        assert other.rate == 0.4
        assert classify(model, None, queries, reject=0).classifier.rejection_ is None
        assert model.reject == 0.2  # it was not changed
        with pytest.raises(UserError, match="has its support and its C"):
            classify(model, place / "support", queries)


def test_in_python_a_judged_folder_tells_which_file_each_row_is(place: Path) -> None:
    model = FewShotClassifier(small_encoder()).fit(place / "support")
    queries = place / "many queries"
    write_pictures(queries, *stripes((4, 4, 4), seed=1))
    (queries / "blue" / "00.png").write_text("no image")
    with pytest.warns(UnreadableWarning, match=r"blue/00\.png") as told:
        judged = model.judge(queries)
    assert [one.filename for one in told] == [__file__]
    for ask in (model.predict, model.predict_proba):
        with pytest.warns(UnreadableWarning) as told:
            assert len(ask(queries)) == 12
        assert [one.filename for one in told] == [__file__], "the line that asked"
    assert judged.paths is not None
    assert len(set(judged.paths)) == len(judged.probabilities) == 12
    for path, row in zip(judged.paths, judged.probabilities, strict=True):
        assert (queries / path).is_file()
        assert Path(path).parent.name == model.classes_[row.argmax()]
    files = [queries / path for path in judged.paths]
    again = model.judge(files)
    assert again.paths is None
    np.testing.assert_array_equal(again.probabilities, judged.probabilities)


class TestBadSupport:
    def test_an_empty_class_is_named(self, place: Path) -> None:
        (place / "support" / "yellow").mkdir()
        with pytest.raises(UserError, match="class 'yellow' has no image"):
            classify(place, place / "support", place / "queries")
        (place / "support" / "yellow" / "a.png").write_text("no image")
        with pytest.raises(UserError, match=r"'yellow' has no image.*cannot read yellow/a\.png"):
            classify(place, place / "support", place / "queries")

    def test_a_broken_support_image_is_left_out_and_told(self, place: Path) -> None:
        (place / "support" / "red" / "a.png").write_text("no image")
        report = classify(place, place / "support", place / "queries")
        assert report.support_counts == (3, 4, 5)
        assert any("support image left out: red/a.png" in line for line in report.warnings())

    def test_one_class_no_classes_no_folder(self, place: Path) -> None:
        images, labels = stripes((3,))
        write_pictures(place / "one", images, labels)
        with pytest.raises(UserError, match="found one class only: blue"):
            classify(place, place / "one", place / "queries")
        with pytest.raises(UserError, match="expected a sub-folder for each class"):
            classify(place, place / "one" / "blue", place / "queries")
        with pytest.raises(UserError, match="no such folder"):
            classify(place, place / "suport", place / "queries")
        file = place / "one/blue/0.png"
        with pytest.raises(UserError, match=r"\(--support\) are a folder with a sub-folder"):
            classify(place, file, place / "queries")
        for name in ("cat", "dog"):
            (place / "bare" / name).mkdir(parents=True)
        message = r"bare holds no image, nor do its sub-folders \(cat, dog\)"
        with pytest.raises(UserError, match=message):
            classify(place, place / "bare", place / "queries")
        with pytest.raises(UserError, match="expected a support folder"):
            classify(place, None, place / "queries")
        (place / "empty").mkdir()
        (place / "empty" / "a.txt").write_text("text")
        with pytest.raises(UserError, match="no image"):
            classify(place, place / "support", place / "empty")
        with pytest.raises(UserError, match="found none"):
            classify(place, place / "support", [])


class TestCommand:
    @pytest.fixture
    def app(self) -> typer.Typer:
        app = typer.Typer()
        app.command()(command)
        return app

    def run(self, app: typer.Typer, *arguments: object) -> str:
        result = CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])
        if result.exception is not None:
            raise result.exception
        return result.stdout

    def test_from_the_support_and_from_a_file(self, app: typer.Typer, place: Path) -> None:
        queries, kept = place / "queries", place / "colours.safetensors"
        table = place / "predictions.csv"
        common = ("--query", queries, "--json", "--reject", 0.1)
        out = self.run(
            app, place, "--support", place / "support", *common, "--save", kept, "--out", table
        )
        assert table.read_text().startswith("file,prediction,p(blue),p(green),p(red),likeness")
        again = self.run(app, "--classifier", kept, "--query", queries, "--json")
        assert json.loads(again) == json.loads(out)
        assert load_classifier(kept).reject == 0.1
        text = self.run(app, "--classifier", kept, "--query", queries)
        assert "accuracy 100.0%" in text
        assert len([line for line in text.splitlines() if ".png" in line]) == 6

    def test_folders_are_made_for_what_is_written(self, app: typer.Typer, place: Path) -> None:
        table, kept = place / "new/deep/table.csv", place / "kept/classifier.safetensors"
        common = ("--support", place / "support", "--query", place / "queries")
        self.run(app, place, *common, "--out", table, "--save", kept)
        assert len(table.read_text().splitlines()) == 7
        assert load_classifier(kept).classes_.tolist() == ["blue", "green", "red"]
        message = "its folder cannot be made: not a directory"
        with pytest.raises(UserError, match=message):
            self.run(app, place, *common, "--out", table / "deep" / "table.csv")

    def test_a_run_beside_a_kept_classifier(self, app: typer.Typer, place: Path) -> None:
        kept = place / "kept.safetensors"
        FewShotClassifier(small_encoder()).fit(place / "support").save(kept)
        for run in (place, place / "encoder.safetensors"):
            message = "exclude each other: a kept classifier brings its encoder along"
            with pytest.raises(UserError, match=message):
                self.run(app, run, "--classifier", kept, "--query", place / "queries")

    def test_what_is_read_is_not_written_over(self, app: typer.Typer, place: Path) -> None:
        picture, example = place / "queries/blue/0.png", place / "support/blue/0.png"
        kept, table = place / "kept.safetensors", place / "table.csv"
        shard = place / "support" / "more.parquet"
        common = (place, "--support", place / "support", "--query", place / "queries")
        for _ in range(2):  # its own outcome may be
            self.run(app, *common, "--save", kept, "--out", table)
        shard.write_bytes(b"labelled pictures")
        (place / "config.toml").write_text("settings")
        before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
        for option, file in (
            ("--save", place / "encoder.safetensors"),
            ("--out", picture),
            ("--save", example),
            ("--out", shard),
        ):
            with pytest.raises(UserError, match="is one of the files that are read here"):
                self.run(app, *common, option, file)
        with pytest.raises(UserError, match="is one of the files that are read here"):
            self.run(app, "--classifier", kept, "--query", picture, "--out", kept)
        beside = (place / "encoder.safetensors", *common[1:], "--out", place / "config.toml")
        with pytest.raises(UserError, match="is one of the files that are read here"):
            self.run(app, *beside)
        assert {file: file.read_bytes() for file in before} == before

    def test_what_another_wrote_is_not_written_over(
        self, app: typer.Typer, place: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        common = (place, "--support", place / "support", "--query", place / "queries")
        elsewhere = tmp_path_factory.mktemp("elsewhere")
        small_encoder().save(elsewhere / "encoder.safetensors")
        picture = (place / "queries/blue/0.png").read_bytes()
        for name, content in (
            ("photo.png", picture),
            ("mine.py", b"print('mine')"),
            ("notes.txt", b"the third one is a file,prediction, or so"),
            ("table.csv", b"name,file,prediction\n"),
            ("mine.csv", b"file,prediction,p(a),likeness,none_of_these,unreadable,checked\r\n"),
        ):
            (elsewhere / name).write_bytes(content)
        before = {file: file.read_bytes() for file in elsewhere.iterdir()}
        for file in before:
            for option, kind in (("--out", "table of predictions"), ("--save", "kept classifier")):
                with pytest.raises(UserError, match=f"is there already and no {kind}: remove it"):
                    self.run(app, *common, option, file)
        assert {file: file.read_bytes() for file in elsewhere.iterdir()} == before

    @pytest.mark.parametrize("name", ["table.csv", "table.tsv", "table.txt", "table"])
    def test_a_table_of_predictions_is_replaced_whatever_its_name(
        self, app: typer.Typer, place: Path, name: str
    ) -> None:
        common = (place, "--support", place / "support", "--out", place / name)
        (place / name).touch()  # an empty file, as mktemp leaves it, has nothing to lose
        for query, rows in (("queries", 6), ("queries/blue", 2)):
            self.run(app, *common, "--query", place / query)
            assert len((place / name).read_text().splitlines()) == 1 + rows

    def test_a_table_that_may_not_be_read_is_not_written_over(
        self, app: typer.Typer, place: Path, deny: Callable[[Path], None]
    ) -> None:
        table = place / "table.csv"
        table.write_text("file,prediction,p(blue)\n")
        deny(table)
        common = (place, "--support", place / "support", "--query", place / "queries")
        with pytest.raises(CannotRead, match=r"^cannot read '.*table.csv': permission denied$"):
            self.run(app, *common, "--out", table)

    def test_a_class_of_the_name_of_the_verdict(self, app: typer.Typer, place: Path) -> None:
        (place / "support" / "blue").rename(place / "support" / NONE_OF_THESE)
        with pytest.raises(UserError, match=f"no class can be called '{NONE_OF_THESE}'"):
            self.run(app, place, "--support", place / "support", "--query", place / "queries")
        common = ("--support", place / "support", "--query", place / "queries")
        out = self.run(app, place, *common, "--reject", 0)
        assert out.splitlines()[-1].startswith("6 images: ")
        assert out.splitlines()[-1].count(NONE_OF_THESE) == 1

    def test_several_processes_are_refused(
        self, app: typer.Typer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("WORLD_SIZE", "4")
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        with pytest.raises(UserError, match="work of one process, but 4 were started"):
            self.run(app, "run", "--support", "s", "--query", "q")

    def test_what_a_shell_makes_of_a_star(self, app: typer.Typer, place: Path) -> None:
        files = sorted((place / "queries").rglob("*.png"))
        out = self.run(app, place, "--support", place / "support", "--json", "--query", *files)
        assert len(json.loads(out)["predictions"]) == 6

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--query", "q"], "expected a run's folder, or --classifier FILE"),
            (["run", "--query", "q"], "expected --support"),
            (["run", "--support", "s"], "expected --query"),
            (["--classifier", "c", "--query", "q", "-C", "2"], "leave out --support, --C and"),
            (["--classifier", "c", "--query", "q", "--crops", "ten"], "and --crops, or leave out"),
            (["run", "--support", "s", "--query", "q"], "no such run or encoder file: 'run'"),
        ],
    )
    def test_misuse(self, app: typer.Typer, arguments: list[str], message: str) -> None:
        with pytest.raises(UserError, match=message):
            self.run(app, *arguments)

    def test_importing_it_does_not_import_torch(self) -> None:
        code = "import sys, eigenshot.cli_classify; print('torch' in sys.modules)"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert found.stdout.strip() == "False"
