"""The probe of ``composer estimate``: trains a few steps without computing, and tells the memory that they need."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn

from composer.dist.simulation import simulated_ranks
from composer.estimation.allocator import replay, smallest_limit
from composer.estimation.cuda_operators import cuda_operators
from composer.estimation.growth import Growth
from composer.estimation.kernel_memory import temporary_memory
from composer.estimation.roofline import OperatorCosts
from composer.estimation.run_facts import (
    fsdp_argument,
    num_blocks,
    run_facts,
    with_own_settings,
    with_tensor_parallelism,
)
from composer.estimation.skip_compute import skip_compute
from composer.estimation.stages import Stages
from composer.hparams.class_paths import find, full_path
from composer.memory.allocations import Allocation, AllocationLog
from composer.memory.cuda_kernel_memory import cuda_temporary_memory
from composer.parallel import activation_checkpointing
from composer.trainer import microbatch
from composer.trees import ensure_tuple, leaves
from composer.trials.probe import Finished, Probe

if TYPE_CHECKING:
    from composer.core.model import ComposerModel
    from composer.trainer import Trainer
    from composer.trainer.run import Run

__all__ = ["MemoryRecorder"]

# The role of memory of which only the stage that allocated it is known; other stages are names of methods.
_ROLES = {
    "forward": "activations",
    "loss": "activations",
    "evaluation": "activations",
    "backward": "temporary",
    "optimizer": "temporary",
    "": "other",
}


# The first has no gradients from microbatches before it; the second and the third have the same memory.
_MICROBATCHES = 3


class MemoryRecorder(Probe):
    """Trains some steps without computing, and adds up the memory.

    Args:
        folder: Folder of the trial.
        steps: Number of steps; the last is at the end of the run.
        precision: The precision of programs that give none; None for that of the CPU.
        optimizer: Class name of the optimizer to train with; None for the optimizers of the program.
        eval_microbatch: Number of samples in a microbatch of evaluators; None for that of the program.
        cuda: Whether the tensors, which are on the CPU, stand for those of a GPU.
        processes: Number of ranks of the run, all but this one simulated.
        local_processes: Number of ranks on each node; at most 8 if None.
        shards: Whether the trial sets how the program shards, whose other settings of FSDP it keeps.
        tensor_parallel: Whether all ranks share the layers that the program shards.

    >>> from composer.trials import Target, Trial
    >>> Trial("one", Target("script", "train.py"), "composer.estimation.recorder:MemoryRecorder").ranks
    1
    """

    def __init__(
        self,
        folder: Path,
        steps: int = 3,
        precision: str | None = None,
        optimizer: str | None = None,
        eval_microbatch: int | None = None,
        cuda: bool = False,
        processes: int = 1,
        local_processes: int | None = None,
        shards: bool = False,
        tensor_parallel: bool = False,
    ) -> None:
        super().__init__(folder)
        self._ranks = ExitStack()
        if processes > 1:
            self._ranks.enter_context(simulated_ranks(processes, local_world_size=local_processes))
        self._eval_microbatch, self._shards = eval_microbatch, shards
        self._tensor_parallel = processes if tensor_parallel else 0
        self._steps, self._precision, self._optimizer, self._cuda = steps, precision, optimizer, cuda
        self._facts: dict[str, Any] = {}
        self._stages: Stages | None = None
        self._costs = OperatorCosts()
        self._log = AllocationLog()
        self._stack = ExitStack()

    @property
    def log(self) -> AllocationLog:
        """All allocations so far."""
        return self._log

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the trainer, from which on nothing is computed."""
        if self._shards:
            arguments = with_own_settings(arguments, given)
        if self._tensor_parallel:
            arguments = with_tensor_parallelism(arguments, self._tensor_parallel)
        model: ComposerModel = arguments["model"]
        values = [*model.parameters(), *model.buffers()]
        self._facts = {"blocks": num_blocks(model), "fsdp": fsdp_argument(arguments)}
        if arguments.get("precision") is None:
            arguments["precision"] = self._precision
        if self._optimizer is not None:
            arguments["optimizers"] = find(full_path(self._optimizer))(_trained(arguments), lr=1e-3)
        self._stack.close()
        self._log = AllocationLog()
        self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        if self._cuda:
            self._stack.enter_context(cuda_operators())
            # Offloaded activations are on the host, whose memory is not in the log.
            self._stack.enter_context(patch.object(activation_checkpointing, "HOST", torch.device("meta")))
        temporary = cuda_temporary_memory if self._cuda else temporary_memory
        self._stack.enter_context(skip_compute(self._log, values, temporary, self._count))
        if not self._cuda:  # elsewhere, those of the model stay on the host, and evaluators have copies
            metrics = [vars(each) for train in (True, False) for each in model.get_metrics(train).values()]
            for tensor in leaves(metrics):
                if isinstance(tensor, torch.Tensor):
                    self._log.add(tensor, "metrics")
        stages = Stages(self._log, self._steps, self._eval_microbatch, on_step=self._costs.clear)
        arguments["callbacks"] = [*arguments["callbacks"], stages]
        return arguments

    def fit(self, trainer: Trainer, fit: Callable[..., None], arguments: dict[str, Any]) -> None:
        """Train the steps; what follows, such as another call of ``fit``, is not computed either."""
        try:
            with _few_microbatches(self._costs), suppress(Finished):
                fit(**arguments)
        except BaseException:
            self._stack.close()
            raise
        self._stages = next(callback for callback in trainer.state.callbacks if isinstance(callback, Stages))
        self._facts |= run_facts(trainer.state, self._stages.batch_size)
        self._facts["sample_bytes"] = self._stages.sample_bytes

    def result(self) -> Mapping[str, Any]:
        """Return the peak and what it is made of, in bytes, facts of the run, and what the last step computes."""
        self._stack.close()
        growth = Growth() if self._stages is None else self._stages.growth()
        peak, event, grown = growth.peak(self._log)
        roles: Counter[str] = Counter()
        modules: Counter[str] = Counter()
        methods: Counter[str] = Counter()
        for each in self._log.live(event):
            role = _role(each)
            roles[role] += each.nbytes
            if role == "activations":
                modules[each.module] += each.nbytes
            elif role == "algorithms":
                methods[each.stage] += each.nbytes
        if grown:
            roles["kept"] = grown
        last = self._log.allocations[self._log.events[event][0]]
        return {
            "peak": peak,
            "stage": last.stage,
            "module": last.module,
            "roles": dict(roles),
            "activations": dict(modules),
            "algorithms": dict(methods),
            "facts": {**self._facts, "kept": growth.to_json()},
            "costs": self._costs.to_json(),
            **(self._allocator(grown) if self._cuda else {}),
        }

    def _allocator(self, grown: int) -> dict[str, int]:
        return {
            "limit": smallest_limit(self._log) + grown,
            "reserved": replay(self._log).reserved + grown,
            "reserved_expandable": replay(self._log, expandable=True).reserved + grown,
        }

    def _count(self, *operator: Any) -> None:
        if self._log.stage != "evaluation":
            self._costs.add(*operator)


@contextmanager
def _few_microbatches(costs: OperatorCosts) -> Generator[None]:
    """Run the first microbatches of each batch only: the others need no more memory, and compute the same."""
    run_all = microbatch.run_microbatches

    def run_some(run: Run) -> dict[str, torch.Tensor]:
        before = costs.counts.copy()
        size, samples = run.state.microbatch_size, run.samples
        losses = run_all(run, _MICROBATCHES)
        if size is not None and samples > _MICROBATCHES * size:
            costs.multiply(samples / (_MICROBATCHES * size), before)
        return losses

    microbatch.run_microbatches = run_some
    try:
        yield
    finally:
        microbatch.run_microbatches = run_all


def _role(allocation: Allocation) -> str:
    return allocation.role or _ROLES.get(allocation.stage, "algorithms")


def _trained(arguments: Mapping[str, Any]) -> list[nn.Parameter]:
    """Return the parameters that the optimizers of a program train; all of the model without optimizers."""
    optimizers = ensure_tuple(arguments["optimizers"])
    if not optimizers:
        return list(arguments["model"].parameters())
    return [parameter for each in optimizers for group in each.param_groups for parameter in group["params"]]
