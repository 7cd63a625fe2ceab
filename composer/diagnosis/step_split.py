"""The split of a measured step: seconds and fractions of each part, with evaluations spread over all steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

__all__ = ["seconds_of", "shares_of"]


def seconds_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of each part in a step, the largest first.

    Evaluations and checkpoints that are rarer than every few steps are spread over all steps that were trained, as few
    of them fall into those that were measured. The start of an epoch is spread over the steps of the epoch.

    Args:
        result: What :class:`.StepRecorder` measured.

    >>> periodic = {"evaluation": {"count": 1, "seconds": 4.0, "steps": 8}}
    >>> seconds_of({"steps": [{"forward": 1.0, "evaluation": 4.0}], "periodic": periodic})
    {'forward': 1.0, 'evaluation': 0.5}
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for step in result["steps"]:
        for part, seconds in step.items():
            sums[part] += seconds / len(result["steps"])
    for part, each in result.get("periodic", {}).items():
        if 0 < each["count"] < each["steps"] / 4:
            sums[part] = each["seconds"] / each["steps"]
    if (start := result.get("epoch_start")) is not None:
        sums["data"] += start["seconds"] / start["steps"]
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def shares_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the fraction of the time of each part of a step, the largest first.

    Args:
        result: What :class:`.StepRecorder` measured.

    >>> shares_of({"steps": [{"data": 3.0, "forward": 1.0}]})
    {'data': 0.75, 'forward': 0.25}
    """
    seconds = seconds_of(result)
    total = sum(seconds.values())
    return {part: value / total for part, value in seconds.items()}
