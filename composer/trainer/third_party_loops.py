"""Microbatch size helpers that third-party training loops import: the initial size, and a smaller one after OOM."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from composer.trainer.auto_microbatch.out_of_memory import free

if TYPE_CHECKING:
    from composer.core.evaluator import Evaluator
    from composer.core.state import State

__all__ = [
    "adjust_device_eval_microbatch_size",
    "adjust_device_train_microbatch_size",
    "get_initial_device_train_microbatch_size",
]


def get_initial_device_train_microbatch_size(
    device_train_microbatch_size: float | str | None,
    auto_microbatching: bool,
    train_dataloader: Iterable[Any] | None,
) -> float | None:
    """Return the initial microbatch size of training: the given size, or the batch size of the loader.

    Args:
        device_train_microbatch_size: The size, or None for the full batch.
        auto_microbatching: Whether the size is found during training.
        train_dataloader: The loader; without one the size is not yet known.

    Returns:
        The size, or None without a loader.

    Raises:
        ValueError: The loader has no ``batch_size``, or the size is not a number.
        AttributeError: The loader has no ``batch_size``, which ``"auto"`` starts from.

    >>> get_initial_device_train_microbatch_size(
    ...     None, False, torch.utils.data.DataLoader([1, 2, 3], batch_size=2)
    ... )
    2
    """
    if device_train_microbatch_size is not None and not auto_microbatching:
        if isinstance(device_train_microbatch_size, (int, float)):
            return device_train_microbatch_size
        raise ValueError(
            f"device_train_microbatch_size must be a number or 'auto'; got {device_train_microbatch_size!r}."
        )
    if train_dataloader is None:
        return None
    if not hasattr(train_dataloader, "batch_size"):
        error_class = ValueError if device_train_microbatch_size is None else AttributeError
        raise error_class(
            f"device_train_microbatch_size={device_train_microbatch_size!r} requires train_dataloader.batch_size, "
            f"which {type(train_dataloader).__name__} does not have; set it to a number."
        )
    return train_dataloader.batch_size  # pyright: ignore[reportAttributeAccessIssue]


def adjust_device_train_microbatch_size(state: State) -> None:
    """Halve the microbatch size of training after OOM, and free outputs, loss and gradients of the failed batch.

    Args:
        state: The state.

    Raises:
        RuntimeError: A single sample does not fit into memory.

    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1), device_train_microbatch_size=5)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     adjust_device_train_microbatch_size(state)
    >>> state.device_train_microbatch_size
    2
    """
    state.device_train_microbatch_size = _halved("train", state.device_train_microbatch_size)
    state.outputs = state.loss = None
    for optimizer in state.optimizers:
        optimizer.zero_grad(set_to_none=True)
    free(state, None)


def adjust_device_eval_microbatch_size(evaluator: Evaluator) -> None:
    """Halve the microbatch size of an evaluator after OOM.

    Args:
        evaluator: The evaluator.

    Raises:
        RuntimeError: A single sample does not fit into memory.

    >>> from composer import Evaluator
    >>> evaluator = Evaluator(label="eval", dataloader=[], device_eval_microbatch_size=4)
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     adjust_device_eval_microbatch_size(evaluator)
    >>> evaluator.device_eval_microbatch_size
    2
    """
    evaluator.device_eval_microbatch_size = _halved("eval", evaluator.device_eval_microbatch_size)


def _halved(phase: str, size: int | None) -> int:
    if size is None or size <= 1:
        raise RuntimeError(f"Out of memory: not even a microbatch of 1 sample fits (device_{phase}_microbatch_size).")
    message = f"Out of memory: reducing device_{phase}_microbatch_size from {size} to {size // 2}."
    warnings.warn(message, RuntimeWarning, stacklevel=3)
    return size // 2
