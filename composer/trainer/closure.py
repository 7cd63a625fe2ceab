"""The closure of an optimizer step, which evaluates loss and gradients; the first evaluation comes before the step."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

__all__ = ["StepClosure"]


class StepClosure:
    """Evaluates the loss and its gradients for an optimizer, which may do so several times in a step.

    The gradients are computed before the step, so that hooks and code in front of an optimizer's own step see them. The
    first call returns their loss, unless the weights were moved or the gradients reset before it; changes through
    ``parameter.data`` are not noticed. Other calls evaluate again.

    Args:
        evaluate: Resets the gradients, computes loss and gradients, and returns the loss.
        loss: The loss of the present gradients.
        parameters: The weights to watch.

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> def evaluate():
    ...     print("evaluated")
    ...     weight.grad = None
    ...     loss = (weight**2).sum()
    ...     loss.backward()
    ...     return loss
    >>> closure = StepClosure(evaluate, evaluate(), [weight])
    evaluated
    >>> loss = closure()
    >>> loss = closure()
    evaluated
    """

    def __init__(self, evaluate: Callable[[], Tensor], loss: Tensor, parameters: Iterable[Tensor]) -> None:
        self._evaluate, self._parameters = evaluate, list(parameters)
        self._loss: Tensor | None = loss
        self._weights = self._versions(self._parameters)
        self._gradients = self._versions(self._gradients_present())

    def __call__(self) -> Tensor:
        """Return the loss; its gradients are those of the parameters."""
        loss, self._loss = self._loss, None
        if loss is not None and not self._is_moved():
            return loss
        with torch.enable_grad():  # an optimizer may step under no_grad
            return self._evaluate()

    def _is_moved(self) -> bool:
        """Return whether the weights have changed, or the gradients were reset; to clip or scale them is no reset."""
        if self._versions(self._parameters) != self._weights:
            return True
        present = self._gradients_present()
        if len(present) != len(self._gradients):
            return True
        if self._versions(present) == self._gradients:
            return False
        return not any(bool(_local(gradient).any()) for gradient in present)

    def _gradients_present(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]

    @staticmethod
    def _versions(tensors: Iterable[Tensor]) -> list[int]:
        """Return the numbers of in-place changes."""
        return [_local(tensor)._version for tensor in tensors]


def _local(tensor: Tensor) -> Tensor:
    """Return the local values of a sharded tensor, on which in-place operations act; gradients may be partial sums."""
    return getattr(tensor, "_local_tensor", tensor)
