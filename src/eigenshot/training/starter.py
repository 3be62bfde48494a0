"""How many processes train together and what each is called, by who has started them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from eigenshot.errors import UserError

Starter: TypeAlias = Literal["torchrun", "srun", "none"]

_MEETING = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")


def processes(devices: int, nodes: int, environment: Mapping[str, str]) -> tuple[int, int]:
    """How many processes a machine, and how many machines.

    Where torchrun or srun have started the processes, their variables decide: 1 and 1, which are
    the defaults, then mean as many as there are, and other numbers must agree with them. Elsewhere
    it is what is asked for, also in a shell inside an allocation of SLURM.

    Parameters
    ----------
    devices, nodes : as asked for.
    environment : variables of this process, such as ``os.environ``.
    """
    for option, value in (("--devices", devices), ("--nodes", nodes)):
        if value < 1:
            raise UserError(f"{option} must be at least 1, found {value}")
    starter = starter_of(environment)
    if starter == "none":
        missing = [name for name in _MEETING if name not in environment]
        if nodes > 1 and missing:
            raise UserError(
                f"--nodes {nodes} needs {', '.join(missing)} in the environment of each machine; "
                "torchrun and srun set what is needed"
            )
        return devices, nodes
    found = _of_torchrun(environment) if starter == "torchrun" else _of_srun(environment)
    for option, asked, there in zip(("--devices", "--nodes"), (devices, nodes), found, strict=True):
        if asked not in (1, there):
            raise UserError(
                f"{option} {asked} contradicts {starter}, which has started processes as "
                f"--devices {found[0]} --nodes {found[1]} would; leave both options out"
            )
    return found


def own_name(environment: Mapping[str, str]) -> str:
    """What to call this process in a message; empty for the first, or where it is alone."""
    starter = starter_of(environment)
    if starter == "none":
        if "LOCAL_RANK" not in environment:
            return ""
        number, machine = _number(environment, "LOCAL_RANK"), _number(environment, "NODE_RANK", 0)
        where = f" of machine {machine}" if machine else ""
        return f"process {number}{where}" if number or machine else ""
    number = _number(environment, "RANK" if starter == "torchrun" else "SLURM_PROCID")
    return f"process {number}" if number else ""


def starter_of(environment: Mapping[str, str]) -> Starter:
    """Who has started the processes that train together: a launcher, or nobody yet."""
    if "LOCAL_WORLD_SIZE" in environment and "WORLD_SIZE" in environment:
        return "torchrun"
    # Only srun numbers its steps: a shell or a batch script has the variables of the allocation.
    by_srun = "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment
    return "srun" if by_srun and _number(environment, "SLURM_NTASKS", 1) > 1 else "none"


def _of_torchrun(environment: Mapping[str, str]) -> tuple[int, int]:
    together = _number(environment, "WORLD_SIZE")
    here = _number(environment, "LOCAL_WORLD_SIZE")
    if here < 1 or together % here:
        raise UserError(
            f"expected equally many processes on every machine, found {here} on this one and "
            f"{together} in all; start torchrun with one --nproc-per-node everywhere"
        )
    return here, together // here


def _of_srun(environment: Mapping[str, str]) -> tuple[int, int]:
    together, nodes = (
        _number(environment, "SLURM_NTASKS"),
        _number(environment, "SLURM_NNODES", 1),
    )
    here = _number(environment, "SLURM_NTASKS_PER_NODE", 0)
    if here * nodes != together:
        said = f"{here} on each" if here else "not how many on each"
        raise UserError(
            f"srun has started {together} processes on {nodes} machines, and says {said}; "
            "give --ntasks-per-node, as many as there are GPUs"
        )
    return here, nodes


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    try:
        return int(text)
    except ValueError:
        raise UserError(f"expected a number in the variable {name}, found '{text}'") from None
