"""Processes of one attempt of a torchrun job find each other, and no traces of earlier attempts.

torchrun keeps one store of keys over all its restarts. torch writes the addresses of processes into
it under the same keys every time, so that a restarted process may find those of one that is gone,
and fail to connect to it. Here the processes of an attempt agree on a name, and meet under it.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist

_PATIENCE = timedelta(minutes=30)  # as long as torch waits for processes by default
_PAUSE = 0.02


def meet_under_torchrun(device: str) -> None:
    """Make the process group of a process that torchrun has started, on ``cpu`` or ``cuda``.

    Where torchrun keeps no store, the first process of each attempt makes a new one; then nothing
    is done here.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or dist.is_initialized():
        return
    rank, ranks, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=_PATIENCE)
    own = torch.device(device, local) if device == "cuda" else None
    if own is not None:
        torch.cuda.set_device(own)
    dist.init_process_group(
        "gloo" if own is None else "nccl",
        store=dist.PrefixStore(agree_on_name(store, rank, ranks, _PATIENCE), store),
        rank=rank,
        world_size=ranks,
        timeout=_PATIENCE,
        device_id=own,
    )


def agree_on_name(store: dist.Store, rank: int, ranks: int, patience: timedelta) -> str:
    """A name that all processes of this attempt return, and no others ever have.

    Every process but the first says hello under a random name of its own, and waits for a welcome
    under that very name. The first answers whatever hello it finds, an old one too, until all have
    confirmed that they got its answer: a process that is gone never does.
    """
    own = uuid.uuid4().hex
    if rank > 0:
        store.set(f"eigenshot/hello/{rank}", own)
        store.wait([f"eigenshot/welcome/{own}"], patience)
        name = store.get(f"eigenshot/welcome/{own}").decode()
        store.set(f"eigenshot/{name}/here/{rank}", own)
        return name
    deadline = time.monotonic() + patience.total_seconds()
    missing = set(range(1, ranks))
    while missing:
        for other in sorted(missing):
            if store.check([f"eigenshot/hello/{other}"]):
                greeted = store.get(f"eigenshot/hello/{other}").decode()
                store.set(f"eigenshot/welcome/{greeted}", own)
            if store.check([f"eigenshot/{own}/here/{other}"]):
                missing.remove(other)
        if missing and time.monotonic() > deadline:
            raise TimeoutError(f"{len(missing)} of {ranks} processes have not come")
        time.sleep(_PAUSE if missing else 0)
    return own
