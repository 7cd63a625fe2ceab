"""Reject unknown arguments, positional values and attributes of the Trainer, with a hint at the correct name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from composer.core.callback import Callback
from composer.core.evaluator import Evaluator
from composer.core.model import ComposerModel

__all__ = ["check_call", "no_attribute", "raise_if_misplaced", "raise_if_unknown"]

_ACCUMULATION = (
    "accum_iter", "accumulate_grad", "accumulate_grad_batches", "accumulation_steps", "grad_accum_steps",
    "gradient_accumulation", "gradient_accumulation_steps", "iters_to_accumulate",
)  # fmt: skip
# Arguments of other libraries' learning rate finders.
_RANGE_TEST = {
    "start_lr": "min_lr", "end_lr": "max_lr", "num_training": "num_batches", "num_it": "num_batches",
    "num_iter": "num_batches", "early_stop_threshold": "stop_factor", "diverge_th": "stop_factor",
}  # fmt: skip


def raise_if_unknown(
    function: Callable[..., Any], unknown: Mapping[str, Any], positional: Sequence[Any] = (), data: Any = None
) -> None:
    """Raise if there are unknown arguments; one message names all, with a hint at the correct name of each.

    Args:
        function: The function that was called.
        unknown: Names and values that its signature does not have.
        positional: Positional values, if it accepts only keyword arguments.
        data: The training data, used to compute a microbatch size for the hint.

    Raises:
        TypeError: There are unknown or positional arguments.

    >>> def fit(*, duration=None): ...
    >>> raise_if_unknown(fit, {"durration": "1ep"})
    Traceback (most recent call last):
    TypeError: fit has no argument 'durration'. Did you mean 'duration'?
    """
    if not unknown and not positional:
        return
    from composer._compat.name_hints import argument_hint

    shown = function.__qualname__.removesuffix(".__init__")
    parameters = list(inspect.signature(function).parameters.values())
    known = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"]
    trainer = _of_trainer() if shown.startswith("Trainer.") else ()
    batches = _number_of_batches(data)
    found = [f"{shown} takes its arguments by name: {_by_name(shown, positional, known)}."] if positional else []
    for name, value in unknown.items():
        hint = _microbatches(value, data) if name in _ACCUMULATION else ""
        if shown == "Trainer.find_lr" and name in _RANGE_TEST:
            hint = f" Use {_RANGE_TEST[name]}."
        hint = hint or argument_hint(name, known, value, batches=batches, of_trainer=trainer)
        found.append(f"{'Also unknown:' if found else f'{shown} has no argument'} {name!r}.{hint}")
    raise TypeError(" ".join(found))


def _of_trainer() -> list[str]:
    from composer.trainer.trainer import Trainer

    parameters = inspect.signature(Trainer).parameters.values()
    return [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]


def _number_of_batches(data: Any) -> int | None:
    try:
        return len(getattr(data, "dataloader", data)) or None
    except TypeError:
        return None


def raise_if_misplaced(function: Callable[..., Any], *values: Any) -> None:
    """Raise if ``eval``, ``predict`` or ``find_lr`` gets a model, tensors or data that it does not accept.

    Args:
        function: The function that was called.
        values: The values of its arguments.

    Raises:
        TypeError: A value belongs to another call.

    >>> def predict(dataloader): ...
    >>> raise_if_misplaced(predict, torch.nn.Linear(1, 1))
    Traceback (most recent call last):
    TypeError: predict takes no model: it uses that of Trainer(model=...). Write predict(dataloader).
    """
    shown = function.__qualname__
    parameters = [name for name in inspect.signature(function).parameters if name not in ("self", "unknown")]
    call = f"{shown.replace('Trainer', 'trainer')}({parameters[0] if 'loader' in parameters[0] else ''})"
    if any(isinstance(value, nn.Module) for value in values):
        raise TypeError(f"{shown} takes no model: it uses that of Trainer(model=...). Write {call}.")
    others = values[1:] if "loader" in parameters[0] else values
    if any(getattr(value, "ndim", 0) > 0 for value in others):
        arguments = "DataLoader(TensorDataset(x, y), batch_size=...)"
        raise TypeError(f"{shown} takes a loader, not tensors: {shown.replace('Trainer', 'trainer')}({arguments}).")
    first = values[0] if values else None
    if others is values and hasattr(type(first), "__iter__") and type(first).__module__ != "builtins":
        raise TypeError(f"{shown} takes no data: it uses that of Trainer(train_dataloader=...). Write {call}.")


def check_call(function: Callable[..., Any], positional: Sequence[Any], arguments: Mapping[str, Any]) -> None:
    """Raise for a call of the Trainer without ``model``, naming its unknown arguments too, the likely cause.

    Args:
        function: The constructor.
        positional: Positional values.
        arguments: Keyword arguments.

    Raises:
        TypeError: There are unknown or positional arguments.

    >>> def make(*, model, seed=None): ...
    >>> check_call(make, (), {"sede": 1})
    Traceback (most recent call last):
    TypeError: make has no argument 'sede'. Did you mean 'seed'? The argument 'model' is missing.
    """
    known = inspect.signature(function).parameters
    unknown = {name: value for name, value in arguments.items() if name not in known}
    try:
        raise_if_unknown(function, unknown, positional, arguments.get("train_dataloader"))
    except TypeError as error:
        given = "model" in arguments or any(isinstance(value, nn.Module) for value in positional)
        missing = "" if given else " The argument 'model' is missing."
        raise TypeError(f"{error}{missing}") from None


def no_attribute(owner: object, name: str) -> AttributeError:
    """Return the error for a missing attribute, with a hint at the correct name.

    Args:
        owner: The trainer.
        name: The attribute.

    >>> no_attribute(object(), "train")
    AttributeError("'object' object has no attribute 'train'. Use trainer.fit().")
    """
    hint = ""
    if not name.startswith("_"):  # protocol probes (copy, pickle, notebooks) are frequent and never typos
        from composer._compat.name_hints import member_hint

        hint = member_hint(name, [known for known in dir(type(owner)) if not known.startswith("_")])
    return AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}.{hint}", name=name)


def _by_name(shown: str, positional: Sequence[Any], known: Sequence[str]) -> str:
    """Return the call with the argument names that the positional values most likely belong to."""
    if all(hasattr(value, "ndim") for value in positional):
        return f"{shown}(train_dataloader=DataLoader(TensorDataset(x, y), batch_size=...))"
    words: list[str] = []
    for value in positional:
        name, text = _argument_of(value, words)
        if name not in known and name == "model":
            return f"pass the model to Trainer(model=...), and train_dataloader=... to {shown}"
        words.append(f"{name}={text}" if name in known else "...")
    return f"{shown}({', '.join(words)})"


def _argument_of(value: Any, before: Sequence[str]) -> tuple[str, str]:
    """Return the argument that a value most likely belongs to, and how to write it."""
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
    """Return a hint with the microbatch size for a number of accumulation steps, if the batch size is known."""
    loader = getattr(data, "dataloader", data)
    size = getattr(loader, "batch_size", None)
    if type(number) is int and number == 1:
        return " Use the default: omit this argument."
    if type(number) is not int or number < 1 or type(size) is not int or size < 1:
        return ""
    return (
        f" Use device_train_microbatch_size={-(-size // number)}, which cuts each batch of {size} samples into "
        f"{min(number, size)}; to step once for {number} batches of {size}, use DataLoader(batch_size={size * number}) "
        f"and device_train_microbatch_size={size}."
    )
