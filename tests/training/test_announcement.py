"""What a run says before its first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eigenshot.methods import DeepLaplacianEigenmapsMethod
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


def notes_of(tmp_path: Path, **changes: Any) -> list[str]:
    recorder = Recorder()
    config = tiny(training__epochs=1, **changes)
    pretrain("glyphs", config, tmp_path / "run", device="cpu", reporter=recorder)
    return recorder.notes


def test_settings_that_others_keep_idle_are_told(tmp_path: Path) -> None:
    changes = {
        "optimizer__cooldown": 0.5,
        "training__whole_batch_loss": True,
        "probe__data": "nowhere",
    }
    found = [note for note in notes_of(tmp_path, **changes) if "does nothing" in note]
    assert found == [
        "optimizer.cooldown does nothing while optimizer.schedule is cosine",
        "training.whole_batch_loss does nothing while training.micro_batches is 1",
        "probe.data does nothing while probe.kind is none",
    ]


def test_settings_that_are_heeded_are_not_told(tmp_path: Path) -> None:
    heeded = {"optimizer__schedule": "trapezoid", "optimizer__cooldown": 0.5}
    assert not any("does nothing" in note for note in notes_of(tmp_path, **heeded))


@pytest.mark.parametrize(("epochs", "said"), [(0.4, 0), (2.0, 1)])
def test_a_warm_up_that_does_not_fit_is_told(epochs: float, said: int, tmp_path: Path) -> None:
    """An epoch has five steps, of which a warm-up may take two."""
    sentence = f"the warm-up takes half of the run, 0.4 epochs instead of {epochs:g}"
    assert notes_of(tmp_path, optimizer__warmup_epochs=epochs).count(sentence) == said


class Silent(DeepLaplacianEigenmapsMethod):
    def remarks(self, images: int, at_once: int) -> None:  # type: ignore[override]
        """As one that forgets to return."""


class Terse(DeepLaplacianEigenmapsMethod):
    def remarks(self, images: int, at_once: int) -> str:  # type: ignore[override]
        return "a sentence"


@pytest.mark.parametrize(("name", "said"), [("Silent", 0), ("Terse", 1)])
def test_methods_of_ones_own_may_say_it_otherwise(name: str, said: int, tmp_path: Path) -> None:
    notes = notes_of(tmp_path, method__name=f"{__name__}:{name}", method__options={})
    assert notes.count("a sentence") == said
