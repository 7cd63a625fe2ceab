"""Targets of a batch: match outputs with targets, and convert targets to probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from composer.loss.utils import as_probabilities

__all__ = ["as_soft_target", "edit_targets", "logits_of"]


def edit_targets(edit: Callable[..., Tensor], outputs: Any, target: Any, *others: Any) -> Any:
    """Call ``edit(outputs, target, *others)`` for each of several targets, and keep their container.

    Outputs in a container of the same size or with the same keys are matched one to one, others go to every target.

    >>> edit_targets(lambda output, target: output + target, [1, 2], (torch.tensor(10), torch.tensor(20)))
    (tensor(11), tensor(22))
    """
    if isinstance(target, Tensor):
        return edit(outputs, target, *others)
    if isinstance(target, Mapping):
        keys = list(cast("Mapping[Any, Any]", target))
        separate = isinstance(outputs, Mapping) and all(key in outputs for key in keys)
        return {
            key: edit_targets(
                edit, outputs[key] if separate else outputs, target[key], *(other[key] for other in others)
            )
            for key in keys
        }
    if isinstance(target, (tuple, list)):
        size = len(cast("Sequence[Any]", target))
        separate = isinstance(outputs, (tuple, list)) and len(cast("Sequence[Any]", outputs)) == size
        edited = [
            edit_targets(
                edit, outputs[index] if separate else outputs, target[index], *(other[index] for other in others)
            )
            for index in range(size)
        ]
        return edited if isinstance(target, list) else tuple(edited)
    raise TypeError(
        f"The target must be a tensor or a collection of tensors, but it is of type {type(target).__name__}. "
        f"Check target_key."
    )


def logits_of(outputs: Any) -> Tensor:
    """Return the logits in the outputs of a model: a tensor, the element ``logits``, or the first that is not a scalar.

    >>> logits_of({"loss": torch.tensor(0.0), "logits": torch.zeros(2, 3)}).shape
    torch.Size([2, 3])
    """
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        found = cast("Mapping[str, Any]", outputs)
        candidates = [found["logits"]] if "logits" in found else list(found.values())
    elif isinstance(outputs, (tuple, list)):
        candidates = list(cast("Sequence[Any]", outputs))
    else:
        candidates = [getattr(outputs, "logits", None)]
    for candidate in candidates:
        if isinstance(candidate, Tensor) and candidate.ndim > 0:
            return candidate
    raise TypeError(
        f"The outputs of the model, of type {type(outputs).__name__}, contain no logits. Return a tensor, a mapping or "
        f"object with 'logits', or a sequence that starts with them."
    )


def as_soft_target(target: Tensor, logits: Tensor) -> Tensor:
    """Return probabilities (B, C, ...), at least float32: values near 1 / C would be rounded in half precision.

    >>> as_soft_target(torch.tensor([1]), torch.zeros(1, 2, dtype=torch.bfloat16))
    tensor([[0., 1.]])
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        # Only shape, dtype and device are read: a view of one element avoids a converted copy.
        logits = torch.empty((), dtype=torch.float32, device=logits.device).expand(logits.shape)
    return as_probabilities(target, like=logits)
