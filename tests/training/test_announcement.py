"""What a run says before its first step."""

from __future__ import annotations

from pathlib import Path

import pytest

from eigenshot.training.pretrain import pretrain
from tests.training.test_pretrain import Recorder, tiny


@pytest.mark.parametrize(("queue", "said"), [(800, 1), (700, 0)])
def test_it_hands_on_what_a_method_remarks(queue: int, said: int, tmp_path: Path) -> None:
    """746 characters are learned from, one drawing each."""
    recorder = Recorder()
    config = tiny(
        method__name="mocov2",
        method__options__queue_length=queue,
        projector__standardize=False,
        training__epochs=1,
    )
    pretrain("glyphs", config, tmp_path / "run", device="cpu", reporter=recorder)
    found = [note for note in recorder.notes if "is longer than an epoch of 746 images" in note]
    assert len(found) == said
