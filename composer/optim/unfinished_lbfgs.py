"""Let LBFGS begin anew if its first step was not completed: torch counts its iterations, but keeps no direction yet."""

from __future__ import annotations

from typing import Any, cast

from torch.optim import LBFGS, Optimizer

from composer.optim.wrapped_optimizer import unwrapped

__all__ = ["restart_unfinished"]


def restart_unfinished(optimizer: Optimizer) -> None:
    """Reset the count of iterations of LBFGS within its first step, without which the next step would raise an error.

    The state of a later step has the direction and the gradient of the step before; it stays as it is.

    Args:
        optimizer: The optimizer, also of another class, whose state was loaded or whose step failed.

    >>> weight = torch.ones(1, requires_grad=True)
    >>> optimizer = torch.optim.LBFGS([weight])
    >>> optimizer.state[weight].update(func_evals=2, n_iter=1)
    >>> restart_unfinished(optimizer)
    >>> optimizer.state[weight]["n_iter"]
    0
    """
    inner = unwrapped(optimizer)
    if not isinstance(inner, LBFGS):
        return
    for state in cast("dict[Any, dict[str, Any]]", inner.state).values():
        if state.get("n_iter") and state.get("prev_flat_grad") is None:
            state["n_iter"] = 0
