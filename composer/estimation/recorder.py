"""The probe of ``composer estimate``: trains a few steps without computing, and tells the memory that they need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from composer.estimation.allocations import Allocation, AllocationLog
from composer.estimation.allocator import replay
from composer.estimation.cuda_kernel_memory import cuda_temporary_memory
from composer.estimation.cuda_operators import cuda_operators
from composer.estimation.kernel_memory import temporary_memory
from composer.estimation.roofline import OperatorCosts
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
        cuda: Whether the tensors, which are on the CPU, stand for those of a GPU.

    >>> MemoryRecorder(Path("trial"), steps=2)  # doctest: +SKIP
    """

    def __init__(self, folder: Path, steps: int = 3, *, cuda: bool = False) -> None:
        super().__init__(folder)
        self._steps, self._cuda = steps, cuda
        self._costs = OperatorCosts()
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
        if self._cuda:
            self._stack.enter_context(cuda_operators())
        temporary = cuda_temporary_memory if self._cuda else temporary_memory
        self._stack.enter_context(skip_compute(self._log, values, temporary, self._count))
        stages = Stages(self._log, self._steps, on_step=self._costs.clear)
        arguments["callbacks"] = [*arguments["callbacks"], stages]
        return arguments

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train the steps."""
        with self._stack:
            try:
                fit(**arguments)
            except Finished:
                return

    def result(self) -> Mapping[str, Any]:
        """Return the peak and what it is made of, in bytes, and FLOPs and bytes of the operators of the last step."""
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
            "reserved": replay(self._log).reserved,
            "reserved_expandable": replay(self._log, expandable=True).reserved,
            "costs": self._costs.to_json(),
        }

    def _count(self, *operator: Any) -> None:
        if self._log.stage != "evaluation":
            self._costs.add(*operator)


def _role(allocation: Allocation) -> str:
    return allocation.role or _ROLES.get(allocation.stage, "other")
