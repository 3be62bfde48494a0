"""Features as a file: what other programs read is what the encoder gave."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pytest
import typer
from PIL import Image
from pyarrow import parquet
from typer.testing import CliRunner

from eigenshot.cli_embed import embed_command
from eigenshot.data.source import ArraySource
from eigenshot.encoder import load_encoder
from eigenshot.errors import UserError
from eigenshot.evaluation.embed import embed
from eigenshot.evaluation.features import encoder_digest
from eigenshot.reporter import Reporter
from tests.data import parquet_files as small
from tests.test_encoder import pictures, small_encoder


class Listener(Reporter):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.said.append(f"warning: {text}")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with an encoder in it."""
    folder = tmp_path_factory.mktemp("run")
    small_encoder().save(folder / "encoder.safetensors")
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes, three images and two."""
    folder = tmp_path / "photos"
    for number, picture in enumerate(pictures()):
        file = folder / ("cat" if number < 3 else "dög") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(file)
    return folder


PATHS = ["cat/0.png", "cat/1.png", "cat/2.png", "dög/3.png", "dög/4.png"]


class TestNpz:
    def test_a_folder_comes_back_with_labels_and_paths(
        self, run: Path, photos: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "deep" / "features.npz"
        assert embed(run, photos, out, device="cpu") == out
        with np.load(out, allow_pickle=False) as read:
            assert read["features"].dtype == np.float32
            np.testing.assert_array_equal(read["features"], small_encoder().transform(photos))
            assert read["labels"].tolist() == [0, 0, 0, 1, 1]
            assert read["class_names"].tolist() == ["cat", "dög"]
            assert read["paths"].tolist() == PATHS
            assert read["encoder"].item() == encoder_digest(load_encoder(run))
            assert json.loads(read["provenance"].item()) == {"seed": 0}
        assert os.listdir(out.parent) == ["features.npz"]

    def test_unlabelled_images_have_features_only(self, run: Path, tmp_path: Path) -> None:
        np.savez(tmp_path / "images.npz", images=pictures())
        embed(run, tmp_path / "images.npz", tmp_path / "f.NPZ")
        with np.load(tmp_path / "f.NPZ") as read:
            assert sorted(read.files) == ["encoder", "features", "provenance"]

    def test_test_classes_of_a_benchmark_unless_told_otherwise(
        self, run: Path, tmp_path: Path
    ) -> None:
        embed(run, "glyphs", tmp_path / "default.npz")
        embed(run, "glyphs", tmp_path / "test.npz", split="test")
        embed(run, "glyphs", tmp_path / "validation.npz", split="validation")
        names = {}
        for split in ("default", "test", "validation"):
            with np.load(tmp_path / f"{split}.npz") as read:
                names[split] = read["class_names"].tolist()
                assert len(read["features"]) == len(read["labels"])
        assert names["default"] == names["test"] != names["validation"]


class TestParquet:
    def test_a_folder_comes_back_with_labels_and_paths(
        self, run: Path, photos: Path, tmp_path: Path
    ) -> None:
        import pyarrow
        from pyarrow import parquet

        out = embed(run, photos, str(tmp_path / "features.parquet"), device="cpu")
        table = parquet.read_table(out)
        assert table.schema.names == ["path", "label", "class", "features"]
        assert table.schema.field("features").type == pyarrow.list_(pyarrow.float32(), 6)
        assert table.schema.field("label").type == pyarrow.int64()
        features = np.stack(table["features"].to_numpy())
        np.testing.assert_array_equal(features, small_encoder().transform(photos))
        assert table["label"].to_pylist() == [0, 0, 0, 1, 1]
        assert table["class"].to_pylist() == ["cat"] * 3 + ["dög"] * 2
        assert table["path"].to_pylist() == PATHS
        metadata = table.schema.metadata
        assert metadata[b"eigenshot.encoder"].decode() == encoder_digest(load_encoder(run))
        assert json.loads(metadata[b"eigenshot.provenance"]) == {"seed": 0}
        assert json.loads(metadata[b"eigenshot.class_names"]) == ["cat", "dög"]

    def test_only_the_columns_that_are_known(self, run: Path, tmp_path: Path) -> None:
        from pyarrow import parquet

        embed(run, pictures(), tmp_path / "array.parquet")
        assert parquet.read_schema(tmp_path / "array.parquet").names == ["features"]
        pair = (pictures(), ["b", "a", "b", "b", "a"])
        embed(run, pair, tmp_path / "pair.parquet")
        table = parquet.read_table(tmp_path / "pair.parquet")
        assert table.schema.names == ["label", "class", "features"]
        assert table["class"].to_pylist() == ["b", "a", "b", "b", "a"]
        nameless = ArraySource(ArraySource.from_array(pictures()).pixels, np.arange(5))
        embed(run, nameless, tmp_path / "nameless.parquet")
        assert parquet.read_schema(tmp_path / "nameless.parquet").names == ["label", "features"]

    @pytest.mark.skipif(sys.platform != "linux", reason="needs file names of any bytes")
    def test_a_file_name_that_is_no_unicode(self, run: Path, tmp_path: Path) -> None:
        from pyarrow import parquet

        (tmp_path / "odd").mkdir()
        Image.fromarray(pictures()[0]).save(tmp_path / "plain.png")
        os.rename(tmp_path / "plain.png", os.fsencode(tmp_path / "odd") + b"/\xff.png")
        embed(run, tmp_path / "odd", tmp_path / "f.parquet")
        assert parquet.read_table(tmp_path / "f.parquet")["path"].to_pylist() == ["\\xff.png"]
        embed(run, tmp_path / "odd", tmp_path / "f.npz")
        with np.load(tmp_path / "f.npz") as read:
            assert read["paths"].tolist() == ["\udcff.png"]

    def test_without_pyarrow_before_any_work(
        self, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(UserError, match=r"needs pyarrow .pip install pyarrow."):
            embed(run, "no such folder", tmp_path / "f.parquet")
        embed(run, pictures(), tmp_path / "f.npz")


def arrays_of_another() -> bytes:
    content = io.BytesIO()
    np.savez(content, features=np.zeros(3), labels=np.zeros(3))
    return content.getvalue()


def table_of_another() -> bytes:
    content = io.BytesIO()
    parquet.write_table(arrow.table({"features": [1.0]}), content)
    return content.getvalue()


class TestTarget:
    @pytest.mark.parametrize("name", ["features.csv", "features"])
    def test_another_suffix(self, run: Path, tmp_path: Path, name: str) -> None:
        with pytest.raises(UserError, match=rf"\.parquet or an \.npz file, found '.*{name}'"):
            embed(run, pictures(), tmp_path / name)

    def test_a_folder(self, run: Path, tmp_path: Path) -> None:
        (tmp_path / "f.npz").mkdir()
        for target in (tmp_path, tmp_path / "f.npz"):
            with pytest.raises(UserError, match="expected a file to write features to"):
                embed(run, pictures(), target)

    def test_a_file_in_place_of_its_folder(self, run: Path, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match="its folder cannot be made: file exists"):
            embed(run, pictures(), tmp_path / "file" / "f.npz")

    def test_the_images_are_never_overwritten(self, run: Path, tmp_path: Path) -> None:
        file = tmp_path / "images.npz"
        np.savez(file, images=pictures())
        before = file.read_bytes()
        with pytest.raises(UserError, match="holds the images themselves"):
            embed(run, str(file), tmp_path / "." / "images.npz")
        assert file.read_bytes() == before

    def test_an_old_file_is_replaced_only_by_a_whole_one(
        self, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        out = tmp_path / "f.npz"
        out.touch()  # an empty file has nothing to lose
        embed(run, pictures(), out)
        old = out.read_bytes()

        def break_off(handle: object, **arrays: object) -> None:
            raise OSError("no space")

        with monkeypatch.context() as patch:
            patch.setattr(np, "savez", break_off)
            with pytest.raises(UserError, match=f"cannot write features to '{out}': no space"):
                embed(run, pictures(), out)
        assert out.read_bytes() == old
        assert os.listdir(tmp_path) == ["f.npz"]
        embed(run, pictures(), out)
        with np.load(out) as read:
            assert read["features"].shape == (5, 6)

    @pytest.mark.parametrize("name", ["f.npz", "f.parquet"])
    def test_what_another_wrote_is_not_written_over(
        self, run: Path, tmp_path: Path, name: str
    ) -> None:
        out = tmp_path / name
        embed(run, pictures(), out)
        embed(run, pictures(), out)  # over features
        for content in (b"notes", arrays_of_another(), table_of_another()):
            out.write_bytes(content)
            with pytest.raises(UserError, match="is there already and holds no features"):
                embed(run, pictures(), out)
            assert out.read_bytes() == content

    def test_wrong_runs_data_and_devices(self, run: Path, tmp_path: Path) -> None:
        out = tmp_path / "f.npz"
        with pytest.raises(UserError, match="no such run or encoder file"):
            embed(tmp_path / "none", pictures(), out)
        with pytest.raises(UserError, match="no such folder"):
            embed(run, tmp_path / "none", out)
        with pytest.raises(UserError, match="has no splits"):
            embed(run, pictures(), out, split="test")
        with pytest.raises(UserError, match="unknown device 'gpu'"):
            embed(run, pictures(), out, device="gpu")
        assert not out.exists()


def test_a_network_of_the_user_s_own_is_brought_along(tmp_path: Path) -> None:
    encoder = small_encoder()
    encoder.architecture = {"name": "custom", "options": {}}
    file = encoder.save(tmp_path / "own.safetensors")
    with pytest.raises(UserError, match="bring it along"):
        embed(file, pictures(), tmp_path / "f.npz")
    embed(file, pictures(), tmp_path / "f.npz", backbone=small_encoder(1).backbone, device="cpu")
    with np.load(tmp_path / "f.npz") as read:
        np.testing.assert_array_equal(read["features"], encoder.transform(pictures()))


def test_an_unreadable_image_has_no_row_and_is_named(
    run: Path, photos: Path, tmp_path: Path
) -> None:
    for number in range(5, 15):
        Image.fromarray(pictures()[0]).save(photos / "cat" / f"{number}.png")
    (photos / "cat" / "broken.png").write_bytes(b"no image")
    listener = Listener()
    embed(run, photos, tmp_path / "f.npz", reporter=listener)
    with np.load(tmp_path / "f.npz") as read:
        assert "cat/broken.png" not in read["paths"]
        assert len(read["paths"]) == len(read["features"]) == 15
    assert any("warning: skipped 1 unreadable picture" in text for text in listener.said)
    assert any("cat/broken.png" in text for text in listener.said)
    assert listener.said[-1] == "15 images, 6 features each"


class TestCommand:
    app = typer.Typer()
    app.command("embed")(embed_command)

    def test_it_writes_the_file_and_tells_of_the_cache(
        self, run: Path, photos: Path, tmp_path: Path
    ) -> None:
        arguments = [str(run), str(photos), "--out", str(tmp_path / "f.npz"), "--device", "cpu"]
        for extra, cached in (([], None), ([], True), (["--no-cache"], False)):
            done = CliRunner().invoke(self.app, arguments + extra, env={"COLUMNS": "500"})
            assert done.exit_code == 0, done.output
            assert done.stdout == f"features in {tmp_path / 'f.npz'}\n"
            if cached is not None:
                assert ("taken from the cache" in done.stderr) == cached
        with np.load(tmp_path / "f.npz") as read:
            assert len(read["features"]) == 5

    def test_a_network_from_the_user_s_own_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        encoder = small_encoder()
        encoder.architecture = {"name": "custom", "options": {}}
        encoder.save(tmp_path / "own.safetensors")
        np.savez(tmp_path / "images.npz", images=pictures())
        (tmp_path / "own_network.py").write_text(
            "from eigenshot.networks import create_backbone\n"
            "def network():\n    return create_backbone('conv4', widths=[4, 4, 4, 6])\n"
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", list(sys.path))
        arguments = ["own.safetensors", "images.npz", "--out", "f.npz", "--device", "cpu"]
        arguments += ["--backbone", "own_network:network"]
        done = CliRunner().invoke(self.app, arguments)
        assert done.exit_code == 0, done.output
        with np.load("f.npz") as read:
            np.testing.assert_array_equal(read["features"], encoder.transform(pictures()))

    def test_a_precision_that_the_device_has_not(
        self, run: Path, photos: Path, tmp_path: Path
    ) -> None:
        arguments = [str(run), str(photos), "--out", str(tmp_path / "f.npz"), "--device", "cpu"]
        done = CliRunner().invoke(self.app, [*arguments, "--precision", "bf16"])
        assert "bf16 needs a GPU" in str(done.exception)
        assert not (tmp_path / "f.npz").exists()

    def test_out_is_needed(self, run: Path) -> None:
        assert CliRunner().invoke(self.app, [str(run), "glyphs"]).exit_code == 2


def test_features_do_not_go_among_the_images(run: Path, photos: Path, tmp_path: Path) -> None:
    for out in (photos / "features.parquet", photos / "cat" / "f.npz"):
        with pytest.raises(UserError, match="lies among the images"):
            embed(run, photos, out, device="cpu")
    assert not (photos / "features.parquet").exists()
    shards = tmp_path / "shards"
    small.write_hub(
        shards / "test.parquet", [small.picture(0), small.picture(1)], [0, -1], ["a", "b"]
    )
    with pytest.raises(UserError, match="lies among the images"):
        embed(run, shards, shards / "f.parquet", device="cpu")


def test_an_unknown_label_has_no_class(run: Path, tmp_path: Path) -> None:
    path = small.write_hub(
        tmp_path / "test.parquet", [small.picture(0), small.picture(1)], [0, -1], ["a", "b"]
    )
    out = embed(run, path, tmp_path / "f.parquet", device="cpu")
    table = pytest.importorskip("pyarrow.parquet").read_table(out)
    assert table.column("label").to_pylist() == [0, -1]
    assert table.column("class").to_pylist() == ["a", None]
