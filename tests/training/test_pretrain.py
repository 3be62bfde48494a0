"""A run as a whole: what it leaves behind, how it stops, how it goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from eigenshot.config import Config
from eigenshot.configfile import load_config
from eigenshot.encoder import load_encoder
from eigenshot.errors import CorruptFileError, TrainingDiverged, UserError
from eigenshot.methods import Method
from eigenshot.networks import Backbone
from eigenshot.reporter import Reporter
from eigenshot.tensorfile import read_tensors
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain

TINY = {
    "data.per_class": 1,
    "backbone.options.widths": [4, 4, 4, 8],
    "projector.width": 16,
    "training.epochs": 2,
    "training.batch_size": 128,
}


def tiny(**changes: Any) -> Config:
    return load_config(
        "glyphs", {**TINY, **{key.replace("__", "."): v for key, v in changes.items()}}
    )


TRAIN_CLASSES = 746


class Recorder(Reporter):
    """Keeps what a person would have seen, and can interrupt a run."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []
        self.stop_at = stop_at
        self.total = 0

    def note(self, text: str) -> None:
        self.notes.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def begin(self, total_steps: int, step: int) -> None:
        self.total = total_steps

    def due(self) -> bool:
        return self.stop_at is not None

    def advance(self, step: int, images_per_second: float, terms: dict[str, float]) -> None:
        if step == self.stop_at:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    pretrain("glyphs", tiny(), folder, device="cpu")
    return folder


def test_a_run_folder_holds_what_it_should(unbroken: Path) -> None:
    summary = json.loads((unbroken / "summary.json").read_text())
    steps = 2 * (TRAIN_CLASSES // 128)
    assert summary["steps"] == steps
    assert {"seconds", "images_per_second", "versions", "commit", "seed"} <= set(summary)
    metrics = [json.loads(line) for line in (unbroken / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in metrics] == [1, 2]
    wanted = {"loss", "trace", "decorrelation", "lr", "z_std_mean", "effective_rank"}
    assert wanted | {"alignment", "uniformity", "relative_step"} <= set(metrics[0])
    assert (unbroken / "checkpoints" / "last.safetensors").is_file()
    assert (unbroken / "checkpoints" / "best.safetensors").is_file()
    assert load_config(str(unbroken / "config.toml")).training.epochs == 2
    assert not list(unbroken.rglob(".*")), "no temporary file is left"


def test_learning_lowers_the_loss(tmp_path: Path) -> None:
    pretrain("glyphs", tiny(training__epochs=6), tmp_path / "run", device="cpu")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert losses[-1] < 0.8 * losses[0]


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(
    unbroken: Path, tmp_path: Path
) -> None:
    torch.manual_seed(123)  # the caller's generator must not matter
    before = torch.random.get_rng_state()
    pretrain("glyphs", tiny(), tmp_path / "same", device="cpu")
    assert torch.equal(before, torch.random.get_rng_state()), "nor be touched"
    pretrain("glyphs", tiny(training__seed=1), tmp_path / "other", device="cpu")
    content = (unbroken / "encoder.safetensors").read_bytes()
    assert (tmp_path / "same" / "encoder.safetensors").read_bytes() == content
    assert (tmp_path / "other" / "encoder.safetensors").read_bytes() != content


@pytest.mark.parametrize("stop_at", [1, 4, 5, 6, 9])
def test_interrupted_anywhere_and_resumed_it_is_the_same(
    unbroken: Path, tmp_path: Path, stop_at: int
) -> None:
    """Five steps an epoch: before, at and after the end of one."""
    run = tmp_path / "run"
    with pytest.raises(Interrupted):
        pretrain("glyphs", tiny(), run, device="cpu", reporter=Recorder(stop_at=stop_at))
    assert not (run / "encoder.safetensors").exists()
    recorder = Recorder()
    pretrain("glyphs", tiny(), run, resume=True, device="cpu", reporter=recorder)
    assert f"going on from step {stop_at} of 10" in recorder.notes
    for name in ("encoder.safetensors",):
        assert (run / name).read_bytes() == (unbroken / name).read_bytes()
    assert _comparable(run) == _comparable(unbroken)


def _comparable(run: Path) -> list[dict[str, float]]:
    """Metrics without what a clock decides."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("seconds")
        record.pop("images_per_second")
    return records


class TestResume:
    def test_without_a_checkpoint_it_starts_afresh_and_says_so(
        self, unbroken: Path, tmp_path: Path
    ) -> None:
        recorder = Recorder()
        run = tmp_path / "new"
        pretrain("glyphs", tiny(), run, resume=True, device="cpu", reporter=recorder)
        assert any("starting afresh" in note for note in recorder.notes)
        content = (run / "encoder.safetensors").read_bytes()
        assert content == (unbroken / "encoder.safetensors").read_bytes()

    def test_a_finished_run_is_left_alone(self, unbroken: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")}
        recorder = Recorder()
        run = pretrain("glyphs", tiny(), unbroken, resume=True, device="cpu", reporter=recorder)
        assert any("finished already" in note for note in recorder.notes)
        assert {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")} == before
        stored = load_encoder(unbroken)
        images = np.zeros((3, 28, 28), np.uint8)
        np.testing.assert_array_equal(run.encoder.transform(images), stored.transform(images))

    def test_other_settings_are_listed(self, unbroken: Path) -> None:
        changed = tiny(optimizer__lr=0.2, training__epochs=3)
        with pytest.raises(UserError) as caught:
            pretrain("glyphs", changed, unbroken, resume=True, device="cpu")
        message = str(caught.value)
        assert "training.epochs: 2 in the run, 3 asked" in message
        assert "0.2 asked" in message

    def test_without_its_checkpoint_a_finished_run_is_still_one(
        self, unbroken: Path, tmp_path: Path
    ) -> None:
        run = shutil.copytree(unbroken, tmp_path / "run")
        shutil.rmtree(run / "checkpoints")
        content = (run / "encoder.safetensors").read_bytes()
        with pytest.raises(UserError, match=r"training\.seed: 0 in the run, 7 asked"):
            pretrain("glyphs", tiny(training__seed=7), run, resume=True, device="cpu")
        pretrain("glyphs", tiny(), run, resume=True, device="cpu")
        assert (run / "encoder.safetensors").read_bytes() == content

    def test_a_finished_run_of_a_gpu_is_one_on_a_cpu_too(
        self, unbroken: Path, tmp_path: Path
    ) -> None:
        run = shutil.copytree(unbroken, tmp_path / "run")
        text = (run / "config.toml").read_text()
        assert 'precision = "float32"' in text
        (run / "config.toml").write_text(text.replace('"float32"', '"bf16"'))
        content = (run / "encoder.safetensors").read_bytes()
        pretrain("glyphs", tiny(), run, resume=True, device="cpu")
        assert (run / "encoder.safetensors").read_bytes() == content
        (run / "encoder.safetensors").unlink()  # then there is work to do, which a CPU cannot
        with pytest.raises(UserError, match="bf16 needs a GPU"):
            pretrain("glyphs", tiny(), run, resume=True, device="cpu")

    def test_a_fresh_start_leaves_nothing_of_an_older_run(
        self, unbroken: Path, tmp_path: Path
    ) -> None:
        run = shutil.copytree(unbroken, tmp_path / "run")
        (run / "config.toml").unlink()  # as if killed before it was written
        (run / "checkpoints" / "last.safetensors").unlink()
        other, recorder = tiny(training__seed=9), Recorder(stop_at=2)
        with pytest.raises(Interrupted):
            pretrain("glyphs", other, run, resume=True, device="cpu", reporter=recorder)
        assert not (run / "encoder.safetensors").exists()
        assert not (run / "summary.json").exists()

    def test_a_setting_beside_auto_is_not_ignored(self, tmp_path: Path) -> None:
        images = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 3), dtype=np.uint8)
        small = {"training.epochs": 1, "projector.width": 8}
        run = tmp_path / "run"
        pretrain(images, load_config("folder", small), run, device="cpu")
        pretrain(images, load_config("folder", small), run, resume=True, device="cpu")
        other = load_config("folder", {**small, "backbone.options.widths": [8, 8, 8, 16]})
        with pytest.raises(UserError, match=r"backbone\.options\.widths: .* in the run"):
            pretrain(images, other, run, resume=True, device="cpu")

    def test_the_interval_of_checkpoints_may_change_and_leaves_no_trace(
        self, unbroken: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        with pytest.raises(Interrupted):
            pretrain("glyphs", tiny(), run, device="cpu", reporter=Recorder(stop_at=3))
        changed = tiny(checkpoint__every_steps=2, logging__tensorboard=True)
        pretrain("glyphs", changed, run, resume=True, device="cpu")
        content = (run / "encoder.safetensors").read_bytes()
        assert content == (unbroken / "encoder.safetensors").read_bytes()

    def test_the_best_checkpoint_survives_a_kill_before_it_was_linked(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = tmp_path / "run"
        with monkeypatch.context() as patch:
            patch.setattr("eigenshot.training.keeper.link_or_copy", _die)
            with pytest.raises(KeyboardInterrupt):
                pretrain("glyphs", tiny(probe__kind="knn"), run, device="cpu")
        assert not (run / "checkpoints" / "best.safetensors").exists()
        pretrain("glyphs", tiny(probe__kind="knn"), run, resume=True, device="cpu")
        _, header = read_tensors(run / "checkpoints" / "best.safetensors", kind=None)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        best = max(records, key=lambda record: record["probe_accuracy"])
        assert header["step"] == best["step"]

    def test_other_images_are_noticed(self, unbroken: Path) -> None:
        images = np.zeros((130, 28, 28), np.uint8)
        config = load_config(str(unbroken / "config.toml"))
        with pytest.raises(UserError, match=r"the images: 746 of 'glyphs .train.' in the run, 130"):
            pretrain(images, config, unbroken, resume=True, device="cpu")

    def test_a_folder_with_a_run_is_not_overwritten(self, unbroken: Path) -> None:
        with pytest.raises(UserError, match="already holds a finished run; choose another --out"):
            pretrain("glyphs", tiny(), unbroken, device="cpu")

    def test_a_folder_of_other_things_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "config.toml").write_text("their = 1")
        (tmp_path / "data.json").write_text("{}")
        for resume in (False, True):
            with pytest.raises(UserError, match="is not empty and holds no run of eigenshot"):
                pretrain("glyphs", tiny(), tmp_path, resume=resume, device="cpu")
        assert (tmp_path / "config.toml").read_text() == "their = 1"

    def test_an_unfinished_run_is_not_overwritten(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with pytest.raises(Interrupted):
            pretrain("glyphs", tiny(), run, device="cpu", reporter=Recorder(stop_at=2))
        with pytest.raises(UserError, match="holds an unfinished run; go on with it by --resume"):
            pretrain("glyphs", tiny(), run, device="cpu")

    def test_mistakes_are_found_before_images_are_read(self, tmp_path: Path) -> None:
        """The folder does not even exist: the wrong name is said first."""
        for key, value in (("backbone.name", "resnt12"), ("method.options.gama", 1.0)):
            config = load_config("folder", {key: value})
            with pytest.raises(UserError, match="did you mean"):
                pretrain(tmp_path / "no photos", config, tmp_path / "run", device="cpu")

    def test_out_is_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "file"
        file.touch()
        with pytest.raises(UserError, match="is no folder; choose another --out"):
            pretrain("glyphs", tiny(), file, device="cpu")


def _die(*arguments: object) -> None:
    raise KeyboardInterrupt


class TestDamage:
    """A checkpoint that is not ours, or no longer whole, is said to be so and never unpickled."""

    @pytest.fixture
    def stopped(self, tmp_path: Path) -> Path:
        run = tmp_path / "run"
        with pytest.raises(Interrupted):
            pretrain("glyphs", tiny(), run, device="cpu", reporter=Recorder(stop_at=2))
        return run

    def _resume(self, run: Path) -> None:
        pretrain("glyphs", tiny(), run, resume=True, device="cpu")

    def test_without_its_settings_a_run_is_not_begun_again(self, stopped: Path) -> None:
        (stopped / "config.toml").unlink()
        kept = (stopped / "checkpoints" / "last.safetensors").read_bytes()
        with pytest.raises(UserError, match=r"config.toml' is missing"):
            self._resume(stopped)
        assert (stopped / "checkpoints" / "last.safetensors").read_bytes() == kept

    def test_truncated(self, stopped: Path) -> None:
        file = stopped / "checkpoints" / "last.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(CorruptFileError, match="is no safetensors file, or a damaged one"):
            self._resume(stopped)

    def test_one_bit_changed(self, stopped: Path) -> None:
        file = stopped / "checkpoints" / "last.safetensors"
        content = bytearray(file.read_bytes())
        content[-50] ^= 1
        file.write_bytes(content)
        with pytest.raises(CorruptFileError, match="does not match its checksum"):
            self._resume(stopped)

    def test_a_pickle_is_never_run(self, stopped: Path, tmp_path: Path) -> None:
        class Trap:
            def __reduce__(self) -> tuple[Any, ...]:
                return (Path.touch, (tmp_path / "sprung",))

        torch.save(Trap(), stopped / "checkpoints" / "last.safetensors")
        with pytest.raises(CorruptFileError, match="no safetensors file"):
            self._resume(stopped)
        assert not (tmp_path / "sprung").exists()

    def test_an_encoder_in_its_place(self, stopped: Path, unbroken: Path) -> None:
        content = (unbroken / "encoder.safetensors").read_bytes()
        (stopped / "checkpoints" / "last.safetensors").write_bytes(content)
        with pytest.raises(CorruptFileError, match="is an eigenshot-encoder"):
            self._resume(stopped)

    def test_another_program_s_safetensors(self, stopped: Path) -> None:
        from safetensors.torch import save_file

        save_file({"x": torch.zeros(2)}, stopped / "checkpoints" / "last.safetensors")
        with pytest.raises(CorruptFileError, match="written by another program"):
            self._resume(stopped)

    def test_a_config_that_is_no_toml(self, stopped: Path) -> None:
        (stopped / "config.toml").write_text("[[[")
        with pytest.raises(CorruptFileError, match=r"cannot read '.*config.toml'"):
            self._resume(stopped)


class Exploding(Method):
    """Turns to nan at its seventh step."""

    calls = 0

    def forward(self, view_a: Tensor, view_b: Tensor) -> dict[str, Tensor]:
        type(self).calls += 1
        loss = (self.embed(view_a) - self.embed(view_b)).square().mean()
        return {"loss": loss * (float("nan") if type(self).calls >= 7 + 4 else 1.0)}


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    Exploding.calls = 0
    config = load_config(
        "glyphs",
        {
            **TINY,
            "method.name": "tests.training.test_pretrain:Exploding",
            "method.options": {},
            "checkpoint.every_steps": 2,
        },
    )
    with pytest.raises(TrainingDiverged, match="no longer finite") as caught:
        pretrain("glyphs", config, tmp_path / "run", device="cpu")
    tensors, header = read_tensors(
        tmp_path / "run" / "checkpoints" / "last.safetensors", kind="eigenshot-checkpoint"
    )
    assert header["step"] == 6
    assert "the last good checkpoint stands in" in str(caught.value)
    assert all(bool(torch.isfinite(t).all()) for t in tensors.values() if t.is_floating_point())


class TestProbe:
    @pytest.mark.parametrize("kind", ["knn", "fewshot"])
    def test_it_is_logged_and_changes_nothing(
        self, unbroken: Path, tmp_path: Path, kind: str
    ) -> None:
        config = tiny(probe__kind=kind, probe__every=2, probe__episodes=10, probe__max_images=2000)
        pretrain("glyphs", config, tmp_path / "run", device="cpu")
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        first, second = (json.loads(line) for line in lines)
        assert "probe_accuracy" not in first
        assert 0 < second["probe_accuracy"] <= 100
        assert 0 < second["interclass_transition"] <= 1
        probed = (tmp_path / "run" / "encoder.safetensors").read_bytes()
        assert probed == (unbroken / "encoder.safetensors").read_bytes()

    def test_it_needs_labels(self, tmp_path: Path) -> None:
        images = np.zeros((130, 28, 28), np.uint8)
        with pytest.raises(UserError, match="the probe needs labelled images"):
            pretrain(images, tiny(probe__kind="knn"), tmp_path / "run", device="cpu")

    def test_images_that_are_nowhere_are_told_before_any_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr("eigenshot.training.pretrain.load_source")
        config = tiny(probe__kind="knn", probe__data=str(tmp_path / "nowhere"))
        with pytest.raises(UserError, match="nowhere' is neither a folder or file nor a benchmark"):
            pretrain("glyphs", config, tmp_path / "run", device="cpu")
        monkeypatch.undo()
        unused = tiny(probe__kind="none", probe__data=str(tmp_path / "nowhere"))
        assert pretrain("glyphs", unused, tmp_path / "run", device="cpu").summary["steps"]

    def test_what_cannot_be_probed_is_refused_before_training(self, tmp_path: Path) -> None:
        labels = np.array([0] * 9 + [1])
        np.savez(tmp_path / "val.npz", images=np.zeros((10, 28, 28), np.uint8), labels=labels)
        config = tiny(probe__kind="fewshot", probe__data=str(tmp_path / "val.npz"))
        with pytest.raises(UserError, match="class '1' has 1 images, but 1 shots"):
            pretrain("glyphs", config, tmp_path / "run", device="cpu")
        assert not (tmp_path / "run").exists()


def test_tensorboard_when_asked(tmp_path: Path) -> None:
    pretrain("glyphs", tiny(logging__tensorboard=True), tmp_path / "run", device="cpu")
    assert list((tmp_path / "run" / "tensorboard").glob("events.out.*"))


def test_a_collapse_is_warned_of(tmp_path: Path) -> None:
    config = tiny(
        method__options={"decorrelate": "none", "mixup": "none"},
        training__epochs=12,
        optimizer__lr=0.2,
    )
    recorder = Recorder()
    pretrain("glyphs", config, tmp_path / "run", device="cpu", reporter=recorder)
    assert any("has collapsed" in text for text in recorder.warnings)


class Plain(nn.Module):
    """A user's network without stages."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, 10), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_no_path_is_inside_the_encoder(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "val.npz", images=np.zeros((40, 28, 28), np.uint8), labels=np.arange(40) % 4
    )
    config = tiny(probe__kind="knn", probe__data=str(tmp_path / "val.npz"), training__epochs=1)
    pretrain("glyphs", config, tmp_path / "run", device="cpu")
    assert str(tmp_path).encode() not in (tmp_path / "run" / "encoder.safetensors").read_bytes()


def test_few_steps_are_no_collapse(tmp_path: Path) -> None:
    """Running statistics are stale then; the embedding itself is not to blame."""
    images = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), dtype=np.uint8)
    recorder = Recorder()
    config = load_config("folder", {"training.epochs": 1, "training.batch_size": 32})
    run = pretrain(images, config, tmp_path / "run", device="cpu", reporter=recorder)
    assert recorder.warnings == []
    assert run.summary["final"]["z_std_mean"] == pytest.approx(1, abs=1e-3)


def test_tensorboard_keeps_every_epoch_through_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = tiny(logging__tensorboard=True, training__epochs=3)
    with pytest.raises(Interrupted):
        pretrain("glyphs", config, tmp_path / "run", device="cpu", reporter=Recorder(stop_at=5))
    pretrain("glyphs", config, tmp_path / "run", resume=True, device="cpu")
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("loss")] == [5, 10, 15]


def test_any_module_is_a_backbone(tmp_path: Path) -> None:
    run = pretrain("glyphs", tiny(), tmp_path / "run", backbone=Plain(), device="cpu")
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)
    with pytest.raises(UserError, match="bring it along: backbone=module in Python"):
        load_encoder(tmp_path / "run")
    again = load_encoder(tmp_path / "run", backbone=Plain())
    np.testing.assert_array_equal(run.encoder.transform(images), again.transform(images))


def test_a_backbone_by_name_is_trained_loaded_and_started_from(tmp_path: Path) -> None:
    """It takes 28×28 only, so it must be tried on the images' own size."""
    name = "tests.training.test_pretrain:Plain"
    config = tiny(**{"backbone.name": name, "backbone.options": {}, "training.epochs": 1})
    run = pretrain("glyphs", config, tmp_path / "run", device="cpu")
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)
    again = load_encoder(tmp_path / "run", backbone=name)
    np.testing.assert_array_equal(run.encoder.transform(images), again.transform(images))
    torch.save(Plain().state_dict(), tmp_path / "theirs.pt")
    pretrain("glyphs", config, tmp_path / "b", initial=tmp_path / "theirs.pt", device="cpu")


class TestInit:
    def test_from_an_encoder_and_from_a_state_dict(self, unbroken: Path, tmp_path: Path) -> None:
        frozen = tiny(optimizer__lr=0.0, optimizer__weight_decay=0.0, training__epochs=1)
        weights, _ = read_tensors(unbroken / "encoder.safetensors", kind=None)
        torch.save(weights, tmp_path / "weights.pt")
        checkpoint = unbroken / "checkpoints" / "best.safetensors"
        for name, file in (("a", unbroken), ("b", tmp_path / "weights.pt"), ("c", checkpoint)):
            pretrain("glyphs", frozen, tmp_path / name, initial=file, device="cpu")
            found, _ = read_tensors(tmp_path / name / "encoder.safetensors", kind=None)
            for key, value in weights.items():
                if key.endswith(("weight", "bias")):
                    assert torch.equal(found[key], value), key

    def test_what_does_not_fit_is_said(self, unbroken: Path, tmp_path: Path) -> None:
        wide = load_config("glyphs", {**TINY, "backbone.options.widths": [4, 4, 4, 12]})
        with pytest.raises(UserError, match=r"do not fit this backbone: .* of another shape"):
            pretrain("glyphs", wide, tmp_path / "run", initial=unbroken, device="cpu")
        with pytest.raises(UserError, match="no such run or encoder file"):
            pretrain("glyphs", tiny(), tmp_path / "run", initial=tmp_path / "none", device="cpu")
        (tmp_path / "junk.pt").write_bytes(b"junk")
        with pytest.raises(UserError, match="cannot be read as weights"):
            pretrain("glyphs", tiny(), tmp_path / "r", initial=tmp_path / "junk.pt", device="cpu")


class TestBadInput:
    def test_settings_of_drawings_do_nothing_for_other_images(self, tmp_path: Path) -> None:
        images = np.zeros((20, 28, 28), np.uint8)
        said = {}
        for number in (7, 20):  # of which 20 is the default
            recorder, config = Recorder(), tiny(data__per_class=number)
            with pytest.raises(UserError, match="fewer than one batch"):
                pretrain(images, config, tmp_path / "run", device="cpu", reporter=recorder)
            said[number] = " ".join(recorder.notes)
        assert "data.per_class=7: of use for characters that are drawn, of none here" in said[7]
        assert "per_class" not in said[20]

    def test_fewer_images_than_a_batch(self, tmp_path: Path) -> None:
        images = np.zeros((20, 28, 28), np.uint8)
        with pytest.raises(UserError, match="20 images, fewer than one batch of 128; use --batch"):
            pretrain(images, tiny(), tmp_path / "run", device="cpu")

    def test_images_smaller_than_the_network_needs(self, tmp_path: Path) -> None:
        images = np.zeros((200, 8, 8), np.uint8)
        config = tiny(data__image_size=8)
        with pytest.raises(UserError, match=r"8×8 are smaller than conv4 needs .16×16.; enlarge"):
            pretrain(images, config, tmp_path / "run", device="cpu")

    def test_nothing_is_left_behind_by_a_refusal(self, tmp_path: Path) -> None:
        with pytest.raises(UserError):
            pretrain(np.zeros((20, 28, 28), np.uint8), tiny(), tmp_path / "run", device="cpu")
        assert not (tmp_path / "run").exists()

    def test_unknown_device(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="unknown device 'tpu'; known: auto, cpu, cuda"):
            pretrain("glyphs", tiny(), tmp_path / "run", device="tpu")


def test_a_method_of_no_base_class_works(tmp_path: Path) -> None:
    config = load_config(
        "glyphs",
        {
            **TINY,
            "method.name": "tests.training.test_pretrain:Bare",
            "method.options": {"weight": 2},
        },
    )
    run = pretrain("glyphs", config, tmp_path / "run", device="cpu")
    assert run.summary["final"]["loss"] >= 0


class Bare(nn.Module):
    """Only what the loop asks for: a backbone and a forward."""

    def __init__(self, backbone: Backbone, projector: nn.Module, weight: float = 1.0) -> None:
        super().__init__()
        self.backbone = backbone
        self.weight = weight

    def forward(self, view_a: Tensor, view_b: Tensor) -> dict[str, Tensor]:
        distance = (self.backbone(view_a) - self.backbone(view_b)).square().mean()
        return {"loss": self.weight * distance}


def test_what_a_first_step_refuses_leaves_no_folder(tmp_path: Path) -> None:
    small = {"projector__out": 64, "training__batch_size": 32}
    with pytest.raises(UserError, match="more samples"):
        pretrain("glyphs", tiny(method__name="w-mse", **small), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run" / "config.toml").exists()
    run = pretrain("glyphs", tiny(method__name="w-mse", projector__out=8), tmp_path / "run")
    assert run.summary["method"] == "w-mse"


def test_the_terms_keep_their_order_when_a_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        pretrain("glyphs", tiny(), tmp_path / "run", device="cpu", reporter=Recorder(stop_at=3))
    pretrain("glyphs", tiny(), tmp_path / "run", device="cpu", resume=True)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    for line in lines:
        names = [name for name in json.loads(line) if name in ("loss", "trace", "decorrelation")]
        assert names == ["loss", "trace", "decorrelation"]
