"""Neutral settings: the value of a method's argument with which it must not change the training."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

__all__ = ["neutral_settings"]

# Methods of this package that have a setting which can be assigned after their creation.
_KNOWN: dict[str, tuple[str, float]] = {
    "ColOut": ("p_row", 0.0),
    "CutMix": ("alpha", 0.0),
    "MixUp": ("alpha", 0.0),
    "NEFTune": ("alpha", 0.0),
    "SAM": ("rho", 0.0),
    "SpikeSkip": ("num_std", float("inf")),
    "ZClip": ("z_threshold", float("inf")),
}
# Names of arguments of custom methods that mean nothing at 0.
_STRENGTHS = (
    "strength",
    "smoothing",
    "p",
    "prob",
    "probability",
    "rate",
    "amount",
    "magnitude",
    "noise",
    "sigma",
    "std",
)


def neutral_settings(algorithms: Sequence[Any]) -> dict[str, str]:
    """Return an assignment, such as ``"alpha=0.0"``, by the class name of each method that has a neutral setting.

    Args:
        algorithms: The methods of a run.

    >>> from composer.algorithms import EMA, MixUp
    >>> neutral_settings([MixUp(0.2), EMA()])
    {'MixUp': 'alpha=0.0'}
    """
    found: dict[str, str] = {}
    for algorithm in algorithms:
        name = type(algorithm).__name__
        if name in _KNOWN and type(algorithm).__module__.startswith("composer."):
            argument, value = _KNOWN[name]
            found[name] = f"{argument}={value!r}" if value != float("inf") else f"{argument}=1e30"
        elif not type(algorithm).__module__.startswith("composer."):
            parameters = inspect.signature(type(algorithm).__init__).parameters
            argument = next((one for one in _STRENGTHS if one in parameters), None)
            if argument is not None and isinstance(getattr(algorithm, argument, None), int | float):
                found[name] = f"{argument}=0.0"
    return found
