"""What a process may take of its machine. Worker processes import this, so no torch."""

from __future__ import annotations

import os
from pathlib import Path

# Set where several processes of one machine train together.
PROCESSES_VARIABLE = "EIGENSHOT_LOCAL_PROCESSES"


def local_processes() -> int:
    """How many processes train together on this machine; 1 where the variable is no number."""
    try:
        return max(1, int(os.environ.get(PROCESSES_VARIABLE, "1")))
    except ValueError:
        return 1


def cores() -> int:
    """The cores that this process may use.

    Those of a whole machine are shared by what trains on it. A process that is bound to some of
    them has been given its share by whoever started it.
    """
    everything = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        own = len(os.sched_getaffinity(0))
        if own != everything:
            return own
    return max(1, everything // local_processes())


def available_memory() -> int | None:
    """Bytes that this process may still take without swapping, as far as the system tells.

    Processes that train together share what the machine has.
    """
    bounds = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                bounds.append(int(line.split()[1]) * 1024)
        # A container may be given less than the machine has.
        group = Path("/sys/fs/cgroup")
        limit, used = ((group / f"memory.{kind}").read_text() for kind in ("max", "current"))
        if limit.strip() != "max":
            statistics = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
            reclaimable = int(statistics.get("inactive_file", 0))
            bounds.append(int(limit) - int(used) + reclaimable)
    except (OSError, ValueError):
        pass
    return max(min(bounds), 0) // local_processes() if bounds else None
