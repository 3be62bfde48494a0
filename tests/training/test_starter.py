"""How many processes there are, and what they are called, by who has started them."""

from __future__ import annotations

import pytest

from eigenshot.errors import UserError
from eigenshot.training.starter import own_name, processes

TORCHRUN = {"LOCAL_WORLD_SIZE": "8", "WORLD_SIZE": "32", "RANK": "9", "LOCAL_RANK": "1"}
ALLOCATION = {"SLURM_NTASKS": "8", "SLURM_NTASKS_PER_NODE": "4", "SLURM_NNODES": "2"}
SRUN = {**ALLOCATION, "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
MEETING = {"MASTER_ADDR": "first", "MASTER_PORT": "2000", "NODE_RANK": "1"}


class TestProcesses:
    @pytest.mark.parametrize(
        ("asked", "environment", "expected"),
        [
            ((1, 1), {}, (1, 1)),
            ((8, 1), {}, (8, 1)),
            ((8, 4), MEETING, (8, 4)),
            # As many as were started, whether asked for or not.
            ((1, 1), TORCHRUN, (8, 4)),
            ((8, 1), TORCHRUN, (8, 4)),
            ((8, 4), TORCHRUN, (8, 4)),
            ((1, 1), SRUN, (4, 2)),
            ((4, 2), SRUN, (4, 2)),
            # torchrun may itself be started by srun, once a machine.
            ((1, 1), {**SRUN, **TORCHRUN}, (8, 4)),
            # A shell or a batch script in an allocation, without srun.
            ((1, 1), ALLOCATION, (1, 1)),
            ((2, 1), {**ALLOCATION, "SLURM_PROCID": "0"}, (2, 1)),
            # One task, which may start the others of its machine.
            ((8, 1), {**SRUN, "SLURM_NTASKS": "1"}, (8, 1)),
            # What Fabric gives to the processes that it starts.
            ((2, 1), {"LOCAL_RANK": "1", "WORLD_SIZE": "2", **MEETING}, (2, 1)),
        ],
    )
    def test_who_has_started_them_decides(
        self, asked: tuple[int, int], environment: dict[str, str], expected: tuple[int, int]
    ) -> None:
        assert processes(*asked, environment) == expected

    @pytest.mark.parametrize(
        ("asked", "environment", "message"),
        [
            ((0, 1), {}, "--devices must be at least 1, found 0"),
            ((1, -2), {}, "--nodes must be at least 1, found -2"),
            ((4, 1), TORCHRUN, "--devices 4 contradicts torchrun"),
            ((8, 2), TORCHRUN, "as --devices 8 --nodes 4 would"),
            ((4, 3), SRUN, "--nodes 3 contradicts srun"),
            ((8, 2), {}, "needs MASTER_ADDR, MASTER_PORT, NODE_RANK"),
            ((8, 2), {"MASTER_ADDR": "first", "NODE_RANK": "0"}, "needs MASTER_PORT in the env"),
            ((1, 1), {**TORCHRUN, "WORLD_SIZE": "31"}, "found 8 on this one and 31 in all"),
            ((1, 1), {**TORCHRUN, "WORLD_SIZE": "many"}, "variable WORLD_SIZE, found 'many'"),
            ((1, 1), {**SRUN, "SLURM_NTASKS_PER_NODE": "3"}, "says 3 on each"),
        ],
    )
    def test_what_does_not_fit_together_is_refused(
        self, asked: tuple[int, int], environment: dict[str, str], message: str
    ) -> None:
        with pytest.raises(UserError, match=message):
            processes(*asked, environment)

    def test_srun_must_say_how_many_a_machine(self) -> None:
        environment = {key: SRUN[key] for key in SRUN if key != "SLURM_NTASKS_PER_NODE"}
        with pytest.raises(UserError, match="give --ntasks-per-node"):
            processes(1, 1, environment)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ""),
        (TORCHRUN, "process 9"),
        ({**TORCHRUN, "RANK": "0"}, ""),
        (SRUN, "process 5"),
        ({**ALLOCATION, "SLURM_PROCID": "0"}, ""),
        ({"LOCAL_RANK": "0", "NODE_RANK": "0"}, ""),
        ({"LOCAL_RANK": "1"}, "process 1"),
        ({"LOCAL_RANK": "0", "NODE_RANK": "2"}, "process 0 of machine 2"),
        ({"NODE_RANK": "2"}, ""),
    ],
)
def test_the_first_process_has_no_name(environment: dict[str, str], expected: str) -> None:
    assert own_name(environment) == expected
