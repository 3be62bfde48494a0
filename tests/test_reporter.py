"""What a person sees on a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from eigenshot.reporter import ConsoleReporter

SHOW_CURSOR = "\x1b[?25h"


def test_a_preparation_that_breaks_off_leaves_the_terminal_as_it_was() -> None:
    screen = io.StringIO()
    reporter = ConsoleReporter(Console(file=screen, force_terminal=True))
    with reporter:
        reporter.counting("reading images")(1, 10)
    assert "reading images" in screen.getvalue()
    _, shown, after = screen.getvalue().rpartition(SHOW_CURSOR)
    assert shown, "the cursor is there again"
    assert "reading images" not in after


def test_a_count_that_is_complete_takes_its_bar_away() -> None:
    screen = io.StringIO()
    reporter = ConsoleReporter(Console(file=screen, force_terminal=True))
    progress = reporter.counting("reading images")
    progress(1, 2)
    assert SHOW_CURSOR not in screen.getvalue()
    progress(2, 2)
    assert SHOW_CURSOR in screen.getvalue()
