"""What a run does at which step, and when a longer one does the same."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from eigenshot.config import Config, OptimizerConfig, TrainingConfig
from eigenshot.training.course import Course, stretched


def settings(epochs: int, *, batch: int = 2, stages: Any = (), **optimizer: Any) -> Config:
    return Config(
        training=TrainingConfig(epochs=epochs, batch_size=batch, resolution=stages),
        optimizer=OptimizerConfig(schedule="trapezoid", **optimizer),
    )


def test_an_incomplete_batch_is_no_step() -> None:
    course = Course(settings(3, batch=4), images=11)
    assert (course.steps_an_epoch, course.total_steps) == (2, 6)
    assert course.epochs(3) == 1.5


def test_stretches_are_the_sizes_of_the_steps() -> None:
    stages = ((0.0, 32), (0.25, 16), (0.5, 24), (0.75, 16))
    course = Course(settings(4, stages=stages), images=10)
    sizes = [course.view_size(step) for step in range(course.total_steps)]
    assert sizes == [32] * 5 + [16] * 5 + [24] * 5 + [16] * 5
    for first in range(course.total_steps + 1):
        counted = [
            size
            for begin, end, size in course.stretches(first=first)
            for size in [size] * (end - begin)
        ]
        assert counted == sizes[first:]


def test_without_sizes_views_are_as_large_as_images() -> None:
    assert Course(settings(4), images=10).stretches(first=5) == [(5, 20, None)]


@pytest.mark.parametrize("images", [14, 10_008, 200_006])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.7, 1 / 3])
def test_views_of_longer_runs_grow_at_the_very_steps(images: int, share: float) -> None:
    """However many steps an epoch has: rounded shares came to the step after it in long ones."""
    old = settings(100, stages=((0.0, 16), (share, 24)))
    for epochs in (150, 600, 777):
        new = settings(epochs, stages=stretched(old, settings(epochs)))
        until = Course(old, images).schedule.plateau_end
        changes = [Course(each, images).size_changes(until=until) for each in (old, new)]
        assert changes[0] == changes[1]
        assert len(changes[0]) == 2


def test_rates_of_longer_runs_are_the_same_as_long_as_courses_say_so() -> None:
    cases = itertools.product((1, 2, 3), (2, 4, 10), (0.0, 0.5, 2.0), (0.3, 0.5, 0.9))
    for epochs, images, warmup, cooldown in cases:
        short, long = (
            Course(settings(n, warmup_epochs=warmup, cooldown=cooldown), images)
            for n in (epochs, epochs + 2)
        )
        if short.schedule.warmup_steps != long.schedule.warmup_steps:
            continue
        assert long.schedule.plateau_end >= short.schedule.plateau_end
        for step in range(short.schedule.plateau_end):
            assert short.schedule(step) == long.schedule(step)


@pytest.mark.parametrize("cooldown", [0.18, 0.41, 0.57, 0.7, 0.82, 0.94])
def test_views_that_grow_as_the_rate_begins_to_fall_do_so_in_longer_runs(cooldown: float) -> None:
    """1 less such a share is a little more than it should be."""
    share = round(1 - cooldown, 2)
    old = settings(100, stages=((0.0, 16), (share, 24)), cooldown=cooldown)
    new = stretched(old, settings(200, cooldown=cooldown))
    assert [share for share, _ in new] == pytest.approx([0.0, share])
