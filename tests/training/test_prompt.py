"""Ctrl-C where Python waits for other processes in C++."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from eigenshot.training.prompt import ended_by_ctrl_c

WAITING = """
import subprocess, sys, threading, time
from datetime import timedelta
import torch.distributed as dist
from eigenshot.training.prompt import ended_by_ctrl_c

def wait():
    dist.TCPStore("127.0.0.1", 0, 2, is_master=True, timeout=timedelta(minutes=5))

def tell():  # once the main thread has left Python
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code is not wait.__code__:
        time.sleep(0.01)
    time.sleep(0.5)
    print(child.pid, flush=True)

child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
threading.Thread(target=tell, daemon=True).start()
with ended_by_ctrl_c([child], speaks=SPEAKS):
    wait()
"""


def _is_there(process: int) -> bool:
    """Whether a process runs; one that has ended and was not yet asked for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc to look into")
@pytest.mark.parametrize("speaks", [True, False])
def test_a_wait_outside_python_ends_with_the_children(speaks: bool) -> None:
    command = [sys.executable, "-c", WAITING.replace("SPEAKS", str(speaks))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        child = int(it.stdout.readline())
        it.send_signal(signal.SIGINT)
        _, said = it.communicate(timeout=60)
    assert it.returncode == 130
    sentence = "interrupted while the processes met; nothing was begun\n"
    assert said == (sentence if speaks else "")
    assert not _is_there(child)


def _interrupt_oneself() -> None:
    with ended_by_ctrl_c([]):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(10)


def test_where_python_is_at_work_ctrl_c_is_its_own() -> None:
    before = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(before)
    with pytest.raises(KeyboardInterrupt):
        _interrupt_oneself()
    after = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(after)
    assert after == before
    assert "ctrl-c" not in [thread.name for thread in threading.enumerate()]


def test_children_are_out_of_sight_until_the_block_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who else watches them could take their end, of the same Ctrl-C, for a failure."""
    monkeypatch.setattr("eigenshot.training.prompt._PATIENCE", 60)
    heard = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: heard.set())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        children = [child]
        try:
            with ended_by_ctrl_c(children):
                os.kill(os.getpid(), signal.SIGINT)
                until = time.monotonic() + 30
                while children and time.monotonic() < until:
                    time.sleep(0.01)
                assert heard.is_set()
                assert children == []
            assert children == [child]
        finally:
            signal.signal(signal.SIGINT, before)
            child.kill()


def test_in_another_thread_it_does_nothing() -> None:
    entered = []

    def work() -> None:
        with ended_by_ctrl_c([]):
            entered.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [True]
