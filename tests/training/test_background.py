"""Checkpoints are written beside the training, whole, and never fail unseen."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from eigenshot.errors import UserError
from eigenshot.tensorfile import Content
from eigenshot.training.background import Background
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from tests.training.test_pretrain import Recorder, tiny


class TestBackground:
    def test_what_is_begun_runs_beside_and_is_waited_for(self) -> None:
        background, may_end, done = Background(), threading.Event(), []
        background.start(lambda: done.append(may_end.wait(10)))
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

    def test_an_error_is_raised_once_where_it_is_waited_for(self) -> None:
        background = Background()
        background.start(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            background.wait()
        background.wait()
        background.start(lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            background.start(lambda: None)


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
            with pytest.raises(UserError, match="No space left on device; the one before it stan"):
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
