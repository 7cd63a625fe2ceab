"""A dispatch mode that counts the operators of a step, and finds those that would wait for an accelerator."""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from composer.diagnosis.user_lines import is_user_file, user_line

__all__ = ["OperatorCounter", "Work", "seconds_per_operator"]

# The host waits for their result: a number, or a shape that depends on values.
_WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero", "_unique2")
_NAMES = {"_local_scalar_dense": "reads a number (item, float, if)", "_to_copy": "copies to the host"}
# An operator on fewer elements takes as long as one on none.
_SMALL = 20_000
# Between a call of ``backward`` and the engine.
_AUTOGRAD = f"{Path(torch.autograd.__file__).parent}{os.sep}"
# What runs there has tensors of the host.
_ON_HOST = ("data", "transfer", "logg", "saving", "evaluation", "optimizer")


@dataclass
class Work:
    """What the operators of a line or part compute.

    Attributes:
        count: Number of operators.
        small: Number of those whose start takes longer than what they compute.
        elements: Elements that they read and write; none for a view.
        flops: Floating-point operations of matrix products, convolutions and attention.

    >>> Work(count=2).small
    0
    """

    count: int = 0
    small: int = 0
    elements: int = 0
    flops: int = 0


class OperatorCounter(TorchDispatchMode):
    """Counts operators by part of the step and by line of the user's code.

    Args:
        part: Returns the part of the step that runs.

    Attributes:
        parts: What is computed by part.
        lines: What is computed by part and line of the user's code.
        waits: Number of waits for an accelerator by part, line and reason.

    >>> with OperatorCounter(lambda: "loss") as counter:
    ...     _ = torch.ones(2) + 1
    >>> counter.parts["loss"].count
    2
    """

    def __init__(self, part: Callable[[], str]) -> None:
        super().__init__()
        self.parts: defaultdict[str, Work] = defaultdict(Work)
        self.lines: defaultdict[tuple[str, tuple[str, int, str]], Work] = defaultdict(Work)
        self.waits: Counter[tuple[str, tuple[str, int, str], str]] = Counter()
        self._part = part

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operator, and run it."""
        del types
        part, kwargs = self._part(), kwargs or {}
        packet = func.overloadpacket
        name: str = packet.__name__
        line = (_line_of_hook if part == "backward" else user_line)(sys._getframe(1))
        if line is not None and not part.startswith(_ON_HOST) and _waits(name, args, kwargs):
            self.waits[part, line, _NAMES.get(name) or name] += 1
        result = func(*args, **kwargs)
        # A view reads and writes nothing: x[i] takes as long for a large x as for a small one.
        elements = 0 if func.is_view else sum(_elements(each) for each in (*args, result))
        flops = flop_registry[packet](*args, **kwargs, out_val=result) if packet in flop_registry else 0
        works = [self.parts[part]] if line is None else [self.parts[part], self.lines[part, line]]
        for work in works:
            work.count += 1
            work.small += elements < _SMALL and flops < 50 * _SMALL
            work.elements += elements
            work.flops += flops
        return result

    def to_json(self, steps: int) -> dict[str, Any]:
        """Return the counts of one step in JSON types.

        Args:
            steps: Number of steps that were counted.
        """

        def told(work: Work) -> dict[str, float]:
            return {name: value / steps for name, value in dataclasses.asdict(work).items()}

        largest = sorted(self.lines.items(), key=lambda item: -item[1].count)[:40]
        return {
            "parts": {part: told(work) for part, work in self.parts.items()},
            "lines": [
                {"part": part, "file": line[0], "line": line[1], "in": line[2], **told(work)}
                for (part, line), work in largest
            ],
            "waits": [
                {"part": part, "why": why, "file": line[0], "line": line[1], "in": line[2], "count": count / steps}
                for (part, line, why), count in self.waits.most_common(20)
            ],
        }


def _line_of_hook(frame: FrameType | None) -> tuple[str, int, str] | None:
    """Return the line of a hook or custom autograd function that the backward pass calls, rather than of its caller.

    On the CPU, autograd calls it in the thread of the caller, on an accelerator in a thread of its own.
    """
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        if frame.f_code.co_filename.startswith(_AUTOGRAD):
            return None
        frame = frame.f_back
    return user_line(frame)


def _elements(value: Any) -> int:
    """Return the number of elements of a tensor, or of those in a list."""
    if isinstance(value, Tensor):
        return value.numel()
    return sum(map(_elements, value)) if isinstance(value, list | tuple) else 0


def _waits(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether the host waits for the accelerator in an operator, were its tensors there."""
    if name == "_to_copy":
        source, target = args[0].device.type, torch.device(kwargs.get("device") or args[0].device).type
        return source != "cpu" and target == "cpu" and not kwargs.get("non_blocking")
    if name in ("index", "index_put_"):
        return any(isinstance(each, Tensor) and each.dtype == torch.bool for each in args[1] or ())
    return name.startswith(_WAITS)


def seconds_per_operator(repeats: int = 300) -> float:
    """Return the seconds that an operator with almost nothing to compute takes, forward and backward on average.

    Args:
        repeats: Number of operators to measure.

    >>> 0 < seconds_per_operator() < 0.01
    True
    """
    weight = torch.ones(4, 4, requires_grad=True)
    found: list[float] = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(repeats // 30):
            value = weight
            for _ in range(5):
                value = torch.relu(value @ weight)
            value.sum().backward()
            weight.grad = None
        # 10 operators and a sum forward; about 22 backward.
        found.append((time.perf_counter() - begin) / (repeats // 30 * 33))
    return statistics.median(found)
