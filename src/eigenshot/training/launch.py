"""How processes that train together find each other, and how they part."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

from eigenshot.errors import UserError
from eigenshot.machine import PROCESSES_VARIABLE
from eigenshot.reporter import Reporter
from eigenshot.training.prompt import ended_by_ctrl_c
from eigenshot.training.starter import Starter, own_name, starter_of
from eigenshot.training.watcher import Watch, parent_of_this, starting

# torch and lightning-fabric are imported where they are used: a process that is alone and trains
# nothing needs neither.

_LETTING_GO = 0.1  # seconds for the group's threads to drop what they have worked on

# A script that trains several times starts its processes once, and they go from run to run.
_started: list[subprocess.Popen[bytes]] = []


def launch(
    device: str,
    devices: int = 1,
    nodes: int = 1,
    *,
    reporter: Reporter | None = None,
    way_on: str = "",
) -> Any:
    """A Fabric on ``device`` (``"cpu"``, ``"cuda"``, ``"mps"``) whose processes have all met.

    ``devices`` and ``nodes`` are what `processes` returned. Processes of this machine that nobody
    has started yet are started by running the same command. Nobody returns before all are there.

    From then on, until they part, a process that dies ends the others: with a sentence that tells
    the ``way_on``, and bars of ``reporter`` taken away.
    """
    if devices * nodes == 1:
        fabric = _fabric(device, 1, 1, "none")
        fabric.launch()
        return fabric
    _check_possible(device, devices)
    starter = starter_of(os.environ)
    if starter == "torchrun":
        from eigenshot.training.meeting import meet_under_torchrun

        meet_under_torchrun(device)
    fabric = _fabric(device, devices, nodes, starter)
    ours = starter == "none"  # elsewhere who has started them ends them
    parent = parent_of_this() if ours else None
    watch = Watch(_started if ours else [], parent=parent, reporter=reporter, way_on=way_on)
    fabric.watch = watch
    try:
        with contextlib.ExitStack() as held:
            held.enter_context(watch.telling())
            if ours:
                held.enter_context(ended_by_ctrl_c(_started, speaks=not own_name(os.environ)))
                watch.begin()
            if fabric.strategy.launcher is not None:
                held.enter_context(starting(watch.children, fabric.strategy.launcher))
            fabric.launch()
            fabric.barrier()
    except BaseException:
        watch.end_children()
        raise
    return fabric


def _fabric(device: str, devices: int, nodes: int, starter: Starter) -> Any:
    """A Fabric whose processes have not met yet."""
    try:
        from lightning_fabric import Fabric
        from lightning_fabric.plugins import environments
        from lightning_fabric.strategies import DDPStrategy
    except ImportError:  # the same engine, as the larger package brings it
        from lightning.fabric import Fabric  # type: ignore[no-redef]
        from lightning.fabric.plugins import environments  # type: ignore[no-redef]
        from lightning.fabric.strategies import DDPStrategy  # type: ignore[no-redef]

    # Which variables count is decided here, so that Fabric does not look for more.
    cluster = {
        "torchrun": environments.TorchElasticEnvironment,
        "srun": environments.SLURMEnvironment,
        "none": environments.LightningEnvironment,
    }[starter]()
    if devices * nodes == 1:
        return Fabric(accelerator=device, devices=1, plugins=cluster)
    # The statistics are of all processes' images already: there is nothing to send about.
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    logging.getLogger(Fabric.__module__.rpartition(".")[0]).setLevel(logging.WARNING)
    strategy = DDPStrategy(broadcast_buffers=False, cluster_environment=cluster)
    return Fabric(accelerator=device, devices=devices, num_nodes=nodes, strategy=strategy)


def _check_possible(device: str, devices: int) -> None:
    """Refuse what Fabric could not start."""
    import torch

    if getattr(sys, "ps1", None) or sys.flags.interactive:
        raise UserError(
            "several processes cannot be started from an interactive session; use the command line "
            "or a script"
        )
    if device == "mps":
        raise UserError("an MPS device trains one process; leave out --devices and --nodes")
    if device == "cuda" and devices > torch.cuda.device_count():
        raise UserError(
            f"{devices} processes a machine need as many GPUs, but this one sees "
            f"{torch.cuda.device_count()}; ask for fewer, or let every process see all of them "
            "(SLURM: --gpus-per-node instead of --gpus-per-task)"
        )


def require_agreement(fabric: Any, value: Any, otherwise: str) -> None:
    """Raise `UserError` with the sentence ``otherwise`` on all processes unless all have ``value``.

    ``value`` is something small that can be compared and pickled.
    """
    from eigenshot.collective import any_rank

    if any_rank(fabric.broadcast(value) != value, fabric.device):
        raise UserError(otherwise)


@contextlib.contextmanager
def all_or_none(fabric: Any) -> Iterator[None]:
    """Let what fails in the block on one process fail on all, so that none waits for it.

    Those that had no trouble of their own raise a `UserError` with the message of one that had.
    Nothing that processes do together may stand in the block.
    """
    import torch.distributed as dist

    from eigenshot.collective import any_rank, world_size

    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    if any_rank(failure is not None, fabric.device) and world_size() > 1:
        kind = "" if isinstance(failure, UserError) else f"{type(failure).__name__}: "
        said: list[str | None] = [None] * world_size()
        dist.all_gather_object(said, None if failure is None else f"{kind}{failure}")
        number, text = next((n, text) for n, text in enumerate(said) if text is not None)
        failure = failure or UserError(f"process {number} cannot go on: {text}")
    if failure is not None:
        raise failure


@contextlib.contextmanager
def parting(fabric: Any, *agreed: type[Exception]) -> Iterator[None]:
    """Part at the end of the block: no process leaves before all have come to it.

    That holds for ``agreed`` too, exceptions that all processes raise at one place. After any other
    the processes that this one has started are ended. Within the block the processes of a machine
    take shares of its memory and cores, and the death of one is a `ProcessLost` for the others.
    """
    watch = getattr(fabric, "watch", None) or Watch([])  # a single process has nobody to lose
    try:
        with watch.telling():
            try:
                with _sharing_the_machine(fabric):
                    yield
            except agreed:
                _leave(fabric)
                raise
            _leave(fabric)
    except agreed:
        watch.stop()
        raise
    except BaseException:
        watch.end_children()
        raise
    watch.stop()


def _leave(fabric: Any) -> None:
    """Wait for all processes and part: a group that outlives Python can abort an orderly exit."""
    import torch.distributed as dist

    if fabric.world_size > 1:
        fabric.barrier()
        # To drop a tensor a thread of the group needs Python's lock, and a group that ends with the
        # interpreter waits for its threads with the lock held: here it is free.
        time.sleep(_LETTING_GO)
        dist.destroy_process_group()


@contextlib.contextmanager
def _sharing_the_machine(fabric: Any) -> Iterator[None]:
    """Let this process and its workers know how many train together on this machine."""
    here = getattr(fabric.strategy, "num_processes", 1)
    if here == 1:
        yield
        return
    before = os.environ.get(PROCESSES_VARIABLE)
    os.environ[PROCESSES_VARIABLE] = str(here)
    try:
        yield
    finally:
        if before is None:
            del os.environ[PROCESSES_VARIABLE]
        else:
            os.environ[PROCESSES_VARIABLE] = before
