"""Processes that die without a word: those that need them end too, soon, and one says why.

A process that is killed, as the system does for want of memory, cannot say so. Over gloo the others
meet an error of the connection; over NCCL they may wait for it where nothing reaches them.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from eigenshot.errors import ProcessLost
from eigenshot.reporter import Reporter

# What a process finds in its environment that was started by another of the same run.
PARENT_VARIABLE = "EIGENSHOT_PARENT"

_PAUSE = 0.2  # seconds between looks at the processes
_TO_NOTICE = 2.0  # seconds to meet an error by oneself after another process was killed
_TO_FAIL = 10.0  # seconds to fail in one's own words, of what may have ended the other too
_TO_END = 1.0  # seconds for processes to end by themselves, once the one that started them failed

_KILLED, _BY_CTRL_C = -9, (-2, 130)  # codes with which a process ends
_OF_THE_BACKEND = re.compile("gloo|nccl", re.I)
# Not where somebody could not be reached or was late: that one may live.
_CUT_OFF = re.compile("gloo/transport/.*(closed by peer|reset by peer|broken pipe)", re.I | re.S)


class Watch:
    """Sees to it that this process does not wait for one that has died.

    It looks after the processes that this one has started, from `begin` to `stop`, and after the
    one that has started this one. After such a death this process has a moment to come upon it by
    itself, as an error that `telling` puts into words. Else a thread ends it, wherever it waits:
    with the same words if it has lost a child, and silently if it has lost its parent, for whom
    nobody waits any more.

    Parameters
    ----------
    children : processes that this one has started; the list may grow. One that is taken out of it
        may end as it likes.
    parent : the number of the process that has started this one as a part of its run.
    reporter : what shows bars on the terminal, which are taken away before the words.
    way_on : what to do then, as the end of a sentence.
    """

    def __init__(
        self,
        children: list[subprocess.Popen[bytes]],
        *,
        parent: int | None = None,
        reporter: Reporter | None = None,
        way_on: str = "",
    ) -> None:
        self.children = children
        self._parent = parent
        self._reporter = reporter or Reporter()
        self._way_on = f"; {way_on}" if way_on else ""
        self._stopped = threading.Event()
        self._deciding = threading.Lock()  # who speaks: the thread, or what stops it

    def begin(self) -> None:
        """Look after the processes from now on."""
        threading.Thread(target=self._look_after_them, name="processes", daemon=True).start()

    def stop(self) -> None:
        """From now on they may end as they like."""
        with self._deciding:
            self._stopped.set()

    def end_children(self) -> None:
        """End those that do not end by themselves, now that this process has failed."""
        self.stop()
        ending = self.children.copy()
        self.children.clear()
        until = time.monotonic() + _TO_END
        for child in ending:
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Let an error that comes of another process's death be a `ProcessLost`."""
        try:
            yield
        except RuntimeError as error:
            if _OF_THE_BACKEND.search(str(error)) and (said := self._said_of(error)):
                raise ProcessLost(said) from error
            raise

    def _said_of(self, error: RuntimeError) -> str | None:
        """What to say instead of an ``error`` of the backend; None where nobody has died."""
        until = time.monotonic() + _TO_NOTICE
        # The connection may end a little before the process does.
        while (self.children or self._parent) and time.monotonic() < until:
            if self._is_orphan():
                os._exit(1)
            if (lost := self._lost_child()) is not None:
                return self._said_of_child(*lost)
            time.sleep(_PAUSE / 4)
        if not _CUT_OFF.search(str(error)):
            return None
        return (
            f"another process of the run has ended, and this one cannot go on alone{self._way_on}"
        )

    def _is_orphan(self) -> bool:
        return self._parent is not None and os.getppid() != self._parent

    def _lost_child(self) -> tuple[int, int] | None:
        """Number and exit code of a process that has failed, rather one that was killed."""
        codes = enumerate([child.poll() for child in self.children.copy()], start=1)
        failed = [(number, code) for number, code in codes if code]
        return min(failed, key=lambda lost: (lost[1] > 0, lost[0]), default=None)

    def _said_of_child(self, number: int, code: int) -> str:
        machine = os.environ.get("NODE_RANK", "0")
        where = f" of machine {machine}" if machine != "0" else ""
        how = f"was ended by signal {-code}" if code < 0 else "ended with an error of its own,"
        if code == _KILLED:
            how += ", perhaps for want of memory,"
        if code in _BY_CTRL_C:
            how = "was interrupted"
        return f"process {number}{where} {how} and the others with it{self._way_on}"

    def _look_after_them(self) -> None:
        while not self._stopped.wait(_PAUSE):
            lost = self._lost_child()
            if lost is None and not self._is_orphan():
                continue
            was_killed = lost is None or (lost[1] < 0 and lost[1] not in _BY_CTRL_C)
            if not self._stopped.wait(_TO_NOTICE if was_killed else _TO_FAIL):
                self._end_unless_stopped()

    def _end_unless_stopped(self) -> None:
        with self._deciding:
            lost = self._lost_child()  # none where it was taken out of the list in the meantime
            if self._stopped.is_set() or (lost is None and not self._is_orphan()):
                return
            for child in self.children:
                child.kill()
            try:
                if lost is not None:
                    self._reporter.__exit__(None, None, None)
                    print(f"error: {self._said_of_child(*lost)}", file=sys.stderr, flush=True)
                    sys.stdout.flush()
            finally:
                os._exit(1)


def parent_of_this() -> int | None:
    """The process that has started this one as a part of its run, where that can be watched."""
    number = os.environ.get(PARENT_VARIABLE, "")
    # On Windows a virtual environment's Python stands between the two.
    return int(number) if number.isdecimal() and os.name != "nt" else None


@contextlib.contextmanager
def starting(children: list[subprocess.Popen[bytes]], launcher: Any) -> Iterator[None]:
    """Let Fabric's ``launcher`` keep the processes that it starts in the block in ``children``.

    They know who has started them. Fabric's own observer stays away: a few seconds after the end of
    a child it kills this process without a word.
    """
    module: Any = sys.modules[type(launcher).__module__]
    observe = getattr(module, "_launch_process_observer", None)
    module._launch_process_observer = lambda children: None
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    launcher.procs = children
    try:
        yield
    finally:
        del os.environ[PARENT_VARIABLE]
        module._launch_process_observer = observe
