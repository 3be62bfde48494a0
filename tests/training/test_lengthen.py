"""Runs that are made longer: they equal those that were that long from their first step."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from eigenshot.cli import app
from eigenshot.config import Config
from eigenshot.errors import CorruptFileError, UserError
from eigenshot.estimator import DeepLaplacianEigenmaps
from eigenshot.tensorfile import read_tensors, write_tensors
from eigenshot.training.checkpoint import FORMAT
from eigenshot.training.lengthen import settings_for
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from tests.training.test_pretrain import TINY, Recorder, tiny

SHORT, LONG = 2, 4  # epochs, of five steps each
ON_ARRAYS: dict[str, Any] = {
    "backbone": "conv4",
    "batch_size": 16,
    "settings": {
        "optimizer.schedule": "trapezoid",
        "optimizer.warmup_epochs": 0,
        "projector.width": 16,
    },
}


def flat(epochs: int, **changes: Any) -> Config:
    """Settings whose rate stays until the last quarter of the run."""
    asked = {"optimizer__schedule": "trapezoid", "optimizer__warmup_epochs": 0.4, **changes}
    return tiny(training__epochs=epochs, **asked)


def train(config: Config, folder: Path, **options: Any) -> Recorder:
    recorder = options.pop("recorder", None) or Recorder()
    pretrain("glyphs", config, folder, device="cpu", reporter=recorder, **options)
    return recorder


def encoder_of(run: Path) -> bytes:
    return (run / "encoder.safetensors").read_bytes()


def metrics_of(run: Path) -> list[dict[str, float]]:
    """Without what a clock decides."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clock = ("seconds", "images_per_second")
    return [{k: v for k, v in record.items() if k not in clock} for record in records]


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "short"
    train(flat(SHORT), folder)
    return folder


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that was long from its first step."""
    folder = tmp_path_factory.mktemp("runs") / "long"
    train(flat(LONG), folder)
    return folder


def test_a_lengthened_run_equals_one_that_was_that_long_from_its_first_step(
    short: Path, long: Path, tmp_path: Path
) -> None:
    before = encoder_of(short)
    recorder = train(flat(LONG), tmp_path / "longer", lengthen=short)
    assert "going on from step 8 of 20" in recorder.notes
    assert any("4 epochs, 1.6 of which are done, in batches" in note for note in recorder.notes)
    assert encoder_of(tmp_path / "longer") == encoder_of(long)
    assert metrics_of(tmp_path / "longer") == metrics_of(long)
    assert encoder_of(short) == before
    summary = json.loads((tmp_path / "longer" / "summary.json").read_text())
    (history,) = summary["lengthened"]
    assert (history["epochs"], history["step"], history["otherwise"]) == (SHORT, 8, [])
    assert history["hardware"] == json.loads((short / "summary.json").read_text())["hardware"]
    assert "lengthened" not in json.loads((long / "summary.json").read_text())


def test_step_by_step_it_comes_to_the_same(short: Path, long: Path, tmp_path: Path) -> None:
    train(flat(3), tmp_path / "three", lengthen=short)
    train(flat(LONG), tmp_path / "four", lengthen=tmp_path / "three")
    assert encoder_of(tmp_path / "four") == encoder_of(long)
    summary = json.loads((tmp_path / "four" / "summary.json").read_text())
    assert [entry["epochs"] for entry in summary["lengthened"]] == [SHORT, 3]


def test_a_longer_stay_at_the_rate_is_another_way_to_more_epochs(
    short: Path, tmp_path: Path
) -> None:
    config = flat(SHORT, optimizer__cooldown=0.1)
    train(config, tmp_path / "longer", lengthen=short)
    train(config, tmp_path / "anew")
    assert encoder_of(tmp_path / "longer") == encoder_of(tmp_path / "anew")


@pytest.mark.parametrize("stop_at", [9, 15])
def test_interrupted_and_resumed_without_naming_the_shorter_run(
    short: Path, long: Path, tmp_path: Path, stop_at: int
) -> None:
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(flat(LONG), run, lengthen=short, recorder=Recorder(stop_at=stop_at))
    recorder = train(flat(LONG), run, resume=True)
    assert f"going on from step {stop_at} of 20" in recorder.notes
    assert encoder_of(run) == encoder_of(long)


def test_stopped_before_it_had_the_state_it_wants_the_shorter_run_again(
    short: Path, long: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(flat(LONG), run, lengthen=short, recorder=Recorder(stop_at=9))
    (run / "checkpoints" / "last.safetensors").unlink()
    with pytest.raises(UserError, match="name that run again with --lengthen"):
        train(flat(LONG), run, resume=True)
    train(flat(LONG), run, resume=True, lengthen=short)
    assert encoder_of(run) == encoder_of(long)


def test_a_kill_between_the_checkpoint_and_the_kept_state_loses_nothing(
    long: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(flat(SHORT), run, recorder=Recorder(stop_at=8))
    (run / "checkpoints" / "plateau.safetensors").unlink()
    train(flat(SHORT), run, resume=True)
    train(flat(LONG), tmp_path / "longer", lengthen=run)
    assert encoder_of(tmp_path / "longer") == encoder_of(long)


@pytest.mark.parametrize(
    "changes", [{"training__average": 0.9}, {"training__micro_batches": 2}, {"probe__kind": "knn"}]
)
def test_what_a_run_remembers_goes_along(tmp_path: Path, changes: dict[str, Any]) -> None:
    train(flat(SHORT, **changes), tmp_path / "short")
    train(flat(LONG, **changes), tmp_path / "longer", lengthen=tmp_path / "short")
    train(flat(LONG, **changes), tmp_path / "anew")
    assert encoder_of(tmp_path / "longer") == encoder_of(tmp_path / "anew")


def test_a_disk_that_is_full_is_told_and_what_is_there_stays(
    short: Path, long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("eigenshot.tensorfile.Content.write", refuse)
        with pytest.raises(UserError, match=r"cannot write to '.*run': no space left on"):
            train(flat(LONG), run, lengthen=short)
    train(flat(LONG), run, resume=True, lengthen=short)
    assert encoder_of(run) == encoder_of(long)


def test_what_it_tells_of_itself_may_be_damaged(short: Path, long: Path, tmp_path: Path) -> None:
    shutil.copytree(short, tmp_path / "short")
    (tmp_path / "short" / "summary.json").write_text("{")
    train(flat(LONG), tmp_path / "longer", lengthen=tmp_path / "short")
    assert encoder_of(tmp_path / "longer") == encoder_of(long)


def test_a_damaged_state_is_told_and_leaves_no_folder(short: Path, tmp_path: Path) -> None:
    shutil.copytree(short, tmp_path / "short")
    file = tmp_path / "short" / "checkpoints" / "plateau.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CorruptFileError, match=r"plateau\.safetensors' is no safetensors file"):
        train(flat(LONG), tmp_path / "longer", lengthen=tmp_path / "short")
    assert not (tmp_path / "longer").exists()


def test_the_best_state_goes_along_where_it_is_still_there(tmp_path: Path) -> None:
    probed = {"probe__kind": "knn"}
    best, plateau = (Path("checkpoints", f"{name}.safetensors") for name in ("best", "plateau"))
    train(flat(LONG, **probed), tmp_path / "short")
    # The state after 15 steps has seen its best after 10, which no later one surpasses; the file
    # has that, or what the shorter run came to in its fall.
    for kept_at in (10, 18):
        short, longer = tmp_path / f"short{kept_at}", tmp_path / f"longer{kept_at}"
        shutil.copytree(tmp_path / "short", short)
        by = read_tensors(short / plateau, kind=FORMAT)[1]["best"][2]
        for file, changes in ((best, {"step": kept_at}), (plateau, {"best": [1e9, 10, by]})):
            tensors, header = read_tensors(short / file, kind=FORMAT)
            write_tensors(short / file, tensors, {**header, **changes}, kind=FORMAT)
        train(flat(6, **probed), longer, lengthen=short)
        step = read_tensors(longer / best, kind=FORMAT)[1]["step"]
        assert step == 10 if kept_at == 10 else step > 15


def test_a_finished_one_whose_checkpoints_were_cleared_away_is_finished(
    short: Path, tmp_path: Path
) -> None:
    train(flat(LONG), tmp_path / "longer", lengthen=short)
    shutil.rmtree(tmp_path / "longer" / "checkpoints")
    for named in (short, None):
        recorder = train(flat(LONG), tmp_path / "longer", resume=True, lengthen=named)
        assert [note for note in recorder.notes if note.endswith("is finished already")]


def test_resume_in_a_new_folder_says_where_it_goes_on_and_nothing_else(
    short: Path, tmp_path: Path
) -> None:
    recorder = train(flat(LONG), tmp_path / "longer", lengthen=short, resume=True)
    assert "going on from step 8 of 20" in recorder.notes
    assert not any("afresh" in note for note in recorder.notes)


def test_once_begun_it_needs_the_shorter_run_no_longer(
    short: Path, long: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(flat(LONG), run, lengthen=short, recorder=Recorder(stop_at=9))
    gone = tmp_path / "gone"
    config = settings_for("glyphs", {"training.epochs": LONG}, lengthen=gone, begun=run)
    train(config, run, lengthen=gone, resume=True)
    assert encoder_of(run) == encoder_of(long)


def test_the_method_of_one_s_own_is_found_by_the_name_that_the_shorter_run_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "lengthen_mine.py").write_text(
        "from eigenshot.methods import DeepLaplacianEigenmapsMethod\n"
        "class Mine(DeepLaplacianEigenmapsMethod):\n"
        "    pass\n"
    )
    tiny_settings = [f"--set={key}={value}" for key, value in TINY.items() if "epochs" not in key]
    flat_rate = ["--set=optimizer.schedule=trapezoid", "--method=lengthen_mine:Mine"]
    for words in (
        ["--out=a", "--epochs=2", *tiny_settings, *flat_rate],
        ["--out=b", "--epochs=4", "--lengthen=a"],
    ):
        monkeypatch.setattr(sys, "path", [p for p in sys.path if p != str(tmp_path)])
        sys.modules.pop("lengthen_mine", None)
        result = CliRunner().invoke(app, ["pretrain", "glyphs", "--device=cpu", *words])
        assert result.exit_code == 0, result.output + repr(result.exception)


class TestSmall:
    """Half precision and no momentum, for states that travel."""

    def test_it_is_a_quarter_as_large_and_says_what_it_lacks(
        self, short: Path, long: Path, tmp_path: Path
    ) -> None:
        train(flat(SHORT, checkpoint__plateau="small"), tmp_path / "short")
        assert encoder_of(tmp_path / "short") == encoder_of(short)
        file = Path("checkpoints", "plateau.safetensors")
        tensors, header = read_tensors(tmp_path / "short" / file, kind=FORMAT)
        assert header["shrunk"]
        assert not any(name.startswith("optimizer.") for name in tensors)
        whole, _ = read_tensors(short / file, kind=FORMAT)
        weights = {name: value for name, value in whole.items() if name.startswith("method.")}
        assert {n for n in tensors if n.startswith("method.")} == set(weights)
        for name, value in weights.items():
            np.testing.assert_allclose(tensors[name], value, rtol=2**-11, atol=2**-24)
        sizes = [sum(v.numel() * v.element_size() for v in t.values()) for t in (tensors, whole)]
        assert sizes[0] < 0.32 * sizes[1]  # vectors, of which so small a network has many, stay

        recorder = train(flat(LONG), tmp_path / "longer", lengthen=tmp_path / "short")
        reason = "its weights had been rounded to half precision, and momentum begins anew"
        assert any(note.endswith(reason) for note in recorder.notes)
        summary = json.loads((tmp_path / "longer" / "summary.json").read_text())
        assert summary["lengthened"][0]["otherwise"] == [reason]
        assert encoder_of(tmp_path / "longer") != encoder_of(long)
        last, exact = (metrics_of(run)[-1]["loss"] for run in (tmp_path / "longer", long))
        assert last == pytest.approx(exact, rel=0.2)

    def test_off_keeps_nothing(self, tmp_path: Path) -> None:
        train(flat(SHORT, checkpoint__plateau="off"), tmp_path / "short")
        assert not (tmp_path / "short" / "checkpoints" / "plateau.safetensors").exists()
        with pytest.raises(UserError, match=r"its checkpoint\.plateau is off"):
            train(flat(LONG), tmp_path / "longer", lengthen=tmp_path / "short")


def test_the_estimator_goes_on_from_a_run_with_its_settings(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)
    DeepLaplacianEigenmaps(epochs=2, seed=3, out=tmp_path / "short", **ON_ARRAYS).fit(images)
    longer = DeepLaplacianEigenmaps(epochs=4, lengthen=tmp_path / "short").fit(images)
    anew = DeepLaplacianEigenmaps(epochs=4, seed=3, **ON_ARRAYS).fit(images)
    assert longer.summary_["steps"] == anew.summary_["steps"] == 8
    np.testing.assert_array_equal(longer.transform(images), anew.transform(images))
    with pytest.raises(UserError, match=r"training\.seed: 3 in the run, 4 asked"):
        DeepLaplacianEigenmaps(epochs=4, seed=4, lengthen=tmp_path / "short").fit(images)
