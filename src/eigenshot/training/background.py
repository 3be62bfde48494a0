"""Work that a run does not wait for, such as writing a file."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """One piece of work at a time, in a thread of its own.

    What it raises is raised where one checks it, waits for it or begins the next.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="background")
        self._current: Future[None] | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin ``work``, after what was begun before has ended."""
        self.wait()
        self._current = self._thread.submit(work)

    def wait(self) -> None:
        """Until the work has ended; at once where there is none."""
        if self._current is not None:
            try:
                self._current.result()
            finally:  # a wait that is interrupted leaves it to be waited for
                if self._current.done():
                    self._current = None

    def check(self) -> None:
        """Raise what the work has raised; do not wait for it."""
        if self._current is not None and self._current.done():
            self.wait()
