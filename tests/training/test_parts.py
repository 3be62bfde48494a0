"""The small parts of training: schedule, meter, diagnostics, interruption, randomness."""

from __future__ import annotations

import math
import os
import signal

import numpy as np
import pytest
import torch

from eigenshot.config import Config, OptimizerConfig
from eigenshot.errors import TrainingDiverged, UserError
from eigenshot.randomness import derive_seed, numpy_generator, torch_generator
from eigenshot.reporter import duration
from eigenshot.training.diagnostics import diagnose, effective_rank, relative_step, uniformity
from eigenshot.training.interrupt import Interruption
from eigenshot.training.meter import Meter
from eigenshot.training.probe import interclass_transition
from eigenshot.training.schedule import Schedule, schedule_of


class TestSchedule:
    def test_equals_torch_s_cosine(self) -> None:
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.05)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40)
        rate_at = Schedule(0.05, total_steps=40)
        for step in range(40):
            assert rate_at(step) == pytest.approx(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()

    def test_a_trapezoid_is_constant_and_falls_as_torch_s_linear_schedule(self) -> None:
        optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.05)
        falling = torch.optim.lr_scheduler.LinearLR(
            optimizer, start_factor=1.0, end_factor=1e-12, total_iters=10
        )
        rate_at = Schedule(0.05, total_steps=40, cooldown_steps=10)
        assert {rate_at(step) for step in range(31)} == {0.05}
        for step in range(30, 40):
            assert rate_at(step) == pytest.approx(falling.get_last_lr()[0])
            optimizer.step()
            falling.step()

    @pytest.mark.parametrize("cooldown", [None, 20])
    def test_warm_up_rises_in_equal_steps_to_the_base(self, cooldown: int | None) -> None:
        rate_at = Schedule(1.0, total_steps=100, warmup_steps=4, cooldown_steps=cooldown)
        np.testing.assert_allclose([rate_at(s) for s in range(5)], [0.2, 0.4, 0.6, 0.8, 1.0])

    @pytest.mark.parametrize("cooldown", [None, 25])
    def test_it_ends_at_zero(self, cooldown: int | None) -> None:
        rate_at = Schedule(1.0, total_steps=100, cooldown_steps=cooldown)
        assert rate_at(100) == pytest.approx(0.0)
        assert 0 < rate_at(99) < 1 / 24

    def test_warm_up_and_fall_that_do_not_fit_leave_no_plateau(self) -> None:
        settings = OptimizerConfig(lr=1.0, warmup_epochs=9, schedule="trapezoid", cooldown=0.9)
        rate_at = schedule_of(settings, steps_an_epoch=10, total_steps=100)
        assert rate_at.plateau_end == rate_at.warmup_steps == 50
        rates = [rate_at(step) for step in range(101)]
        assert rates[:51] == sorted(rates[:51])
        assert rates[50:] == sorted(rates[50:], reverse=True)
        assert (rates[50], rates[100]) == (1, 0)

    def test_without_a_fall_it_stays_where_it_is(self) -> None:
        settings = OptimizerConfig(lr=1.0, schedule="trapezoid", cooldown=0.0)
        rate_at = schedule_of(settings, steps_an_epoch=10, total_steps=100)
        assert {rate_at(step) for step in range(100)} == {1.0}

    @pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
    def test_a_share_that_is_none_is_refused(self, share: float) -> None:
        with pytest.raises(UserError, match=r"optimizer\.cooldown is the share of the run"):
            Config(optimizer=OptimizerConfig(cooldown=share))


class TestMeter:
    def test_means_since_the_last_reset(self) -> None:
        meter = Meter()
        for value in (1.0, 2.0, 6.0):
            meter.add({"loss": torch.tensor(value)})
            meter.count += 1
        assert meter.means() == {"loss": 3.0}
        meter.reset()
        meter.add({"loss": torch.tensor(5.0)})
        meter.count += 1
        assert meter.means() == {"loss": 5.0}

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_one_value_that_is_not_finite_is_found_later(self, value: float) -> None:
        meter = Meter()
        for term in (1.0, value, 1.0):
            meter.add({"loss": torch.tensor(1.0), "trace": torch.tensor(term)})
            meter.count += 1
        with pytest.raises(TrainingDiverged, match="trace is no longer finite"):
            meter.check_finite()
        with pytest.raises(TrainingDiverged, match="trace is no longer finite"):
            meter.glance_at_finite()
        meter.add({"loss": torch.tensor(value), "trace": torch.tensor(value)})
        with pytest.raises(TrainingDiverged, match="loss, trace are no longer finite"):
            meter.check_finite()

    @pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
    def test_a_glance_sees_what_was_there_at_an_earlier_one(self, device: str) -> None:
        meter = Meter()
        assert meter.glance() == {}
        for value in (1.0, 3.0):
            meter.add({"loss": torch.tensor(value, device=device)})
            meter.count += 1
        first = meter.glance()
        assert first == ({"loss": 2.0} if device == "cpu" else {}), "a GPU is not waited for"
        meter.add({"loss": torch.tensor(5.0, device=device)})
        meter.count += 1
        if device == "cuda":
            torch.cuda.synchronize()
            assert meter.glance() == {"loss": 2.0}
            torch.cuda.synchronize()
        assert meter.glance() == {"loss": 3.0}
        meter.reset()
        meter.add({"loss": torch.tensor(7.0, device=device)})
        meter.count += 1
        assert meter.glance() == ({"loss": 7.0} if device == "cpu" else {}), "nothing is left over"

    def test_what_is_seen_does_not_change_with_the_sums(self) -> None:
        meter = Meter()
        meter.add({"loss": torch.tensor(1.0)})
        meter.count += 1
        seen = meter.glance()
        meter.add({"loss": torch.tensor(9.0)})
        assert seen == {"loss": 1.0}


class TestDiagnostics:
    def test_effective_rank_counts_equal_directions(self) -> None:
        basis = torch.linalg.qr(torch.randn(40, 40, dtype=torch.float64)).Q
        for rank in (1, 3, 17):
            assert effective_rank(basis[:, :rank] @ basis[:rank]) == pytest.approx(rank)
        assert effective_rank(torch.zeros(5, 5)) == 0.0

    def test_uniformity_equals_its_definition(self) -> None:
        unit = torch.nn.functional.normalize(torch.randn(9, 4, dtype=torch.float64), dim=1)
        terms = [
            math.exp(-2 * float((unit[i] - unit[j]).square().sum()))
            for i in range(9)
            for j in range(i)
        ]
        assert uniformity(unit) == pytest.approx(math.log(sum(terms) / len(terms)))

    def test_the_relative_step_is_what_the_weights_were_moved_by(self) -> None:
        torch.manual_seed(0)
        network = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))).double()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
        assert relative_step(optimizer) == {}, "nothing has moved yet"
        assert not optimizer.state, "a look leaves nothing behind"
        for _ in range(3):
            before = [layer.weight.detach().clone() for layer in network]
            optimizer.zero_grad()
            network(torch.randn(8, 4).double()).square().sum().backward()
            optimizer.step()
        after = [layer.weight.detach() for layer in network]
        moved = [float((w - old).norm() / w.norm()) for w, old in zip(after, before, strict=True)]
        assert relative_step(optimizer) == {"relative_step": pytest.approx(sorted(moved)[1])}
        still = torch.optim.SGD(network.parameters(), lr=0.1)
        still.step()
        assert relative_step(still) == {}

    def test_weights_that_only_decay_shorten_over_one_less_momentum_by_lr_times_decay(self) -> None:
        weight = torch.ones(3, 3, dtype=torch.float64, requires_grad=True)
        lr, momentum, decay = 0.05, 0.9, 5e-4
        optimizer = torch.optim.SGD([weight], lr=lr, momentum=momentum, weight_decay=decay)
        weight.grad = torch.zeros_like(weight)
        for _ in range(4000):  # the time that the formula gives
            optimizer.step()
        rate = lr * decay / (1 - momentum)
        assert float(weight.detach().mean()) == pytest.approx(math.exp(-1), rel=5e-3)
        assert relative_step(optimizer)["relative_step"] == pytest.approx(rate, rel=5e-3)

    def test_the_relative_step_settles_where_decay_and_steps_balance(self) -> None:
        """Weights before a normalisation: gradients at right angles, shorter for longer weights."""
        generator = torch.Generator().manual_seed(0)
        lr, momentum, decay = 0.1, 0.9, 0.01  # a hundred steps to forget how long they were
        settled = []
        for length in (0.1, 10.0):
            weight = torch.randn(50, 40, generator=generator, dtype=torch.float64)
            weight.mul_(length / weight.norm()).requires_grad_()
            optimizer = torch.optim.SGD([weight], lr=lr, momentum=momentum, weight_decay=decay)
            for _ in range(1500):
                own = weight.detach()
                slope = torch.randn(50, 40, generator=generator, dtype=torch.float64) / own.norm()
                weight.grad = slope - (slope * own).sum() / own.square().sum() * own
                optimizer.step()
            settled.append(relative_step(optimizer)["relative_step"])
        expected = math.sqrt(2 * lr * decay / (1 + momentum))
        assert settled == pytest.approx([expected, expected], rel=0.05)

    def test_healthy_collapsed_and_vanished(self) -> None:
        z = torch.randn(200, 30, generator=torch.Generator().manual_seed(0))
        healthy = diagnose(z, z)
        assert healthy.collapse(standardised=True) is None
        assert healthy.alignment == 0.0
        line = torch.randn(200, 1) @ torch.randn(1, 30)
        found = diagnose(line, line).collapse(standardised=False)
        assert "effective rank 1.00" in str(found)
        small = diagnose(0.01 * z, 0.01 * z)
        assert "deviation 0.010" in str(small.collapse(standardised=True))
        assert small.collapse(standardised=False) is None, "short embeddings may be healthy"
        point = 0.01 * z + 1
        assert "deviation 0.010" in str(diagnose(point, point).collapse(standardised=False)) or (
            "effective rank" in str(diagnose(point, point).collapse(standardised=False))
        )

    def test_alignment_of_independent_views_on_the_sphere_is_two(self) -> None:
        generator = torch.Generator().manual_seed(0)
        one, other = torch.randn(2, 4000, 64, generator=generator)
        assert diagnose(one[:500], other[:500]).alignment == pytest.approx(2.0, abs=0.05)


def test_interclass_transition_sees_separated_classes() -> None:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 40)
    apart = np.eye(3)[labels] + 0.01 * generator.normal(size=(120, 3))
    assert interclass_transition(apart, labels) == pytest.approx(0.0, abs=1e-12)
    # With labels that mean nothing, two of three neighbours belong to other classes.
    shuffled = interclass_transition(generator.normal(size=(120, 8)), labels)
    assert shuffled == pytest.approx(2 / 3, abs=0.08)


class TestRandomness:
    def test_a_place_has_its_own_stream_whatever_was_drawn_before(self) -> None:
        first = numpy_generator(0, "order", 3).permutation(50)
        numpy_generator(0, "order", 2).permutation(50)
        np.testing.assert_array_equal(first, numpy_generator(0, "order", 3).permutation(50))
        assert (first != numpy_generator(0, "order", 4).permutation(50)).any()
        assert (first != numpy_generator(1, "order", 3).permutation(50)).any()
        one = torch.rand(4, generator=torch_generator(0, "augment", 1))
        assert torch.equal(one, torch.rand(4, generator=torch_generator(0, "augment", 1)))

    def test_pinned(self) -> None:
        """Resuming an old run with a new version must draw the same."""
        assert derive_seed(0, "augment", 1) == 1931092453115096139


class TestInterruption:
    def test_first_signal_is_a_request_and_a_later_one_acts(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = signal.getsignal(signal.SIGINT)
        now = 100.0
        monkeypatch.setattr("eigenshot.training.interrupt.time.monotonic", lambda: now)
        with Interruption() as interruption:
            assert not interruption.requested
            os.kill(os.getpid(), signal.SIGINT)
            assert interruption.requested
            now += 0.5
            os.kill(os.getpid(), signal.SIGINT)  # the same request: the state is being saved
            now += 0.6
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (75, "75 s"), (150, "2 min"), (7800, "2 h 10 min"), (3e5, "3.5 days")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words
