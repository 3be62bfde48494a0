"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eigenshot.errors import UserError
from eigenshot.files import as_unicode, refuse_to_replace, why_not_writable


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    assert why_not_writable(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    assert why_not_writable(tmp_path / "missing") == "no such file or directory"
    (tmp_path / "file").touch()
    assert why_not_writable(tmp_path / "file") == "not a directory"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no file system of this kind")
def test_permissions_alone_do_not_tell() -> None:
    """Root may write to any folder, but not to all file systems."""
    assert why_not_writable(Path("/proc/self")) is not None


def test_bytes_that_are_no_text_are_shown_as_bytes() -> None:
    assert as_unicode("plain ü.png") == "plain ü.png"
    assert as_unicode(os.fsdecode(b"b\xff\xc3\xbc.png")) == "b\\xffü.png"
    assert as_unicode("half \ud83d") == "half \\ud83d"


def test_only_what_is_empty_or_one_s_own_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for content, ours in ((b"", False), (b"ours", True)):
        file.write_bytes(content)
        refuse_to_replace(file, "no table", lambda _, answer=ours: answer)  # type: ignore[misc]
    with pytest.raises(UserError, match="file' is there already and no table: remove it first"):
        refuse_to_replace(file, "no table", lambda _: False)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe' is there already and no file: write to another"):
        refuse_to_replace(tmp_path / "pipe", "no table", lambda file: bool(file.read_bytes()))
