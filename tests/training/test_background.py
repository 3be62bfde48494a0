"""Checkpoints are written beside the training, whole, and never fail unseen."""

from __future__ import annotations

import errno
import signal
import threading
from pathlib import Path
from types import FrameType

import pytest

from eigenshot.errors import Busy, UserError
from eigenshot.tensorfile import Content
from eigenshot.training.background import Background
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from eigenshot.training.runfolder import RunFolder
from tests.training.test_pretrain import Recorder, tiny


class TestBackground:
    def test_what_is_begun_runs_beside_and_is_waited_for(self) -> None:
        background, may_end, done = Background(), threading.Event(), []
        background.start(lambda: done.append(may_end.wait(10)))
        background.check()
        assert done == [], "the caller goes on"
        may_end.set()
        background.wait()
        assert done == [True]
        background.wait()

    def test_one_piece_comes_after_the_other(self) -> None:
        background, order = Background(), []
        for number in range(20):
            background.start(lambda number=number: order.append(number))
        background.wait()
        assert order == list(range(20))

    def test_an_error_is_raised_once_where_it_is_looked_for(self) -> None:
        background = Background()

        def check_again_and_again() -> None:
            while True:
                background.check()

        looks = (background.wait, lambda: background.start(lambda: None), check_again_and_again)
        for look in looks:
            background.start(lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                look()
            background.wait()

    def test_a_wait_that_is_interrupted_can_be_taken_up_again(self) -> None:
        def interrupt(number: int, frame: FrameType | None) -> None:
            raise KeyboardInterrupt

        background, may_end, done = Background(), threading.Event(), []
        background.start(lambda: done.append(may_end.wait(10)))
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            with pytest.raises(KeyboardInterrupt):
                background.wait()
        finally:
            signal.signal(signal.SIGALRM, before)
        may_end.set()
        background.wait()
        assert done == [True]


def test_the_training_goes_on_while_a_checkpoint_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, waited = threading.Event(), []
    write = Content.write

    class Going(Recorder):
        def advance(self, step: int, *details: object) -> None:
            if step == 5:
                goes_on.set()

    def slowly(self: Content, path: Path) -> None:
        if self.kind == "eigenshot-checkpoint" and not waited:
            waited.append(goes_on.wait(20))
        write(self, path)

    monkeypatch.setattr(Content, "write", slowly)
    config, reporter = tiny(checkpoint__every_steps=3), Going(stop_at=5)
    pretrain("glyphs", config, tmp_path / "run", device="cpu", reporter=reporter)
    assert waited == [True], "that of step 3 was still being written at step 5"


def full_disk(self: Content, path: Path) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class TestAFullDisk:
    def test_it_is_told_and_the_checkpoint_before_it_stands(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = tmp_path / "run"
        with pytest.raises(Interrupted):
            pretrain("glyphs", tiny(), run, device="cpu", reporter=Recorder(stop_at=3))
        kept = (run / "checkpoints" / "last.safetensors").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(Content, "write", full_disk)
            with pytest.raises(UserError, match="No space left on device; --resume goes on from t"):
                pretrain("glyphs", tiny(), run, device="cpu", resume=True)
        assert (run / "checkpoints" / "last.safetensors").read_bytes() == kept
        pretrain("glyphs", tiny(), run, device="cpu", resume=True)
        assert (run / "encoder.safetensors").exists()

    def test_a_run_that_is_interrupted_does_not_say_that_its_state_is_saved(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Content, "write", full_disk)
        with pytest.raises(UserError, match="there is none yet"):
            pretrain("glyphs", tiny(), tmp_path / "run", device="cpu", reporter=Recorder(stop_at=3))

    def test_it_ends_the_run_soon_and_not_at_the_next_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed, steps = threading.Event(), []

        class Counting(Recorder):
            def advance(self, step: int, *details: object) -> None:
                steps.append(step)
                if step == 5:  # that of step 4 is being written
                    failed.wait(20)

        def fail(self: Content, path: Path) -> None:
            failed.set()
            full_disk(self, path)

        monkeypatch.setattr(Content, "write", fail)
        config, reporter = tiny(checkpoint__every_steps=4), Counting(stop_at=0)
        with pytest.raises(UserError, match="No space left"):
            pretrain("glyphs", config, tmp_path / "run", device="cpu", reporter=reporter)
        assert max(steps) < 8

    def test_the_best_alone_may_be_what_cannot_be_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(source: Path, target: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("eigenshot.training.keeper.link_or_copy", refuse)
        with pytest.raises(UserError, match=r"best\.safetensors': No space .* itself is written"):
            pretrain("glyphs", tiny(), tmp_path / "run", device="cpu")
        assert (tmp_path / "run" / "checkpoints" / "last.safetensors").exists()

    def test_what_ended_the_training_is_what_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failed = threading.Event()

        class Failing(Recorder):
            def advance(self, step: int, *details: object) -> None:
                if step == 3:  # the one of step 2 is being written
                    failed.set()
                    raise RuntimeError("the real reason")

        def late(self: Content, path: Path) -> None:
            failed.wait(20)
            raise MemoryError

        monkeypatch.setattr(Content, "write", late)
        config, reporter = tiny(checkpoint__every_steps=2), Failing(stop_at=3)
        with pytest.raises(RuntimeError, match="the real reason"):
            pretrain("glyphs", config, tmp_path / "run", device="cpu", reporter=reporter)


class TestOneAtATime:
    def test_a_run_that_another_process_trains_is_left_alone(self, tmp_path: Path) -> None:
        run = tmp_path / "run"
        with pytest.raises(Interrupted):
            pretrain("glyphs", tiny(), run, device="cpu", reporter=Recorder(stop_at=3))
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        with (
            RunFolder(run).held(),
            pytest.raises(Busy, match=r"another process is training in '.*run'; wait until"),
        ):
            pretrain("glyphs", tiny(), run, device="cpu", resume=True)
        assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
        pretrain("glyphs", tiny(), run, device="cpu", resume=True)
        assert not list(run.glob(".*")), "no lock is left behind"

    def test_who_is_refused_before_the_first_checkpoint_leaves_its_folder(
        self, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"

        class Crowded(Recorder):
            """Another process is refused while this one is at its first step."""

            def begin(self, total_steps: int, step: int) -> None:
                super().begin(total_steps, step)
                with pytest.raises(Busy), RunFolder(run).held():
                    pass

        reporter = Crowded()
        pretrain("glyphs", tiny(), run, device="cpu", reporter=reporter)
        assert reporter.total > 0
        assert (run / "checkpoints" / "last.safetensors").exists()

    def test_a_folder_that_another_has_just_begun_is_not_begun_again(self, tmp_path: Path) -> None:
        run = tmp_path / "run"

        class Quick(Recorder):
            """Another process begins the run while this one prepares."""

            def note(self, text: str) -> None:
                if not run.exists():
                    with pytest.raises(Interrupted):
                        pretrain("glyphs", tiny(), run, device="cpu", reporter=Recorder(stop_at=3))

        with pytest.raises(UserError, match="already holds an unfinished run"):
            pretrain("glyphs", tiny(), run, device="cpu", reporter=Quick())
        assert (run / "checkpoints" / "last.safetensors").exists()
