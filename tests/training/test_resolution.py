"""Views that grow during a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eigenshot.encoder import load_encoder
from eigenshot.errors import UserError
from eigenshot.methods.dle import DeepLaplacianEigenmapsMethod
from eigenshot.methods.mixing import Mix
from eigenshot.training import engine
from eigenshot.training.engine import compile_if_worthwhile, seconds_left
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from tests.training.test_engine import as_if_on_cuda, small_parts
from tests.training.test_pretrain import Plain, Recorder, tiny

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
    # The first calls are trials of every size, to estimate the time.
    config = growing(
        [[0, 16], [0.25, 20], [0.7, 32]],
        method__name="tests.training.test_resolution:Watching",
        projector__width=16,
    )
    SIZES.clear()
    reporter = Recorder()
    run = pretrain("glyphs", config, tmp_path / "run", device="cpu", reporter=reporter)
    assert any(
        "kept at 28×28×1, in views of 16×16, then 20×20, then 32×32;" in note
        for note in reporter.notes
    )
    steps = run.summary["steps"]
    expected = [16 if n < 0.25 * steps else 20 if n < 0.7 * steps else 32 for n in range(steps)]
    assert SIZES[-steps:] == expected
    assert sorted(set(SIZES[:-steps])) == [16, 20, 32]
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


@pytest.mark.parametrize("stages", [[], [[0, 16], [0.5, 24]]])
def test_the_encoder_can_look_at_images_in_another_size_than_views_had(
    tmp_path: Path, stages: list[Any]
) -> None:
    config = growing(stages, training__encoder_size=36, training__statistics="images")
    run = pretrain("glyphs", config, tmp_path / "run", device="cpu")
    assert run.encoder.preprocessing.image_size == 36
    assert load_encoder(tmp_path / "run").preprocessing.image_size == 36
    plain = pretrain("glyphs", growing(stages), tmp_path / "plain", device="cpu")
    assert plain.encoder.preprocessing.image_size == (stages[-1][1] if stages else 28)
    # What is trained is the same; only statistics are of the images that the encoder looks at.
    weights = plain.encoder.backbone.state_dict()
    for name, value in run.encoder.backbone.state_dict().items():
        followed = "running" in name or "tracked" in name
        assert torch.equal(value, weights[name]) != followed, name


class Looking(nn.Module):
    """Writes down the side of images outside training."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            SIZES.append(x.shape[-1])
        return self.layer(x)


def test_the_probe_looks_in_the_size_of_the_encoder(tmp_path: Path) -> None:
    config = growing([[0, 16]], training__encoder_size=40, probe__kind="knn", probe__every=1)
    SIZES.clear()
    pretrain("glyphs", config, tmp_path / "run", device="cpu", backbone=Looking())
    assert SIZES[-1] == 40
    assert set(SIZES) == {16, 40}, "the network is tried at the size of views"


def test_a_size_that_the_network_cannot_look_at_is_refused_before_it_learns(tmp_path: Path) -> None:
    config = tiny(training__encoder_size=40)
    with pytest.raises(
        UserError, match=r"cannot look at images of 40×40.*set training.encoder_size=28,"
    ):
        pretrain("glyphs", config, tmp_path / "run", device="cpu", backbone=Plain())
    assert not (tmp_path / "run").exists()


def test_a_network_whose_features_grow_with_the_image_is_refused(tmp_path: Path) -> None:
    unrolled = nn.Sequential(nn.Conv2d(1, 1, 3), nn.Flatten())
    with pytest.raises(UserError, match="features have length 676, and 1444 of images of 40×40"):
        pretrain(
            "glyphs",
            tiny(training__encoder_size=40),
            tmp_path / "run",
            device="cpu",
            backbone=unrolled,
        )


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (-1, "training.encoder_size must be at least 0"),
        (20_000, "training.encoder_size must be at most 16384"),
        (4, "training.encoder_size=4 is smaller than conv4 needs; it is to be at least 16"),
    ],
)
def test_bad_sizes_of_the_encoder(size: int, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        pretrain("glyphs", tiny(training__encoder_size=size), tmp_path / "run", device="cpu")


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


GROWING = [[0, 16], [0.25, 24], [0.75, 32]]


def test_every_size_of_views_that_is_left_is_compiled_for() -> None:
    def told(first: int) -> str:
        parts = as_if_on_cuda(small_parts(training__resolution=GROWING), seconds=0.2)
        assert parts.course.total_steps == 2400
        recorder = Recorder()
        compile_if_worthwhile(parts, first, recorder)
        return recorder.notes[0]

    assert told(0).endswith(": about 120 s over 3 sizes of views for 134 s later")
    assert told(600).endswith(": about 80 s over 2 sizes of views for 101 s later")
    assert told(1800) == "not compiled: it would save about 34 s and take 40 s"
    assert told(2400) == "not compiled: it would save about 0 s and take 40 s"


class Timed(DeepLaplacianEigenmapsMethod):
    """Lets a clock go on with each of its batches, by a second for every pixel of a view's side."""

    clock = 0.0

    def forward(self, view_a: Tensor, view_b: Tensor, mix: Mix | None = None) -> dict[str, Tensor]:
        Timed.clock += view_a.shape[-1]
        return super().forward(view_a, view_b, mix)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([], 32),
        ([[0, 16]], 16),
        (GROWING, 0.25 * 16 + 0.5 * 24 + 0.25 * 32),
        ([[0, 16], [0.25, 32], [0.5, 16]], 0.75 * 16 + 0.25 * 32),
    ],
)
def test_the_time_that_is_left_counts_each_size_for_as_long_as_it_lasts(
    stages: list[Any], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = small_parts(training__resolution=stages)
    parts.method.__class__ = Timed
    monkeypatch.setattr(engine, "device_time", lambda device: Timed.clock)
    before = {name: value.clone() for name, value in parts.method.state_dict().items()}
    sides = [view.size for view in parts.views.children()]
    total = parts.course.total_steps
    assert seconds_left(parts) == pytest.approx(expected * total)
    reached = Timed.clock
    assert seconds_left(parts) == pytest.approx(expected * total)
    quarter = total // 4
    last = stages[-1][1] if stages else 32
    assert seconds_left(parts, first=total - quarter) == pytest.approx(last * quarter)
    assert Timed.clock == reached, "it is measured once"
    assert [view.size for view in parts.views.children()] == sides
    after = parts.method.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_run_of_few_steps_counts_the_sizes_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = small_parts(training__epochs=1, training__batch_size=128, training__resolution=GROWING)
    parts.method.__class__ = Timed
    monkeypatch.setattr(engine, "device_time", lambda device: Timed.clock)
    sides = [parts.view_size(step) for step in range(parts.course.total_steps)]
    assert sides == [16, 24]
    assert seconds_left(parts) == pytest.approx(16 + 24)


def test_of_what_is_left_only_the_sizes_that_are_left_are_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = small_parts(training__resolution=GROWING)
    parts.method.__class__ = Timed
    monkeypatch.setattr(engine, "device_time", lambda device: Timed.clock)
    assert seconds_left(parts, first=1800) == pytest.approx(600 * 32)
    assert set(parts.seconds) == {32}
