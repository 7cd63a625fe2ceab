"""The probe of ``composer estimate``: trains a few steps without computing, and tells the memory that they need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from composer.dist.simulation import simulated_ranks
from composer.estimation.allocations import Allocation, AllocationLog
from composer.estimation.kernel_memory import temporary_memory
from composer.estimation.skip_compute import skip_compute
from composer.estimation.stages import Finished, Stages
from composer.trials.probe import Probe

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["MemoryRecorder"]

# The role of memory of which only the stage that allocated it is known.
_ROLES = {
    "forward": "activations",
    "loss": "activations",
    "evaluation": "activations",
    "backward": "temporary",
    "optimizer": "temporary",
}


class MemoryRecorder(Probe):
    """Trains some steps without computing, and adds up the memory.

    Args:
        folder: Folder of the trial.
        steps: Number of steps; the last is at the end of the run.
        processes: Number of ranks of the run, all but this one simulated.
        local_processes: Number of ranks on each node; at most 8 if None.
    """

    def __init__(self, folder: Path, steps: int = 3, processes: int = 1, local_processes: int | None = None) -> None:
        super().__init__(folder)
        self._ranks = ExitStack()
        if processes > 1:
            self._ranks.enter_context(simulated_ranks(processes, local_world_size=local_processes))
        self._steps = steps
        self._log = AllocationLog()
        self._stack = ExitStack()
        torch.compiler.set_stance("force_eager")

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the trainer, from which on nothing is computed."""
        del given
        model: nn.Module = arguments["model"]
        values = [*model.parameters(), *model.buffers()]
        self._stack.close()
        self._log = AllocationLog()
        self._stack.enter_context(skip_compute(self._log, values, temporary_memory))
        arguments["callbacks"] = [*arguments["callbacks"], Stages(self._log, self._steps)]
        return arguments

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train the steps."""
        with self._stack:
            try:
                fit(**arguments)
            except Finished:
                return

    def result(self) -> Mapping[str, Any]:
        """Return the peak and what it is made of, in bytes."""
        peak, event = self._log.peak()
        roles: Counter[str] = Counter()
        modules: Counter[str] = Counter()
        for each in self._log.live(event):
            role = _role(each)
            roles[role] += each.nbytes
            if role == "activations":
                modules[each.module] += each.nbytes
        last = self._log.allocations[self._log.events[event][0]]
        return {
            "peak": peak,
            "stage": last.stage,
            "module": last.module,
            "roles": dict(roles),
            "activations": dict(modules),
        }


def _role(allocation: Allocation) -> str:
    return allocation.role or _ROLES.get(allocation.stage, "other")
