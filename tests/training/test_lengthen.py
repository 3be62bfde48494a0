"""Runs that are made longer: they equal those that were that long from their first step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eigenshot.config import Config
from eigenshot.errors import CorruptFileError, UserError
from eigenshot.estimator import DeepLaplacianEigenmaps
from eigenshot.tensorfile import read_tensors
from eigenshot.training.checkpoint import FORMAT
from eigenshot.training.lengthen import lengthened_config
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from tests.training.test_pretrain import Recorder, tiny

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
    assert any("4 epochs, 1.5 of which are done, in batches" in note for note in recorder.notes)
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


def test_a_damaged_state_is_told_and_leaves_no_folder(short: Path, tmp_path: Path) -> None:
    shutil.copytree(short, tmp_path / "short")
    file = tmp_path / "short" / "checkpoints" / "plateau.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CorruptFileError, match=r"plateau\.safetensors' is no safetensors file"):
        train(flat(LONG), tmp_path / "longer", lengthen=tmp_path / "short")
    assert not (tmp_path / "longer").exists()


class TestViewsThatGrow:
    STAGES = ((0.0, 16), (0.4, 20), (0.75, 24), (0.9, 28))

    def test_they_grow_when_they_did_and_in_the_fall_at_the_same_share_of_it(
        self, tmp_path: Path
    ) -> None:
        train(flat(SHORT, training__resolution=[list(s) for s in self.STAGES]), tmp_path / "short")
        config = lengthened_config(tmp_path / "short", {"training.epochs": LONG})
        assert config.training.resolution == ((0.0, 16), (0.2, 20), (0.75, 24), (0.9, 28))
        train(config, tmp_path / "longer", lengthen=tmp_path / "short")
        train(config, tmp_path / "anew")
        assert encoder_of(tmp_path / "longer") == encoder_of(tmp_path / "anew")

        shorter_fall = {"training.epochs": LONG, "optimizer.cooldown": 0.125}
        config = lengthened_config(tmp_path / "short", shorter_fall)
        assert config.training.resolution == ((0.0, 16), (0.2, 20), (0.875, 24), (0.95, 28))

        asked = {"training.epochs": LONG, "training.resolution": [[0, 16], [0.1, 20]]}
        config = lengthened_config(tmp_path / "short", asked)
        with pytest.raises(
            UserError, match=r"20 px from epoch 0\.8 on in the run, .* epoch 0\.4 on"
        ):
            train(config, tmp_path / "other", lengthen=tmp_path / "short")
        assert not (tmp_path / "other").exists()


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


class TestWhatIsTold:
    def test_a_method_that_goes_by_the_length_of_the_run(self, tmp_path: Path) -> None:
        target = {"method__name": "byol", "method__options__predictor_width": 16}
        for schedule, told in (("cosine", True), ("constant", False)):
            changes = {**target, "method__options__schedule": schedule}
            train(flat(SHORT, **changes), tmp_path / schedule)
            longer = tmp_path / f"{schedule}-longer"
            recorder = train(flat(LONG, **changes), longer, lengthen=tmp_path / schedule)
            reason = "the method goes by how far a run is"
            assert any(note.endswith(reason) for note in recorder.notes) == told

    def test_a_warm_up_that_did_not_fit(self, tmp_path: Path) -> None:
        changes = {"optimizer__warmup_epochs": 1.5}
        train(flat(SHORT, **changes), tmp_path / "short")
        recorder = train(flat(LONG, **changes), tmp_path / "longer", lengthen=tmp_path / "short")
        assert any(note.endswith("its warm-up was cut short") for note in recorder.notes)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"optimizer__lr": 0.5}, "optimizer.lr: 0.15 in the run, 0.5 asked"),
            ({"training__seed": 1}, "training.seed: 0 in the run, 1 asked"),
            ({"training__epochs": 1}, "its rate fell from epoch 1.5 on, and that of 1 epochs"),
            ({"training__epochs": SHORT}, "it has 2 epochs already: ask for more --epochs"),
            ({"optimizer__schedule": "cosine"}, "optimizer.schedule: 'trapezoid' in the run"),
        ],
    )
    def test_other_settings(
        self, short: Path, tmp_path: Path, changes: dict[str, Any], words: str
    ) -> None:
        with pytest.raises(UserError, match="cannot be lengthened so") as caught:
            train(flat(**{"epochs": LONG, **_named(changes)}), tmp_path / "longer", lengthen=short)
        assert words in str(caught.value)
        assert not (tmp_path / "longer").exists()

    def test_other_images(self, tmp_path: Path) -> None:
        images = np.random.default_rng(0).integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)
        DeepLaplacianEigenmaps(epochs=2, out=tmp_path / "short", **ON_ARRAYS).fit(images)
        longer = DeepLaplacianEigenmaps(
            epochs=4, lengthen=tmp_path / "short", out=tmp_path / "longer"
        )
        with pytest.raises(UserError, match="the images: 32 of 'array' in the run, 32 of 'array'"):
            longer.fit(255 - images)
        assert not (tmp_path / "longer").exists()

    def test_weights_from_elsewhere_beside_it(self, short: Path, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="leave out --init"):
            train(flat(LONG), tmp_path / "longer", lengthen=short, initial=short)

    def test_what_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="holds no run of eigenshot that could be lengthened"):
            lengthened_config(tmp_path, {})

    def test_a_cosine(self, tmp_path: Path) -> None:
        train(tiny(), tmp_path / "short")
        with pytest.raises(UserError, match="its rate falls along a cosine"):
            lengthened_config(tmp_path / "short", {"training.epochs": LONG})

    def test_one_that_has_not_come_so_far(self, tmp_path: Path) -> None:
        with pytest.raises(Interrupted):
            train(flat(SHORT), tmp_path / "short", recorder=Recorder(stop_at=4))
        with pytest.raises(UserError, match="the state from before its rate falls, is not there y"):
            lengthened_config(tmp_path / "short", {"training.epochs": LONG})

    def test_more_epochs_in_its_own_folder_and_how_to_have_them(self, short: Path) -> None:
        with pytest.raises(UserError, match=r"--lengthen .* goes on from it for more --ep"):
            train(flat(LONG), short, resume=True)

    def test_a_recipe_beside_it(self, short: Path) -> None:
        with pytest.raises(UserError, match="leave out the recipe"):
            DeepLaplacianEigenmaps(recipe="glyphs", lengthen=short).fit("glyphs")

    def test_its_own_folder(self, short: Path) -> None:
        with pytest.raises(UserError, match="choose another --out"):
            train(flat(LONG), short, lengthen=short)


def _named(changes: dict[str, Any]) -> dict[str, Any]:
    """Epochs by the name that `flat` has for them."""
    return {"epochs" if key == "training__epochs" else key: v for key, v in changes.items()}


def test_the_estimator_goes_on_from_a_run_with_its_settings(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (32, 16, 16, 3), dtype=np.uint8)
    DeepLaplacianEigenmaps(epochs=2, out=tmp_path / "short", **ON_ARRAYS).fit(images)
    longer = DeepLaplacianEigenmaps(epochs=4, lengthen=tmp_path / "short").fit(images)
    anew = DeepLaplacianEigenmaps(epochs=4, **ON_ARRAYS).fit(images)
    assert longer.summary_["steps"] == anew.summary_["steps"] == 8
    np.testing.assert_array_equal(longer.transform(images), anew.transform(images))
