"""Count the bytes that a rank sends in collectives, by what they are for."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any

import torch.distributed as torch_dist
from torch import ScriptObject, Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from composer import Callback
from composer.trainer import microbatch_weights, step_sync

__all__ = ["PARAMETERS", "STEP", "SentBytes", "SentBytesCallback", "sent_by"]

PARAMETERS, STEP, OTHER = "parameters", "step synchronization", "start and evaluation"


def sent_by(operation: str, size: int, ranks: int) -> float:
    """Return the bytes that a rank sends, the mean over the ranks, for an input of each rank.

    All-reduces are counted as in a ring, which sends least: each rank sends 1/R of the tensor R - 1 times to reduce it,
    and as often to gather the result.

    Args:
        operation: The operator of c10d, without underscores at its ends.
        size: Bytes of the input.
        ranks: Number R of ranks.

    >>> sent_by("allreduce", 400, 4), sent_by("_allgather_base", 100, 4), sent_by("alltoall_base", 400, 4)
    (600.0, 300.0, 300.0)
    """
    name = operation.strip("_")
    if name.startswith(("allreduce", "all_reduce")):
        return 2 * (ranks - 1) / ranks * size
    if name.startswith(("allgather", "all_gather")):
        return float((ranks - 1) * size)
    if name.startswith(("alltoall", "all_to_all", "broadcast", "gather", "scatter", "reduce")):
        return (ranks - 1) / ranks * size
    if name.startswith(("barrier", "monitored_barrier")):
        return 0.0
    raise NotImplementedError(f"the collective {operation!r}")


class SentBytes(TorchDispatchMode):
    """Adds up the bytes of the collectives of c10d, also of those that ``DistributedDataParallel`` issues in C++.

    Attributes:
        purpose: What the next collectives are for.
        sent: Bytes by purpose.
    """

    def __init__(self) -> None:
        super().__init__()
        self.purpose = OTHER
        self.sent: dict[str, float] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._count(func._opname, args)
        return func(*args, **(kwargs or {}))

    def _count(self, operation: str, args: Any) -> None:
        groups = [one for one in args if isinstance(one, ScriptObject)]
        group = next(one for one in map(_group_of, groups) if one is not None)
        # Operators with an output have it first.
        has_output = operation.strip("_").startswith(("allgather", "all_gather", "alltoall", "all_to_all", "gather"))
        size = sum(one.numel() * one.element_size() for one in _tensors(args[1] if has_output else args[0]))
        self.sent[self.purpose] = self.sent.get(self.purpose, 0.0) + sent_by(operation, size, group.size())

    @contextlib.contextmanager
    def counting_as(self, purpose: str) -> Generator[None]:
        """Count the collectives of the body for a purpose."""
        before, self.purpose = self.purpose, purpose
        try:
            yield
        finally:
            self.purpose = before

    @contextlib.contextmanager
    def watching(self) -> Generator[SentBytesCallback]:
        """Count those of a trainer; yield the callback that tells training from evaluation.

        What the trainer sends in each step for itself (counts, loss weights and losses) is counted separately.
        """
        kept: list[tuple[Any, str, Any]] = []
        for owner, name in (
            (step_sync.StepSync, "send_counts"),
            (step_sync.StepSync, "send_losses"),
            (microbatch_weights.LossWeights, "__init__"),
        ):
            kept.append((owner, name, getattr(owner, name)))
            setattr(owner, name, self._labeled(getattr(owner, name)))
        try:
            with self:
                yield SentBytesCallback(self)
        finally:
            for owner, name, method in kept:
                setattr(owner, name, method)

    def _labeled(self, method: Any) -> Any:
        def labeled(*positional: Any, **named: Any) -> Any:
            with self.counting_as(STEP if self.purpose != OTHER else OTHER):
                return method(*positional, **named)

        return labeled


class SentBytesCallback(Callback):
    """Tells a counter whether the run trains.

    Args:
        counter: The counter.
    """

    def __init__(self, counter: SentBytes) -> None:
        self._counter = counter

    def before_dataloader(self, state: Any, logger: Any) -> None:
        self._counter.purpose = PARAMETERS

    def eval_before_all(self, state: Any, logger: Any) -> None:
        self._counter.purpose = OTHER

    def eval_after_all(self, state: Any, logger: Any) -> None:
        self._counter.purpose = PARAMETERS

    def fit_end(self, state: Any, logger: Any) -> None:
        self._counter.purpose = OTHER


def _group_of(value: ScriptObject) -> Any:
    """Return the process group that an operator was given; None if it is another object, such as an operation."""
    with contextlib.suppress(RuntimeError):
        return torch_dist.ProcessGroup.unbox(value)
    return None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
