"""Sums and gathered rows over two real processes, and nothing at all in a single one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from eigenshot.collective import (
    any_rank,
    batch_mean,
    gather_rows,
    mean_over_ranks,
    rank,
    sum_over_ranks,
    world_size,
)

Results = dict[str, Any]


def on_two_ranks(function: Callable[..., Results], folder: Path, *arguments: Any) -> list[Results]:
    """What ``function(*arguments)`` returns in each of two new processes that know each other."""
    torch.multiprocessing.spawn(_on_rank, (function, folder, arguments), nprocs=2)
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(2)]


def _on_rank(
    number: int, function: Callable[..., Results], folder: Path, arguments: tuple[Any, ...]
) -> None:
    dist.init_process_group(
        "gloo",
        init_method=(folder / "meeting").as_uri(),
        rank=number,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    torch.save(function(*arguments), folder / f"{number}.pt")
    dist.barrier()
    # Without Python's tidying up, in which threads of the group that are still about can abort.
    os._exit(0)


def numbers(name: str, number: int, *shape: int) -> Tensor:
    """The same random numbers wherever they are asked for."""
    generator = torch.Generator().manual_seed(10 * len(name) + number)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def exchange() -> Results:
    """Everything the tests below look at, from one of the two processes."""
    own = rank()
    x = numbers("x", own, 3, 4).requires_grad_()
    kept = x.detach().clone()
    total = sum_over_ranks(x)
    (total * numbers("weights", own, 3, 4)).sum().backward()
    transposed = numbers("x", own, 3, 4).requires_grad_()
    sum_over_ranks(transposed.T).sum().backward()  # not contiguous, and an expanded gradient
    rows = numbers("rows", own, 2, 3, 5).requires_grad_()
    gathered = gather_rows(rows.transpose(1, 2))
    (gathered * numbers("row weights", own, 4, 5, 3)).sum().backward()
    values = numbers("rows", own, 2, 3, 5).requires_grad_()
    mean = batch_mean(values, (0, 2))
    (mean * numbers("mean weights", own, 3)).sum().backward()
    logged = mean_over_ranks((x * x).sum())
    squared = sum_over_ranks(x).square().sum()
    (slope,) = torch.autograd.grad(squared, x, create_graph=True)
    try:
        slope.sum().backward()
        second_derivative = "had"
    except RuntimeError:
        second_derivative = "refused"
    return {
        "place": (rank(), world_size()),
        "total": total.detach(),
        "total gradient": x.grad,
        "unchanged": torch.equal(x.detach(), kept),
        "ones": transposed.grad,
        "scalar": sum_over_ranks(torch.tensor(own + 1.0)),
        "gathered": gathered.detach(),
        "gathered gradient": rows.grad,
        "mean": mean.detach(),
        "mean gradient": values.grad,
        "logged": logged,
        "logged has a graph": logged.requires_grad,
        "votes": [any_rank(flag, "cpu") for flag in (own == 0, own == 1, True, False)],
        "second derivative": second_derivative,
    }


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return on_two_ranks(exchange, tmp_path_factory.mktemp("ranks"))


def both(name: str, *shape: int) -> list[Tensor]:
    return [numbers(name, number, *shape) for number in range(2)]


class TestTwoProcesses:
    def test_each_knows_its_place(self, results: list[Results]) -> None:
        assert [found["place"] for found in results] == [(0, 2), (1, 2)]

    def test_the_sum_and_its_gradient(self, results: list[Results]) -> None:
        for found in results:
            torch.testing.assert_close(found["total"], sum(both("x", 3, 4)))
            torch.testing.assert_close(found["total gradient"], sum(both("weights", 3, 4)))
            assert found["unchanged"]
            assert float(found["scalar"]) == 3.0

    def test_the_sum_of_a_view_and_of_an_expanded_gradient(self, results: list[Results]) -> None:
        for found in results:
            torch.testing.assert_close(found["ones"], torch.full((3, 4), 2.0).double())

    def test_rows_stand_in_rank_order_and_each_gradient_returns_to_its_own(
        self, results: list[Results]
    ) -> None:
        weights = sum(both("row weights", 4, 5, 3))
        assert isinstance(weights, Tensor)
        for number, found in enumerate(results):
            torch.testing.assert_close(
                found["gathered"], torch.cat(both("rows", 2, 3, 5)).transpose(1, 2)
            )
            torch.testing.assert_close(
                found["gathered gradient"],
                weights[2 * number : 2 * number + 2].transpose(1, 2),
            )

    def test_the_mean_is_that_of_the_rows_together(self, results: list[Results]) -> None:
        weights = sum(both("mean weights", 3))
        assert isinstance(weights, Tensor)
        for found in results:
            torch.testing.assert_close(
                found["mean"], torch.cat(both("rows", 2, 3, 5)).mean(dim=(0, 2))
            )
            # Each of 20 values a channel has a twentieth share.
            expected = (weights / 20).view(1, 3, 1).expand(2, 3, 5)
            torch.testing.assert_close(found["mean gradient"], expected)

    def test_logged_means_are_alike_and_carry_no_graph(self, results: list[Results]) -> None:
        expected = sum(float((x * x).sum()) for x in both("x", 3, 4)) / 2
        for found in results:
            assert float(found["logged"]) == pytest.approx(expected)
            assert not found["logged has a graph"]

    def test_one_vote_is_enough(self, results: list[Results]) -> None:
        for found in results:
            assert found["votes"] == [True, True, True, False]

    def test_a_second_derivative_is_refused_rather_than_wrong(self, results: list[Results]) -> None:
        assert all(found["second derivative"] == "refused" for found in results)


@pytest.fixture(params=["without torch.distributed", "a group of one"])
def alone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    if request.param == "a group of one":
        meeting = (tmp_path / "meeting").as_uri()
        dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
class TestSingleProcess:
    def test_nothing_is_exchanged_or_copied(self) -> None:
        x = torch.randn(3, 2, requires_grad=True)
        assert (rank(), world_size()) == (0, 1)
        assert sum_over_ranks(x) is x
        assert gather_rows(x) is x
        assert torch.equal(batch_mean(x, 0), x.mean(dim=0))
        logged = mean_over_ranks(x)
        assert torch.equal(logged, x)
        assert not logged.requires_grad
        assert [any_rank(flag, "cpu") for flag in (True, False)] == [True, False]


def test_a_compiled_function_has_no_break_at_a_collective() -> None:
    def function(x: Tensor) -> Tensor:
        return sum_over_ranks(x.T @ x) + gather_rows(x).sum() + batch_mean(x, 0)

    x = torch.randn(5, 3)
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), function(x))
