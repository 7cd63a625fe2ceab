"""The number of CPUs that processes may use: their CPU affinity, limited by the quota of their cgroup (container)."""

from __future__ import annotations

import math
import os
from pathlib import Path

from composer import dist

__all__ = ["cpu_quota", "cpus_of_node", "usable_cpus"]

_ROOT = Path("/")


def usable_cpus() -> frozenset[int]:
    """Return the numbers of the CPUs that this process may run on.

    >>> len(usable_cpus()) >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return the CPU quota of this process's cgroups in CPUs, which may be a fraction; None for no limit.

    Args:
        root: The folder that contains ``proc`` and ``sys``.

    >>> quota = cpu_quota()
    >>> quota is None or quota > 0
    True
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # cgroup v2 has one hierarchy, and a limit on every level
            base = root / "sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
        else:
            continue
        # In a container the path may be that of the host, of which only the root is mounted.
        folders = [base / path.lstrip("/"), *(base / path.lstrip("/")).parents]
        quotas += [quota for folder in folders if folder.is_relative_to(base) and (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def cpus_of_node() -> int:
    """Return how many CPUs the ranks of this node may use together; all ranks must call this.

    >>> cpus_of_node() >= 1
    True
    """
    cpus_by_node = [(dist.get_node_rank(), usable_cpus())]
    if dist.get_world_size() > 1:  # each rank may be bound to different CPUs
        cpus_by_node = dist.all_gather_object(cpus_by_node[0])
    number = len(frozenset().union(*(cpus for node, cpus in cpus_by_node if node == dist.get_node_rank())))
    quota = cpu_quota()
    return number if quota is None else min(number, max(1, math.ceil(quota)))


def _quota(folder: Path) -> float | None:
    """Return the limit of one cgroup."""
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return None if quota in ("max", "-1") else float(quota) / float(period)
