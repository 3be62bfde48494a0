"""Runs with small views beside the two."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from eigenshot.errors import UserError
from eigenshot.training.accumulation import accumulate_parts, accumulate_whole
from eigenshot.training.captured import CapturedStep
from eigenshot.training.engine import compile_if_worthwhile
from eigenshot.training.loop import Interrupted
from eigenshot.training.pretrain import pretrain
from eigenshot.training.step import EagerStep
from tests.training.test_accumulation import assert_same, build, mix_at, outcome, views
from tests.training.test_captured import distance, parts_of, run
from tests.training.test_pretrain import Recorder, tiny

LOCAL = {"augment__local_views": 2, "augment__local_side": 0.75, "augment__local": {"shift": 0.3}}


def test_a_run_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    config = tiny(**LOCAL, training__resolution=[[0, 24], [0.5, 28]])
    pretrain("glyphs", config, tmp_path / "unbroken", device="cpu")
    with pytest.raises(Interrupted):
        pretrain("glyphs", config, tmp_path / "broken", device="cpu", reporter=Recorder(stop_at=4))
    pretrain("glyphs", config, tmp_path / "broken", device="cpu", resume=True)
    files = [tmp_path / name / "encoder.safetensors" for name in ("unbroken", "broken")]
    assert files[0].read_bytes() == files[1].read_bytes()
    changed = tiny(**{**LOCAL, "augment__local_views": 3})
    with pytest.raises(UserError, match=r"augment\.local_views: 2 in the run, 3 asked"):
        pretrain("glyphs", changed, tmp_path / "broken", device="cpu", resume=True)


def test_small_views_change_what_is_learned(tmp_path: Path) -> None:
    for name, changes in (("two", {}), ("small", LOCAL)):
        pretrain("glyphs", tiny(**changes), tmp_path / name, device="cpu")
    files = [tmp_path / name / "encoder.safetensors" for name in ("two", "small")]
    assert files[0].read_bytes() != files[1].read_bytes()


@pytest.mark.parametrize("whole", [False, True])
def test_a_run_in_parts_has_small_views_too(tmp_path: Path, whole: bool) -> None:
    parts = {"training__micro_batches": 2, "training__whole_batch_loss": whole}
    run = pretrain("glyphs", tiny(**LOCAL, **parts), tmp_path / "run", device="cpu")
    assert run.summary["final"]["loss"] > 0


@pytest.mark.parametrize("layer", [None, 0, 2])
def test_the_loss_of_a_whole_batch_in_parts_is_that_of_a_single_pass(layer: int | None) -> None:
    """Without batch statistics inside the network, as of two views alone."""
    method, mix = build(), None if layer is None else mix_at(layer, 24, 4)
    local = torch.stack([2 * view for view in views(24)], dim=1)
    single = copy.deepcopy(method)
    terms = single(*views(24), mix, local=local)
    terms["loss"].backward()
    found = accumulate_whole(method, *views(24), mix, [1, 2, 3, 4], local=local)
    assert_same(outcome(method, found), outcome(single, terms))


def test_a_part_has_the_small_views_of_its_own_images() -> None:
    local = torch.stack([2 * view for view in views(8)], dim=1)
    parted = build()
    found = accumulate_parts(parted, *views(8), None, [1, 2], local=local)
    one_by_one = build()
    for half in (slice(0, 4), slice(4, 8)):
        view_a, view_b = (view[half] for view in views(8))
        (one_by_one(view_a, view_b, local=local[half])["loss"] / 2).backward()
    for name, parameter in one_by_one.named_parameters():
        torch.testing.assert_close(parted.get_parameter(name).grad, parameter.grad)
    assert found["loss"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augment__local_views": -1}, r"augment\.local_views must be at least 0, found -1"),
        ({"augment__local_side": 0.0}, r"augment\.local_side is a share .* found 0\.0"),
        ({"augment__local_side": 1.5}, r"augment\.local_side is a share .* found 1\.5"),
        (
            {"augment__local_views": 2, "augment__local": {"shifts": 1}},
            "has no option 'shifts'; did you mean 'shift'",
        ),
        ({"augment__local": {"shifts": 1}}, "has no option 'shifts'; did you mean 'shift'"),
        (
            {"augment__local_views": 2, "method__name": "byol"},
            "method 'byol' takes two views and no small ones; use augment.local_views=0",
        ),
    ],
)
def test_what_is_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        pretrain("glyphs", tiny(**changes), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


GPU_LOCAL = {
    "augment__local_views": 2,
    "augment__local": {"crop_area_min": 0.05, "crop_area_max": 0.3},
}


@pytest.mark.gpu
def test_captured_and_plain_steps_agree() -> None:
    captured, plain = parts_of(**GPU_LOCAL), parts_of(**GPU_LOCAL)
    recorder = Recorder()
    ours, theirs = run(captured, CapturedStep, recorder), run(plain, EagerStep)
    assert recorder.notes == [], "nothing fell back"
    assert distance(captured, plain) < 1e-3
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-2)


@pytest.mark.gpu
def test_compiled_steps_agree() -> None:
    compiled, plain = parts_of(engine__compile="on", **GPU_LOCAL), parts_of(**GPU_LOCAL)
    recorder = Recorder()
    compile_if_worthwhile(compiled, 1, recorder)
    ours, theirs = run(compiled, CapturedStep, recorder), run(plain, EagerStep)
    assert len(recorder.notes) == 1, "nothing fell back"
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.05)
