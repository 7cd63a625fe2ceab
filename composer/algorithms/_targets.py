"""What the methods that edit targets share: which output belongs to which target, and in what dtype to write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from composer.loss.utils import as_probabilities

__all__ = ["as_soft_target", "edit_targets", "logits_of"]


def edit_targets(edit: Callable[..., Tensor], outputs: Any, target: Any, *others: Any) -> Any:
    """Call ``edit(outputs, target, *others)`` for each of several targets, and keep their container.

    Outputs in a container of the same size or with the same keys belong to one target each, others to all of them.

    >>> edit_targets(lambda output, target: output + target, [1, 2], (torch.tensor(10), torch.tensor(20)))
    (tensor(11), tensor(22))
    """
    if isinstance(target, Tensor):
        return edit(outputs, target, *others)
    if isinstance(target, Mapping):
        keys = list(cast("Mapping[Any, Any]", target))
        own = isinstance(outputs, Mapping) and all(key in outputs for key in keys)
        return {
            key: edit_targets(edit, outputs[key] if own else outputs, target[key], *(other[key] for other in others))
            for key in keys
        }
    if isinstance(target, (tuple, list)):
        size = len(cast("Sequence[Any]", target))
        own = isinstance(outputs, (tuple, list)) and len(cast("Sequence[Any]", outputs)) == size
        parts = [
            edit_targets(edit, outputs[place] if own else outputs, target[place], *(other[place] for other in others))
            for place in range(size)
        ]
        return parts if isinstance(target, list) else tuple(parts)
    raise TypeError(
        f"The target must be a tensor or a collection of tensors, but it is of type {type(target).__name__}. "
        f"Check target_key."
    )


def logits_of(outputs: Any) -> Tensor:
    """Find the logits in the outputs of a model: a tensor, what is called ``logits``, or the first that is no scalar.

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
        f"No logits are in the outputs of the model, of type {type(outputs).__name__}. Return a tensor, a mapping or "
        f"object with 'logits', or a sequence that begins with them."
    )


def as_soft_target(target: Tensor, logits: Tensor) -> Tensor:
    """Return probabilities (B, C, ...), in float32 where the logits have less: shares near 1 / C would be rounded.

    >>> as_soft_target(torch.tensor([1]), torch.zeros(1, 2, dtype=torch.bfloat16))
    tensor([[0., 1.]])
    """
    if logits.dtype in (torch.float16, torch.bfloat16):
        # Only shape, dtype and device are read: a view of one element stands for a converted copy.
        logits = torch.empty((), dtype=torch.float32, device=logits.device).expand(logits.shape)
    return as_probabilities(target, like=logits)
