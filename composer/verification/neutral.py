"""Neutral settings: the values of a method's attributes with which it must not change the training."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from composer.core.traits import traits_of

__all__ = ["neutral_setting", "set_neutral", "why_not_neutral"]

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


def neutral_setting(method: Any) -> Mapping[str, Any] | None:
    """Return the attributes with which a method must not change the training; None if there are none.

    A method declares them in its traits. Of one that declares nothing, an argument such as ``strength`` is set to 0.

    Args:
        method: The method.

    >>> from composer.algorithms import Alibi, EMA, MixUp
    >>> neutral_setting(MixUp(0.2)), neutral_setting(EMA()), neutral_setting(Alibi(64))
    ({'alpha': 0.0}, {}, None)
    """
    traits = traits_of(method)
    if traits.neutral is not None or traits.why_not_neutral:
        return traits.neutral
    parameters = inspect.signature(type(method).__init__).parameters
    name = next((one for one in _STRENGTHS if one in parameters), None)
    return {name: 0.0} if name is not None and isinstance(getattr(method, name, None), int | float) else None


def why_not_neutral(method: Any) -> str:
    """Return why a method has no neutral setting.

    Args:
        method: A method of which :func:`neutral_setting` is None.

    >>> from composer.algorithms import Alibi
    >>> why_not_neutral(Alibi(64))
    'it changes the attention of the model'
    """
    return traits_of(method).why_not_neutral or "it declares none, as Traits(neutral={'strength': 0.0}) does"


def set_neutral(methods: Sequence[Any], name: str) -> None:
    """Set methods to their neutral setting.

    Args:
        methods: The methods of a run.
        name: The class of those to set.

    >>> from composer.algorithms import MixUp
    >>> methods = [MixUp(0.2)]
    >>> set_neutral(methods, "MixUp")
    >>> methods
    [MixUp(alpha=0.0, ...)]
    """
    for method in methods:
        if type(method).__name__ == name:
            for attribute, value in (neutral_setting(method) or {}).items():
                setattr(method, attribute, value)
