"""A batch in parts that go through the network one after the other, in the memory of one part.

*Plain*, each part has a loss of its own and their mean is minimised: whatever the loss makes of a
batch, such as standardisation and decorrelation, it makes of a part.

*Whole*, the loss is that of the batch. A first pass without gradients keeps what the loss is
computed from, a row an image. The loss of all rows gives the gradient of each, and a second pass
takes these back through the network, part by part. That is the chain rule and nothing is
approximated: with ``h`` the rows and ``θ`` the weights, dL/dθ = Σ_parts (dL/dh_part)(dh_part/dθ).

In both, batch normalisation inside the network has the statistics of a part.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from eigenshot.collective import average_gradients
from eigenshot.errors import UserError
from eigenshot.networks.keeping import copied_buffers, put_back
from eigenshot.options import takes

Context: TypeAlias = Callable[[], AbstractContextManager[Any]]


def check_method(method: nn.Module, *, micro_batches: int, whole_batch_loss: bool) -> None:
    """Refuse a method of which a batch cannot be split as asked."""
    if micro_batches == 1:
        return
    name = type(method).__name__
    draw = getattr(method, "draw", None)
    if callable(draw) and not takes(draw, "blocks"):
        raise UserError(
            f"a batch cannot be split, for the draw of {name} takes no 'blocks'; use "
            "training.micro_batches=1, or let draw(batch_size, generator, blocks=1) choose for "
            "each of so many equal blocks by itself"
        )
    if whole_batch_loss and not _has_objective(method):
        raise UserError(
            f"training.whole_batch_loss needs a method with 'represent' and 'objective', and "
            f"{name} has a forward alone; leave it off, and each part has a loss of its own"
        )


def _has_objective(method: nn.Module) -> bool:
    """Whether the method can compute from rows, and its forward is no later thought than that."""
    names = ("represent", "objective", "forward")
    if not all(callable(getattr(method, name, None)) for name in names):
        return False
    # A class that has inherited an objective and changed the forward says something else with it.
    owners = list(type(method).__mro__)
    objective, forward = (
        next((place for place, owner in enumerate(owners) if name in vars(owner)), len(owners))
        for name in names[1:]
    )
    return objective <= forward


def check_draw(method: nn.Module, drawn: Any | None) -> None:
    """Refuse random choices that cannot be split into those of parts."""
    if drawn is not None and not callable(getattr(drawn, "part", None)):
        raise UserError(
            f"a batch cannot be split, for what {type(method).__name__} draws, "
            f"{type(drawn).__name__}, has no 'part(index, count)'; use training.micro_batches=1"
        )


def accumulate_parts(
    module: nn.Module,
    view_a: Tensor,
    view_b: Tensor,
    drawn: Any | None,
    seeds: Sequence[int],
    *,
    backward: Callable[[Tensor], None] = Tensor.backward,
    autocast: Context = contextlib.nullcontext,
    unsynchronised: Context = contextlib.nullcontext,
) -> dict[str, Tensor]:
    """Add the gradient of the parts' mean loss to that of the parameters; return the mean terms.

    Parameters
    ----------
    module : the method, or what wraps it.
    view_a, view_b : ``(batch, C, H, W)``, two views of the same images.
    drawn : what the method has drawn for as many blocks as there are parts.
    seeds : of torch's own generator, one for each part.
    backward : how a loss is taken back.
    autocast : the context of a forward pass.
    unsynchronised : the context in which gradients are not exchanged with other processes; all
        parts but the last run in it.
    """
    count = len(seeds)
    sums: dict[str, Tensor] = {}
    for index, part in enumerate(_parts(view_a, view_b, drawn, count)):
        with contextlib.nullcontext() if index == count - 1 else unsynchronised():
            torch.manual_seed(seeds[index])
            with autocast():
                terms = module(*part)
            backward(terms["loss"] / count)
        for name, term in terms.items():
            share = term.detach() / count
            sums[name] = sums[name] + share if name in sums else share
    return sums


def accumulate_whole(
    method: nn.Module,
    view_a: Tensor,
    view_b: Tensor,
    drawn: Any | None,
    seeds: Sequence[int],
    *,
    autocast: Context = contextlib.nullcontext,
) -> dict[str, Tensor]:
    """Add the gradient of the whole batch's loss to that of the parameters; return its terms.

    Parameters are as in `accumulate_parts`. Where several processes train together, ``method``
    itself is to be given, not its wrapper: the gradients that stand in its parameters at the end
    are averaged over ranks here, once.
    """
    represent: Callable[..., tuple[Tensor, Tensor]] = method.represent  # type: ignore[assignment]
    objective: Callable[..., dict[str, Tensor]] = method.objective  # type: ignore[assignment]
    parts = _parts(view_a, view_b, drawn, len(seeds))
    before = copied_buffers(method)
    kept = []
    for seed, part in zip(seeds, parts, strict=True):
        torch.manual_seed(seed)
        # A context a pass: autocast would hand weights cast without gradients on to the next.
        with torch.no_grad(), autocast():
            kept.append(represent(*part))
    rows_a, rows_b = (torch.cat(rows).requires_grad_() for rows in zip(*kept, strict=True))
    with autocast():
        terms = objective(rows_a, rows_b, *_given(drawn))
    terms["loss"].backward()

    # The second pass finds everything as the first did, and leaves no trace but gradients.
    after = copied_buffers(method)
    put_back(method, before)
    for index, (seed, part) in enumerate(zip(seeds, parts, strict=True)):
        torch.manual_seed(seed)
        with autocast():
            rows = represent(*part)
        _take_back(rows, [_slope(whole, index, len(seeds)) for whole in (rows_a, rows_b)])
    put_back(method, after)
    average_gradients(method.parameters())
    return {name: term.detach() for name, term in terms.items()}


def _slope(whole: Tensor, index: int, count: int) -> Tensor | None:
    """The gradient of the rows of one part; None where the loss does not depend on them."""
    return None if whole.grad is None else whole.grad.chunk(count)[index]


def _take_back(rows: Sequence[Tensor], slopes: Sequence[Tensor | None]) -> None:
    """Take the gradients of rows back through the network, for those that have any."""
    pairs = [
        (row, slope)
        for row, slope in zip(rows, slopes, strict=True)
        if slope is not None and row.requires_grad
    ]
    if pairs:
        torch.autograd.backward([row for row, _ in pairs], [slope for _, slope in pairs])


def _parts(view_a: Tensor, view_b: Tensor, drawn: Any | None, count: int) -> list[tuple[Any, ...]]:
    """The arguments of a forward pass for each of ``count`` equal parts of the batch."""
    if len(view_a) % count:
        raise UserError(
            f"{len(view_a)} images do not split into {count} equal parts; choose a "
            "training.micro_batches that divides the batch of each process"
        )
    views = zip(view_a.chunk(count), view_b.chunk(count), strict=True)
    return [
        (*pair, *_given(None if drawn is None else drawn.part(index, count)))
        for index, pair in enumerate(views)
    ]


def _given(drawn: Any | None) -> tuple[Any, ...]:
    """The third argument of a method's functions, which is left out where nothing is drawn."""
    return () if drawn is None else (drawn,)
