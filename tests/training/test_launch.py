"""Who starts the processes of a run, and what is refused before they wait for each other."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from eigenshot.config import Config
from eigenshot.configfile import load_config
from eigenshot.data.source import ArraySource
from eigenshot.errors import UserError
from eigenshot.machine import PROCESSES_VARIABLE, local_processes
from eigenshot.training.choices import check_blocks, resolve_batch
from eigenshot.training.launch import (
    all_or_none,
    launch,
    parting,
    require_agreement,
)
from eigenshot.training.meeting import agree_on_name
from eigenshot.training.watcher import Watch


class TestLaunch:
    def test_one_process_whatever_slurm_has_allocated(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in {"SLURM_NTASKS": "8", "SLURM_JOB_NAME": "train"}.items():
            monkeypatch.setenv(name, value)
        fabric = launch("cpu")
        assert fabric.world_size == 1
        assert fabric.device == torch.device("cpu")
        assert not torch.distributed.is_initialized()

    def test_more_processes_than_gpus_are_refused(self) -> None:
        with pytest.raises(UserError, match=r"99 processes a machine need as many GPUs.*sees \d+"):
            launch("cuda", 99)

    def test_an_interactive_session_cannot_be_run_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
        with pytest.raises(UserError, match="use the command line or a script"):
            launch("cpu", 2)


# Three processes that never meet. Of the two that the first one starts one ends of Ctrl-C, a moment
# later, and one does not hear it; each makes a file, to say that it is there.
NEVER_MET = """
import os, signal, sys, threading, time
from pathlib import Path

folder, how, period = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])

def end_late(*_):
    time.sleep(0.2)
    os._exit(1)

if rank := int(os.environ.get("LOCAL_RANK", "0")):
    signal.signal(signal.SIGINT, end_late if rank == 1 else signal.SIG_IGN)
    (folder / str(os.getpid())).touch()
    os.close(1)  # so that the first process ends what it says there
    time.sleep(300)

from lightning_fabric.strategies import DDPStrategy
from eigenshot.training import watcher
from eigenshot.training.launch import launch

watcher._PAUSE = watcher._TO_FAIL = period
wait_for_others = DDPStrategy.setup_environment

def tell_when_waiting():  # in torch, which is at the same place for long
    main, before, still = threading.main_thread().ident, None, 0
    while still < 10:
        frame = sys._current_frames()[main]
        now = (frame.f_code, frame.f_lasti)
        waits = "distributed" in frame.f_code.co_filename and now == before
        before, still = now, still + 1 if waits else 0
        time.sleep(0.05)
    print("waiting", flush=True)

def meet(strategy):
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)
    if how == "fails":
        raise OSError("no way to meet")
    if how == "waits in Python":
        print("waiting", flush=True)
        time.sleep(300)
    threading.Thread(target=tell_when_waiting, daemon=True).start()
    wait_for_others(strategy)

DDPStrategy.setup_environment = meet
try:
    launch("cpu", 3)
except (KeyboardInterrupt, OSError) as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


class TestEndOfAMeeting:
    """Where processes do not meet none is left, and a person is told once."""

    def outcome(
        self, folder: Path, how: str, period: float = 5.0, killed: bool = False
    ) -> tuple[int, str]:
        """Exit code and what was said, once all have ended; Ctrl-C is for all, as in a terminal.

        Instead of it one of the processes is ``killed``. They are looked after once in ``period``
        seconds, and may take as long to end.
        """
        script, marks = folder / "script.py", folder / "marks"
        script.write_text(NEVER_MET)
        marks.mkdir()
        command = [sys.executable, str(script), str(marks), how, str(period)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, start_new_session=True, text=True, **pipes) as process:
            try:
                assert process.stdout is not None
                if process.stdout.readline():  # else it has ended by itself
                    if killed:
                        os.kill(int(next(marks.iterdir()).name), signal.SIGKILL)
                    else:
                        os.killpg(process.pid, signal.SIGINT)
                # The pipe of messages ends with the last of the processes, which all have it.
                _, said = process.communicate(timeout=20)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return process.returncode, said

    @pytest.mark.parametrize("period", [5.0, 0.05])
    def test_ctrl_c_where_they_wait_outside_python(self, tmp_path: Path, period: float) -> None:
        code, said = self.outcome(tmp_path, "waits", period)
        assert said == "interrupted while the processes met; nothing was begun\n"
        assert code == 130

    def test_ctrl_c_where_python_is_at_work(self, tmp_path: Path) -> None:
        assert self.outcome(tmp_path, "waits in Python", 0.05) == (1, "KeyboardInterrupt: \n")

    @pytest.mark.parametrize("how", ["waits", "waits in Python"])
    def test_one_that_is_killed_before_they_have_met(self, tmp_path: Path, how: str) -> None:
        code, said = self.outcome(tmp_path, how, 0.05, killed=True)
        assert code == 1
        number = r"error: process [12] was ended by signal 9, perhaps for want of memory,"
        assert re.fullmatch(f"{number} and the others with it\n", said)

    def test_what_fails_before_they_have_met(self, tmp_path: Path) -> None:
        assert self.outcome(tmp_path, "fails") == (1, "OSError: no way to meet\n")


class TestMeeting:
    """Attempts of a job share one store."""

    def attempt(self, store: dist.Store, ranks: int) -> list[str]:
        patience = timedelta(seconds=20)
        with ThreadPoolExecutor(ranks) as pool:
            asked = [
                pool.submit(agree_on_name, store, rank, ranks, patience)
                for rank in reversed(range(ranks))
            ]
            return [future.result() for future in asked]

    def test_every_attempt_has_a_name_of_its_own(self) -> None:
        store = dist.HashStore()
        names = [self.attempt(store, 4) for _ in range(3)]
        assert all(len(set(of_attempt)) == 1 for of_attempt in names)
        assert len({of_attempt[0] for of_attempt in names}) == 3

    def test_nobody_is_met_who_is_gone(self) -> None:
        store = dist.HashStore()
        store.set("eigenshot/hello/1", "gone")
        with pytest.raises(TimeoutError, match="2 of 3 processes have not come"):
            agree_on_name(store, 0, 3, timedelta(seconds=0.1))
        assert len(set(self.attempt(store, 3))) == 1


def batch_of(size: int | str, **changes: Any) -> Config:
    changed = {f"training.{name}": value for name, value in changes.items()}
    return load_config("glyphs", {"training.batch_size": size, **changed})


class TestBatch:
    def test_blocks_must_be_equal(self) -> None:
        check_blocks(batch_of(126), 1)
        check_blocks(batch_of(126), 3)
        check_blocks(batch_of("auto"), 5)
        with pytest.raises(UserError, match=r"126 images .* for 4 processes.*--batch-size 128"):
            check_blocks(batch_of(126), 4)

    def test_blocks_must_split_into_parts_as_well(self) -> None:
        check_blocks(batch_of(128, micro_batches=4), 2)
        with pytest.raises(UserError, match=r"2 processes, of 32 parts each.*--batch-size 128"):
            check_blocks(batch_of(96, micro_batches=32), 2)

    @pytest.mark.parametrize(("ranks", "expected"), [(1, 64), (6, 60), (100, 100)])
    def test_an_automatic_batch_has_equal_blocks(self, ranks: int, expected: int) -> None:
        source = ArraySource(torch.zeros(200, 1, 28, 28, dtype=torch.uint8))
        settled = resolve_batch(batch_of("auto"), source, "cpu", ranks)
        assert settled.training.batch_size == expected

    @pytest.mark.parametrize(("ranks", "expected"), [(1, 60), (2, 48), (20, 240)])
    def test_and_these_have_equal_parts(self, ranks: int, expected: int) -> None:
        source = ArraySource(torch.zeros(300, 1, 28, 28, dtype=torch.uint8))
        settled = resolve_batch(batch_of("auto", micro_batches=12), source, "cpu", ranks)
        assert settled.training.batch_size == expected


class TestAlone:
    """A single process agrees with itself, and nothing is exchanged."""

    def test_failures_are_raised_as_they_are(self) -> None:
        fabric = launch("cpu")
        with pytest.raises(ValueError, match="mine"), parting(fabric), all_or_none(fabric):
            raise ValueError("mine")

    def test_it_agrees_with_itself(self) -> None:
        require_agreement(launch("cpu"), ("a", 1), "never said")

    def test_processes_it_has_started_do_not_outlive_a_failure(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("eigenshot.training.watcher._TO_END", 0.05)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        fabric = SimpleNamespace(strategy=None, watch=Watch([child]))
        with pytest.raises(OSError, match="no space"), parting(fabric):
            raise OSError("no space")
        assert child.returncode is not None


class TestShares:
    """Processes of a machine know of each other while they work together, and not after."""

    @pytest.mark.parametrize("before", [None, "7"])
    def test_what_was_said_before_holds_again_afterwards(
        self, monkeypatch: pytest.MonkeyPatch, before: str | None
    ) -> None:
        if before is None:
            monkeypatch.delenv(PROCESSES_VARIABLE, raising=False)
        else:
            monkeypatch.setenv(PROCESSES_VARIABLE, before)
        fabric = SimpleNamespace(strategy=SimpleNamespace(num_processes=2))
        with pytest.raises(OSError, match="2 processes"), parting(fabric):
            raise OSError(f"{local_processes()} processes")
        assert os.environ.get(PROCESSES_VARIABLE) == before

    def test_one_process_has_nobody_to_share_with(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(PROCESSES_VARIABLE, raising=False)
        with parting(launch("cpu")):
            assert PROCESSES_VARIABLE not in os.environ
