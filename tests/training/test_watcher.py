"""A process of a run dies: the others end too, and one of them says why."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eigenshot.errors import ProcessLost
from eigenshot.training.watcher import PARENT_VARIABLE, Watch
from tests.training.test_distributed_run import SETTINGS, ended, start, wait_for_checkpoint

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="processes are found in /proc")

WAY_ON = (
    "the same command with --resume (resume=True in Python) goes on from the last checkpoint, or "
    "starts anew where there is none"
)
KILLED = f"was ended by signal 9, perhaps for want of memory, and the others with it; {WAY_ON}"

# The command line with a probe that says where it is, and takes five minutes.
SLOW_PROBE = """
import sys, time
from pathlib import Path
from eigenshot.cli import main
from eigenshot.training.probe import Probe

def look(probe, *details):
    Path(__file__).with_name("probing").touch()
    time.sleep(300)

Probe.__call__ = look
main()
"""


def arguments(run: Path, *more: str) -> list[str]:
    """Of a run of two processes that takes minutes, if it is let."""
    settings = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")]
    options = ["--epochs", "1000", "--device", "cpu", "--devices", "2", *settings, *more]
    return ["pretrain", "glyphs", "--out", str(run), *options]


def begun(*command: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )


def child_of(process: subprocess.Popen[str]) -> int:
    """The process that another has started for its run, of which it may have others."""
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"\0LOCAL_RANK=1\0" in Path(f"/proc/{child}/environ").read_bytes():
                return int(child)
    raise AssertionError("no second process was started")


def errors(messages: str) -> list[str]:
    """The lines beside those that a run that goes well has too."""
    of_a_run = re.compile(r"746 images from glyphs|epoch \d|going on from step")
    return [line for line in messages.splitlines() if not of_a_run.match(line)]


def goes_on(run: Path) -> None:
    """A run can be gone on with, and stopped in order."""
    before = (run / "checkpoints" / "last.safetensors").stat().st_mtime_ns
    process = start("eigenshot", *arguments(run, "--resume"))
    wait_for_checkpoint(process, run, newer_than=before)
    process.send_signal(signal.SIGINT)
    code, _, messages = ended(process)
    assert code == 130
    assert "going on from step" in messages
    assert errors(messages) == [
        "interrupted, and the state is saved; the same command with --resume goes on from here"
    ]


class TestKilled:
    """Pipes end with the last process that has them: what has `ended` has left none behind."""

    def test_a_child_while_they_train(self, tmp_path: Path) -> None:
        process = start("eigenshot", *arguments(tmp_path / "run"))
        wait_for_checkpoint(process, tmp_path / "run")
        os.kill(child_of(process), signal.SIGKILL)
        code, output, messages = ended(process)
        assert errors(messages) == [f"error: process 1 {KILLED}"]
        assert (code, output) == (1, "")
        goes_on(tmp_path / "run")

    def test_a_child_while_the_first_is_at_work_alone(self, tmp_path: Path) -> None:
        script = tmp_path / "script.py"
        script.write_text(SLOW_PROBE)
        process = begun(str(script), *arguments(tmp_path / "run"))
        while not (tmp_path / "probing").exists():
            assert process.poll() is None, ended(process)
            time.sleep(0.01)
        os.kill(child_of(process), signal.SIGKILL)
        code, output, messages = ended(process)
        assert errors(messages) == [f"error: process 1 {KILLED}"]
        assert (code, output) == (1, "")
        goes_on(tmp_path / "run")

    def test_the_parent(self, tmp_path: Path) -> None:
        process = start("eigenshot", *arguments(tmp_path / "run"))
        wait_for_checkpoint(process, tmp_path / "run")
        process.kill()
        code, output, messages = ended(process)
        assert errors(messages) == []
        assert (code, output) == (-signal.SIGKILL, "")
        goes_on(tmp_path / "run")

    def test_the_parent_while_its_child_starts(self) -> None:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": "2"}
        number = {"LOCAL_RANK": "1", "NODE_RANK": "0", PARENT_VARIABLE: str(gone.pid)}
        script = "from eigenshot.training.launch import launch; launch('cpu', 2)"
        assert ended(begun("-c", script, **meeting, **number)) == (1, "", "")

    def test_one_that_was_started_from_outside(self, tmp_path: Path) -> None:
        """As by torchrun or srun, but nobody ends the other."""
        together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        together |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
        first, second = (
            begun(
                "-m",
                "eigenshot",
                *arguments(tmp_path / "run"),
                **{**together, "RANK": number, "LOCAL_RANK": number},
            )
            for number in "01"
        )
        wait_for_checkpoint(first, tmp_path / "run")
        second.kill()
        ended(second)
        code, _, messages = ended(first)
        said = "another process of the run has ended, and this one cannot go on alone"
        assert errors(messages) == [f"error: {said}; {WAY_ON}"]
        assert code == 1


# A script that works with another process twice. The second ends some time after the first.
SCRIPT = """
import os, threading, time
from eigenshot.training.launch import launch, parting

with parting(launch("cpu", 2)):
    threads = [thread.name for thread in threading.enumerate()]
    assert "processes" in threads and "child-process-observer" not in threads, threads
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)  # nobody listens there yet
with parting(launch("cpu", 2)):
    INSIDE
parent = os.getppid()
while os.environ["LOCAL_RANK"] == "1" and os.getppid() == parent:
    time.sleep(0.1)
time.sleep(3)
print("came to its end")
"""


class TestScript:
    def begun(self, folder: Path, inside: str) -> subprocess.Popen[str]:
        script = folder / "script.py"
        script.write_text(SCRIPT.replace("INSIDE", inside))
        return begun(str(script))

    def test_a_process_may_go_on_by_itself(self, tmp_path: Path) -> None:
        """In the end it does not need the one that has started it."""
        expected = "came to its end\n" * 2
        code, output, said = ended(self.begun(tmp_path, "pass"))
        assert (said, output, code) == ("", expected, 0)

    def test_one_is_killed_when_they_work_together_again(self, tmp_path: Path) -> None:
        process = self.begun(tmp_path, r"os.write(1, b'here\n'); time.sleep(300)")
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["here\n"] * 2
        os.kill(child_of(process), signal.SIGKILL)
        code, _, said = ended(process)
        assert said == f"error: process 1 {KILLED.partition(';')[0]}\n"
        assert code == 1


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# A process with two children that wait; a thread watches over them and the main thread, with bars
# on what it takes for a terminal, is where nothing reaches it.
WATCHING = """
import subprocess, sys, time
from rich.console import Console
from eigenshot.reporter import ConsoleReporter
from eigenshot.training import watcher

waiting, ending = "import time; time.sleep(300)", "import sys; sys.exit(CODE)"
children = [subprocess.Popen([sys.executable, "-c", waiting], stdout=2)]
with ConsoleReporter(Console(stderr=True, force_terminal=True)) as reporter:
    reporter.begin(10, 0)
    watch = watcher.Watch(children, reporter=reporter, way_on="try again")
    watcher._PAUSE = watcher._TO_FAIL = 0.05
    watch.begin()
    children.append(subprocess.Popen([sys.executable, "-c", ending], stdout=2))
    sys.__stdout__.write("not lost")
    children[1].wait()
    time.sleep(SECONDS)
    watch.stop()
    children[0].kill()
    children[0].wait()
    time.sleep(0.5)
"""


class TestWatch:
    def outcome(self, code: int, seconds: float) -> tuple[int, str, str]:
        script = WATCHING.replace("CODE", str(code)).replace("SECONDS", str(seconds))
        return ended(begun("-c", script))

    def test_bars_are_taken_away_before_it_is_said(self) -> None:
        code, output, said = self.outcome(code=3, seconds=300)
        shown, _, sentence = said.partition("error: ")
        assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is there again"
        expected = "process 2 ended with an error of its own, and the others with it; try again\n"
        assert sentence == expected
        assert (code, output) == (1, "not lost")

    def test_processes_may_end_well_or_after_it_has_stopped(self) -> None:
        code, output, said = self.outcome(code=0, seconds=0.5)
        assert (code, output) == (0, "not lost")
        assert "error" not in said


GLOO = "[/home/third_party/gloo/gloo/transport/tcp/pair.cc:537] "
CLOSED = f"{GLOO}Connection closed by peer [127.0.0.1]:7552"
LATE = f"{GLOO}Timed out waiting 1800000ms for recv operation to complete"


def watch_over(*codes: int | None) -> Watch:
    children: list[Any] = [SimpleNamespace(poll=lambda code=code: code) for code in codes]
    return Watch(children, way_on="go on")


class TestTelling:
    @pytest.fixture(autouse=True)
    def _one_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("eigenshot.training.watcher._TO_NOTICE", 0.1)

    @pytest.mark.parametrize(
        ("codes", "expected"),
        [
            ([None, -9], "process 2 was ended by signal 9, perhaps for want of memory, and"),
            ([-11], "process 1 was ended by signal 11 and the others with it; go on"),
            ([1], "process 1 ended with an error of its own, and the others with it; go on"),
            ([130], "process 1 was interrupted and the others with it; go on"),
            ([-2], "process 1 was interrupted and the others with it; go on"),
            # The first fails because the third was killed.
            ([1, None, -9], "process 3 was ended by signal 9"),
            # On another machine.
            (
                [None, 0],
                "another process of the run has ended, and this one cannot go on alone; go",
            ),
            ([], "another process of the run has ended"),
        ],
    )
    def test_who_was_lost(self, codes: list[int | None], expected: str) -> None:
        with pytest.raises(ProcessLost, match=f"^{re.escape(expected)}"):  # noqa: SIM117
            with watch_over(*codes).telling():
                raise RuntimeError(CLOSED)

    def test_on_which_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NODE_RANK", "2")
        with (
            pytest.raises(ProcessLost, match="process 1 of machine 2 was"),
            watch_over(-9).telling(),
        ):
            raise RuntimeError(CLOSED)

    @pytest.mark.parametrize(
        ("codes", "error"),
        [
            ([None], RuntimeError(LATE)),
            ([-9], RuntimeError("the size of tensor a (3) must match")),
            ([-9], OSError(CLOSED)),
        ],
    )
    def test_other_errors_are_their_own(self, codes: list[int | None], error: Exception) -> None:
        with pytest.raises(type(error)) as raised, watch_over(*codes).telling():
            raise error
        assert raised.value is error

    def test_any_error_of_the_backend_where_one_has_died(self) -> None:
        with pytest.raises(ProcessLost), watch_over(-9).telling():
            raise RuntimeError("NCCL communicator was aborted on rank 0.")
