"""Refuse arguments, positional values and attributes that the trainer does not have, and say what was meant."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from composer.core.callback import Callback
from composer.core.evaluator import Evaluator
from composer.core.model import ComposerModel

__all__ = ["no_attribute", "refuse_call", "refuse_unknown"]

_ACCUMULATION = ("accumulate_grad_batches", "gradient_accumulation_steps", "grad_accum_steps")


def refuse_unknown(
    function: Callable[..., Any], unknown: Mapping[str, Any], positional: Sequence[Any] = (), data: Any = None
) -> None:
    """Refuse arguments that do not exist, all in one message, and say what was meant.

    Args:
        function: What was called.
        unknown: Names and values that its signature does not have.
        positional: Values without a name, where it takes names only.
        data: The training data, of which the size of a microbatch follows.

    Raises:
        TypeError: There is one.

    >>> def fit(*, duration=None): ...
    >>> refuse_unknown(fit, {"durration": "1ep"})
    Traceback (most recent call last):
    TypeError: fit has no argument 'durration'. Did you mean 'duration'?
    """
    if not unknown and not positional:
        return
    from composer._name_hints import argument_hint

    shown = function.__qualname__.removesuffix(".__init__")
    known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    found = [f"{shown} takes its arguments by name: {_by_name(shown, positional, known)}."] if positional else []
    for name, value in unknown.items():
        hint = _microbatches(value, data) if name in _ACCUMULATION else ""
        hint = hint or argument_hint(name, known, value)
        found.append(f"{'Nor is there' if found else f'{shown} has no argument'} {name!r}.{hint}")
    raise TypeError(" ".join(found))


def refuse_call(function: Callable[..., Any], positional: Sequence[Any], arguments: Mapping[str, Any]) -> None:
    """Refuse a call of the trainer that lacks the model, with its other mistakes, which are why it lacks it.

    Args:
        function: The constructor.
        positional: Values that were given without a name.
        arguments: Those with a name.

    Raises:
        TypeError: Something is wrong besides the model.

    >>> def make(*, model, seed=None): ...
    >>> refuse_call(make, (), {"sed": 1})
    Traceback (most recent call last):
    TypeError: make has no argument 'sed'. Did you mean 'seed'? The argument 'model' is missing.
    """
    known = inspect.signature(function).parameters
    unknown = {name: value for name, value in arguments.items() if name not in known}
    try:
        refuse_unknown(function, unknown, positional, arguments.get("train_dataloader"))
    except TypeError as error:
        given = "model" in arguments or any(isinstance(value, nn.Module) for value in positional)
        missing = "" if given else " The argument 'model' is missing."
        raise TypeError(f"{error}{missing}") from None


def no_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for an attribute that an object does not have, which says what is there.

    Args:
        owner: The trainer.
        name: The attribute.

    >>> no_attribute(object(), "train")
    AttributeError("'object' object has no attribute 'train'. Use trainer.fit().")
    """
    hint = ""
    if not name.startswith("_"):  # protocol probes (copy, pickle, notebooks) are frequent and never typos
        from composer._name_hints import member_hint

        hint = member_hint(name, [known for known in dir(type(owner)) if not known.startswith("_")])
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}.{hint}", name=name)


def _by_name(shown: str, positional: Sequence[Any], known: Sequence[str]) -> str:
    """Return the call with the names that the values most likely belong to."""
    if all(hasattr(value, "ndim") for value in positional):
        return f"{shown}(train_dataloader=DataLoader(TensorDataset(x, y), batch_size=...))"
    words: list[str] = []
    for value in positional:
        name, text = _argument_of(value, words)
        if name not in known and name == "model":
            return f"the model goes to Trainer(model=...), and {shown} takes train_dataloader=..."
        words.append(f"{name}={text}" if name in known else "...")
    return f"{shown}({', '.join(words)})"


def _argument_of(value: Any, before: Sequence[str]) -> tuple[str, str]:
    """Return the argument that a value is most likely for, and how to write it."""
    if isinstance(value, (nn.Module, ComposerModel)):
        return "model", "..."
    if isinstance(value, Optimizer):
        return "optimizers", "..."
    if isinstance(value, Evaluator):
        return "eval_dataloader", "..."
    if isinstance(value, Callback):
        return "callbacks", "..."
    if isinstance(value, int) and not isinstance(value, bool):
        return "duration", f"'{value}ep'"
    if isinstance(value, str):
        return "duration", repr(value)
    if hasattr(value, "__iter__"):
        return ("eval_dataloader" if "train_dataloader=..." in before else "train_dataloader"), "..."
    return "", "..."


def _microbatches(number: Any, data: Any) -> str:
    """Return the size of a microbatch where a batch is accumulated in so many of them, if the batch's size is known."""
    loader = getattr(data, "dataloader", data)
    size = getattr(loader, "batch_size", None)
    if type(number) is not int or number < 1 or type(size) is not int or size < 1:
        return ""
    return (
        f" Use device_train_microbatch_size={-(-size // number)}, which cuts each batch of {size} samples into "
        f"{min(number, size)}; to step once for {number} batches of {size}, use DataLoader(batch_size={size * number}) "
        f"and device_train_microbatch_size={size}."
    )
