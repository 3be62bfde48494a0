"""Views that grow during a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eigenshot.encoder import load_encoder
from eigenshot.errors import UserError
from eigenshot.methods.dle import DeepLaplacianEigenmapsMethod
from eigenshot.methods.mixing import Mix
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from tests.training.test_pretrain import Recorder, tiny

SIZES: list[int] = []


class Watching(DeepLaplacianEigenmapsMethod):
    """Writes down the side of each training batch's views."""

    def forward(self, view_a: Tensor, view_b: Tensor, mix: Mix | None = None) -> dict[str, Tensor]:
        assert view_a.shape == view_b.shape
        SIZES.append(view_a.shape[-1])
        return super().forward(view_a, view_b, mix)


def growing(stages: list[Any], **changes: Any) -> Any:
    return tiny(training__resolution=stages, **changes)


def test_views_have_the_side_of_their_share_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 2 epochs of 5 steps; the first call is a trial to estimate the time.
    config = growing(
        [[0, 16], [0.25, 20], [0.7, 32]],
        method__name="tests.training.test_resolution:Watching",
        projector__width=16,
    )
    SIZES.clear()
    run = pretrain("glyphs", config, tmp_path / "run", device="cpu")
    steps = run.summary["steps"]
    expected = [16 if n < 0.25 * steps else 20 if n < 0.7 * steps else 32 for n in range(steps)]
    assert SIZES[-steps:] == expected
    assert load_encoder(tmp_path / "run").preprocessing.image_size == 32


def test_a_run_interrupted_at_one_size_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    config = growing([[0, 16], [0.5, 28]], probe__kind="knn", probe__every=1)
    pretrain("glyphs", config, tmp_path / "unbroken", device="cpu")
    with pytest.raises(Interrupted):
        pretrain("glyphs", config, tmp_path / "broken", device="cpu", reporter=Recorder(stop_at=4))
    pretrain("glyphs", config, tmp_path / "broken", device="cpu", resume=True)
    files = [tmp_path / name / "encoder.safetensors" for name in ("unbroken", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_views_may_be_larger_than_the_images(tmp_path: Path) -> None:
    run = pretrain("glyphs", growing([[0, 40]]), tmp_path / "run", device="cpu")
    assert run.encoder.preprocessing.image_size == 40
    features = run.encoder.transform(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))
    assert features.shape == (2, 8)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([[0.1, 32]], "shares that rise from 0"),
        ([[0, 32], [0, 48]], "shares that rise from 0"),
        ([[0, 32], [1.0, 48]], "stay below 1"),
        ([[0, 0]], "a side is at least 1 pixel, found 0"),
        ([[0, 4]], "smaller than conv4 needs"),
        ([[0, 32, 5]], "training.resolution: expected"),
    ],
)
def test_bad_stages(stages: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        pretrain("glyphs", growing(stages), tmp_path / "run", device="cpu")
