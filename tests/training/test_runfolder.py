"""What a run's folder knows of the run, and what it makes of files that are not the run's."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from eigenshot.errors import CorruptFileError, UserError
from eigenshot.tensorfile import read_tensors, write_tensors
from eigenshot.training.checkpoint import FORMAT
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from eigenshot.training.runfolder import RunFolder
from tests.training.test_pretrain import Recorder, tiny

LAST = Path("checkpoints", "last.safetensors")


def interrupted(run: Path, stop_at: int = 3, **changes: Any) -> Path:
    with pytest.raises(Interrupted):
        pretrain("glyphs", tiny(**changes), run, device="cpu", reporter=Recorder(stop_at=stop_at))
    return run


def go_on(run: Path, **changes: Any) -> dict[str, Any]:
    return pretrain("glyphs", tiny(**changes), run, device="cpu", resume=True).summary


class TestWhoseState:
    def test_that_of_another_run_is_refused(self, tmp_path: Path) -> None:
        """Of another seed, and else the same."""
        run = interrupted(tmp_path / "run")
        other = interrupted(tmp_path / "other", training__seed=1)
        shutil.copyfile(other / LAST, run / LAST)
        with pytest.raises(CorruptFileError, match="is the state of another run; put the"):
            go_on(run)

    def test_an_equal_run_is_the_same_run(self, tmp_path: Path) -> None:
        run, twin = (interrupted(tmp_path / name) for name in ("run", "twin"))
        shutil.copyfile(twin / LAST, run / LAST)
        go_on(run)
        go_on(twin)
        encoders = [(folder / "encoder.safetensors").read_bytes() for folder in (run, twin)]
        assert encoders[0] == encoders[1]

    def test_states_and_folders_without_a_mark_go_on(self, tmp_path: Path) -> None:
        run = interrupted(tmp_path / "run")
        tensors, header = read_tensors(run / LAST, kind=FORMAT)
        assert header.pop("run") == RunFolder(run).mark
        write_tensors(run / LAST, tensors, header, kind=FORMAT)
        interrupted_again = tmp_path / "again"
        shutil.copytree(run, interrupted_again)
        go_on(run)
        data = json.loads((interrupted_again / "data.json").read_text())
        del data["run"]
        (interrupted_again / "data.json").write_text(json.dumps(data))
        go_on(interrupted_again)

    def test_one_beyond_the_end_is_refused(self, tmp_path: Path) -> None:
        run = interrupted(tmp_path / "run")
        tensors, header = read_tensors(run / LAST, kind=FORMAT)
        write_tensors(run / LAST, tensors, {**header, "step": 11}, kind=FORMAT)
        with pytest.raises(CorruptFileError, match="after 11 steps, where the run has 10"):
            go_on(run)
        assert not (run / "encoder.safetensors").exists()


class TestSessions:
    def test_what_a_run_was_made_with_is_kept_from_its_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EIGENSHOT_COMMIT", "aaaa")
        run = interrupted(tmp_path / "run")
        monkeypatch.setenv("EIGENSHOT_COMMIT", "bbbb")
        summary = go_on(run)
        assert summary["commit"] == "bbbb"
        assert [session["commit"] for session in summary["sessions"]] == ["aaaa", "bbbb"]

    def test_one_session_is_told_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("EIGENSHOT_COMMIT", "aaaa")
        summary = go_on(interrupted(tmp_path / "run"))
        assert "sessions" not in summary
        assert {"commit", "hardware", "versions"} <= summary.keys()


class TestMetrics:
    @pytest.mark.parametrize("line", ['{"loss": 1.0}', "[1]", "7", '{"step": 5, "epo', "\udcff"])
    def test_they_end_at_a_line_that_is_no_record(self, line: str, tmp_path: Path) -> None:
        run = interrupted(tmp_path / "run", stop_at=7)
        file = run / "metrics.jsonl"
        first = file.read_text()
        file.write_bytes(first.encode() + line.encode(errors="surrogateescape") + b"\n")
        assert [record["epoch"] for record in RunFolder(run).metrics()] == [1]
        go_on(run)
        assert file.read_text().startswith(first)
        assert [record["epoch"] for record in RunFolder(run).metrics()] == [1, 2]

    def test_a_full_disk_is_told_with_what_stands(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, opened = interrupted(tmp_path / "run"), Path.open

        def full(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if path.name == "metrics.jsonl" and mode == "a":
                raise OSError(errno.ENOSPC, "No space left on device")
            return opened(path, mode, *arguments, **options)

        words = "no space left on device; what was saved last stands, and --resume"
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", full)
            with pytest.raises(UserError, match=words):
                go_on(run)
        go_on(run)


class TestInitialWeights:
    def test_what_is_otherwise_is_said(self, tmp_path: Path) -> None:
        begun = pretrain("glyphs", tiny(training__epochs=1), tmp_path / "begun").folder
        with pytest.raises(Interrupted):
            pretrain(
                "glyphs",
                tiny(),
                tmp_path / "run",
                initial=begun,
                device="cpu",
                reporter=Recorder(stop_at=3),
            )
        with pytest.raises(UserError, match="began with weights, which are to be named again"):
            go_on(tmp_path / "run")
        plain = interrupted(tmp_path / "plain")
        with pytest.raises(UserError, match="--init: the run had none"):
            pretrain("glyphs", tiny(), plain, initial=begun, device="cpu", resume=True)


class TestBoard:
    def steps(self, run: Path) -> list[int]:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        board = EventAccumulator(str(run / "tensorboard"))
        board.Reload()
        return [event.step for event in board.Scalars("loss")]

    def test_a_start_from_the_beginning_leaves_nothing_of_before(self, tmp_path: Path) -> None:
        changes = {"logging__tensorboard": True}
        run = interrupted(tmp_path / "run", stop_at=7, **changes)
        (run / LAST).unlink()  # as if it had been killed before it was written
        go_on(run, **changes)
        assert self.steps(run) == [5, 10]

    def test_a_run_that_has_one_later_has_all_epochs_in_it(self, tmp_path: Path) -> None:
        run = interrupted(tmp_path / "run", stop_at=7)
        go_on(run, logging__tensorboard=True)
        assert self.steps(run) == [5, 10]


def test_the_best_by_one_probe_does_not_stand_against_another(tmp_path: Path) -> None:
    probed = {"probe__kind": "knn", "data__per_class": 2}  # eleven steps an epoch
    run = interrupted(tmp_path / "run", stop_at=13, **probed)
    tensors, header = read_tensors(run / LAST, kind=FORMAT)
    unreachable = [1e9, *header["best"][1:]]
    assert unreachable[1] == 11
    write_tensors(run / LAST, tensors, {**header, "best": unreachable}, kind=FORMAT)
    shutil.copytree(run, tmp_path / "again")
    go_on(run, **probed)
    go_on(tmp_path / "again", **{**probed, "probe__kind": "fewshot"})
    bests = [
        read_tensors(folder / LAST, kind=FORMAT)[1]["best"] for folder in (run, tmp_path / "again")
    ]
    assert bests[0] == unreachable
    assert bests[1][1] == 22


def test_the_best_of_a_run_of_before_stands(tmp_path: Path) -> None:
    """Such a state says that a probe found it, and no more."""
    probed = {"probe__kind": "knn", "data__per_class": 2}
    run = interrupted(tmp_path / "run", stop_at=13, **probed)
    tensors, header = read_tensors(run / LAST, kind=FORMAT)
    write_tensors(run / LAST, tensors, {**header, "best": [1e9, 11, "probe"]}, kind=FORMAT)
    go_on(run, **probed)
    assert read_tensors(run / LAST, kind=FORMAT)[1]["best"][:2] == [1e9, 11]
