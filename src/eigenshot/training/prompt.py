"""Ctrl-C while processes meet: a long call outside Python, which Python alone would not end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

_PATIENCE = 0.5  # seconds in which Python, if it is at work, raises a KeyboardInterrupt by itself


@contextlib.contextmanager
def ended_by_ctrl_c(
    children: list[subprocess.Popen[bytes]], *, speaks: bool = True
) -> Iterator[None]:
    """Within the block Ctrl-C ends this process and its ``children`` wherever it waits.

    One of several processes ``speaks``. Nothing that could be lost may have been begun. Outside the
    main thread nothing is done, for there signals do not arrive.

    ``children`` may be a list that others watch. After Ctrl-C it is empty until the block is left,
    so that nobody is alarmed by a child that ends of Ctrl-C too; whoever then catches the
    KeyboardInterrupt finds them in it again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard, told = socket.socketpair()
    told.setblocking(False)
    left = threading.Event()

    def watch() -> None:
        while number := heard.recv(1):
            if number[0] != signal.SIGINT:
                continue
            # Who watches the list would take them for processes that have failed.
            ending = children.copy()
            del children[: len(ending)]  # those alone: another may be starting
            if left.wait(_PATIENCE):
                children.extend(ending)
                continue
            for child in (*ending, *children):
                child.kill()
            if speaks:
                said = "interrupted while the processes met; nothing was begun"
                print(said, file=sys.stderr, flush=True)
            os._exit(130)

    watcher = threading.Thread(target=watch, name="ctrl-c", daemon=True)
    before = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        left.set()
        signal.set_wakeup_fd(before)
        told.close()  # which ends the watch
        watcher.join()
        heard.close()
