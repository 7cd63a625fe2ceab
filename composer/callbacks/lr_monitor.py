"""LRMonitor: log the learning rate of each parameter group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from composer.core.callback import Callback

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["LRMonitor", "learning_rates"]


class LRMonitor(Callback):
    """Logs the learning rate of each parameter group at the start of the step that uses it.

    The name is ``lr-{optimizer class}/group{number}``, as in ``lr-AdamW/group0``. If several optimizers have the same
    class, the second is named ``lr-AdamW-2/group0``, and so on. Each rate is logged at the step that it affects: the
    first step is logged, and a rate that the schedule sets after the last step is not.

    >>> from composer import Engine, State
    >>> from composer.loggers import InMemoryLogger
    >>> model = torch.nn.Linear(1, 1)
    >>> log = InMemoryLogger()
    >>> state = State(model=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.5))
    >>> _ = Engine(state, callbacks=[LRMonitor(), log]).run_event("batch_start")
    >>> log.most_recent_values
    {'lr-SGD/group0': 0.5}
    """

    def batch_start(self, state: State, logger: Logger) -> None:
        if logger.destinations:
            logger.log_metrics({f"lr-{name}": rate for name, rate in learning_rates(state.optimizers).items()})


def learning_rates(optimizers: Iterable[Optimizer]) -> dict[str, Any]:
    """Return the learning rate of each parameter group, a number or a tensor, by optimizer class and group.

    Args:
        optimizers: The optimizers.

    >>> parameter = torch.nn.Parameter(torch.ones(1))
    >>> learning_rates([torch.optim.SGD([parameter], lr=0.5), torch.optim.SGD([parameter], lr=0.1)])
    {'SGD/group0': 0.5, 'SGD-2/group0': 0.1}
    """
    return {
        f"{name}/group{number}": group["lr"]
        for name, optimizer in _named(optimizers)
        for number, group in enumerate(optimizer.param_groups)
    }


def _named(optimizers: Iterable[Optimizer]) -> Iterator[tuple[str, Optimizer]]:
    """Yield each optimizer with its class name, numbered from the second of a class on."""
    seen: Counter[str] = Counter()
    for optimizer in optimizers:
        name = type(optimizer).__name__
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}", optimizer
