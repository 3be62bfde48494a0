"""Ctrl-C and a polite kill are requests to stop after the current step."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

# A key that is pressed twice, or a signal that a wrapper passes on as well, is one request.
_SAME_REQUEST_SECONDS = 1.0


class Interruption:
    """While active, the first SIGINT or SIGTERM sets `requested`; one a second later acts at once.

    Until then the step ends and the state is saved; to act at once is for where that hangs.
    """

    def __init__(self) -> None:
        self.requested = False
        self._when = 0.0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        # Python lets only the main thread set handlers; elsewhere the caller's own stay.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.requested:
            self.requested, self._when = True, now
        elif now - self._when > _SAME_REQUEST_SECONDS:
            raise KeyboardInterrupt
