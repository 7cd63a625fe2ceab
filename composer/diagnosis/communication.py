"""Time the communication among ranks: waits for all-reduces, all-gathers and reduce-scatters, and for the slowest rank.

Collectives that Python waits for are timed where it waits: those of ``fully_shard``, of metrics, and the synchronous
ones. ``DistributedDataParallel`` all-reduces gradients while the backward pass computes, and waits in C++ for what is
left: its time is that between the last gradient and the end of the backward pass.

On a CPU (gloo) these are the times that the host waits. On CUDA (NCCL) only the device waits: there, the wait of
``DistributedDataParallel`` is measured by events, and that of ``fully_shard`` is part of the forward and backward pass.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as torch_dist
from torch.nn.parallel import DistributedDataParallel

from composer import dist
from composer.diagnosis.durations import milliseconds
from composer.diagnosis.step_clock import StepClock

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["COMMUNICATION", "WAITING", "CommunicationTimer", "across_ranks", "imbalance"]

COMMUNICATION, WAITING = "communication", "waiting for other ranks"
# These include their own communication.
_WHOLE = ("evaluation", "saving")


class CommunicationTimer:
    """Reports to a clock when a rank communicates.

    Args:
        clock: The clock of the thread that creates the timer.

    >>> CommunicationTimer(StepClock()).close()
    """

    def __init__(self, clock: StepClock) -> None:
        self._clock, self._thread = clock, threading.get_ident()
        self._hooks: list[Any] = []
        self._last_gradient = 0.0
        self._wait: Any = None

    def watch(self, trainer: Trainer) -> None:
        """Begin to time the collectives of a trainer with several ranks.

        Args:
            trainer: The trainer, before ``fit``.
        """
        if dist.get_world_size() == 1:
            return
        strategy: Any = trainer._run.strategy  # pyright: ignore[reportPrivateUsage]
        self._watch_waits()
        if isinstance(strategy.module, DistributedDataParallel):
            parameters = [parameter for parameter in strategy.module.parameters() if parameter.requires_grad]
            self._hooks = [each.register_post_accumulate_grad_hook(self._note_gradient) for each in parameters]
        self._within(strategy, "begin_batch")

    def end_backward(self) -> None:
        """Count the time since the last gradient of the backward pass that ends now."""
        if self._last_gradient:
            self._clock.split(COMMUNICATION, self._last_gradient)
            self._last_gradient = 0.0

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._wait is not None:
            torch_dist.Work.wait, self._wait = self._wait, None

    def _note_gradient(self, parameter: Any) -> None:
        del parameter
        self._last_gradient = self._clock.now()
        if self._clock.timeline is not None:
            self._clock.timeline.remember()

    def _watch_waits(self) -> None:
        """Time what Python waits for, in this thread."""
        wait: Any = torch_dist.Work.wait
        self._wait = wait

        def timed(work: Any, *positional: Any, **named: Any) -> Any:
            if not self._counts():
                return wait(work, *positional, **named)
            self._clock.enter(COMMUNICATION)
            try:
                return wait(work, *positional, **named)
            finally:
                self._clock.leave()

        torch_dist.Work.wait = timed  # pyright: ignore[reportAttributeAccessIssue]

    def _within(self, owner: Any, name: str) -> None:
        """Count a method as communication, such as the broadcast of buffers."""
        method = getattr(owner, name)

        def timed(*positional: Any, **named: Any) -> Any:
            self._clock.enter(COMMUNICATION)
            try:
                return method(*positional, **named)
            finally:
                self._clock.leave()

        setattr(owner, name, timed)

    def _counts(self) -> bool:
        """Return whether a wait of this moment counts: in the thread of the clock, outside of an evaluation."""
        return threading.get_ident() == self._thread and self._clock.part not in (*_WHOLE, COMMUNICATION)


def across_ranks(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what was measured on the slowest rank, with a summary of all ranks as ``ranks``.

    The slowest rank is the one that is busiest without its communication: in a collective the others wait for it. What
    a rank communicates longer in a step than the rank that communicates least is a wait for other ranks.

    Args:
        results: What each rank measured, from rank 0.

    >>> fast, slow = (
    ...     {"steps": [{"communication": 3, "data": 0}]},
    ...     {"steps": [{"communication": 1, "data": 2}]},
    ... )
    >>> found = across_ranks([fast, slow])
    >>> found["steps"], [each["waiting"] for each in found["ranks"]]
    ([{'communication': 1, 'data': 2, 'waiting for other ranks': 0}], [2.0, 0.0])
    """
    count = min(len(each["steps"]) for each in results)
    steps = [each["steps"][:count] for each in results]
    busy = [[sum(step.values()) - step.get(COMMUNICATION, 0) for step in own] for own in steps]
    slowest = max(range(len(results)), key=lambda rank: sum(busy[rank]))
    split: list[dict[str, float]] = []
    for index, step in enumerate(steps[slowest]):
        least = min(own[index].get(COMMUNICATION, 0) for own in steps)
        waits = step.get(COMMUNICATION, 0) - least
        split.append({**step, COMMUNICATION: least, WAITING: waits})
    ranks = [
        {
            "rank": rank,
            "seconds": sum(sum(step.values()) for step in own) / count,
            "waiting": sum(max(each[index] for each in busy) - busy[rank][index] for index in range(count)) / count,
            "parts": {part: sum(step.get(part, 0.0) for step in own) / count for part in {p for s in own for p in s}},
        }
        for rank, own in enumerate(steps)
    ]
    return {**results[slowest], "steps": split, "ranks": ranks, "slowest": slowest}


def imbalance(result: Mapping[str, Any], least: float) -> tuple[int, str, str]:
    """Return the slowest rank, the part in which it takes longest beyond the fastest, and the evidence in words.

    The part is :data:`WAITING` if no rank is always the slowest, and empty if no rank waits long.

    Args:
        result: What :func:`across_ranks` returned, or the result of a single rank.
        least: Seconds in a step that a rank must wait for others.

    >>> fast, slow = (
    ...     {"steps": [{"communication": 3, "data": 0}]},
    ...     {"steps": [{"communication": 1, "data": 2}]},
    ... )
    >>> imbalance(across_ranks([fast, slow]), least=1.0)[:2]
    (1, 'data')
    """
    ranks = result.get("ranks", ())
    waits = max((each["waiting"] for each in ranks), default=0.0)
    if not ranks or waits < least:
        return 0, "", ""
    slow, fast = ranks[result["slowest"]], max(ranks, key=lambda each: each["waiting"])
    if slow["waiting"] > 0.5 * waits:
        return slow["rank"], WAITING, f"no rank is always the slowest; each waits up to {milliseconds(waits)} ms a step"
    names = [part for part in slow["parts"] if part != COMMUNICATION]
    most = max(names, key=lambda part: slow["parts"][part] - fast["parts"].get(part, 0.0))
    times = [f"{milliseconds(each['parts'].get(most, 0.0))} ms on rank {each['rank']}" for each in (slow, fast)]
    told = f"{most}: {times[0]}, {times[1]}, which waits {milliseconds(waits)} ms in each step"
    return slow["rank"], most, told
