"""Scale the learning rates of all optimizers for one step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["ScaledRates"]


class ScaledRates:
    """Learning rates that are scaled during a step, and restored after it unless something has set them since.

    >>> from composer import State
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    >>> state, rates = State(model=torch.nn.Linear(1, 1), optimizers=optimizer), ScaledRates()
    >>> rates.scale(state, 2.0)
    >>> optimizer.param_groups[0]["lr"]
    1.0
    >>> rates.restore(state)
    >>> optimizer.param_groups[0]["lr"]
    0.5
    """

    def __init__(self) -> None:
        self._factor = 1.0
        self._optimizers: Sequence[Optimizer] = ()
        # Of each parameter group, by the numbers of its optimizer and of itself, which stay when groups are added: the
        # rate before, and the scaled rate, which others replace or write to.
        self._rates: dict[tuple[int, int], tuple[Any, Any, int]] = {}
        self._saved: list[tuple[float, float]] = []

    def scale(self, state: State, factor: float) -> None:
        """Multiply the rates of all parameter groups.

        Args:
            state: The state; its optimizers are scaled.
            factor: The factor.
        """
        self._factor, self._optimizers, self._rates = factor, state.optimizers, {}
        self.scale_added()

    def scale_added(self) -> None:
        """Multiply the rates of the groups that were added in this step, too."""
        # Torch gives all groups one tensor as their default.
        scaled_tensors = {id(rate[1]): rate for rate in self._rates.values() if isinstance(rate[1], Tensor)}
        for place, group in _groups(self._optimizers):
            if place in self._rates:
                continue
            rate = group["lr"]
            if isinstance(rate, Tensor):
                if id(rate) not in scaled_tensors:
                    before = rate.clone()
                    rate.mul_(self._factor)
                    scaled_tensors[id(rate)] = (before, rate, rate._version)
                self._rates[place] = scaled_tensors[id(rate)]
            else:
                group["lr"] = scaled = rate * self._factor
                self._rates[place] = (rate, scaled, 0)

    def restore(self, state: State) -> None:
        """Restore the rates, also those of a loaded checkpoint that was saved during a step.

        Args:
            state: The state with the optimizers.
        """
        rates, self._rates, self._optimizers = self._rates, {}, ()
        saved, self._saved = self._saved, []
        for place, group in _groups(state.optimizers):
            before, scaled, version = rates.get(place, (None, None, 0))
            if scaled is None or group["lr"] is not scaled:
                continue  # something has set it for the next step
            if not isinstance(scaled, Tensor):
                group["lr"] = before
            elif scaled._version == version:
                scaled.copy_(before)
        for (_, group), (before, scaled) in zip(_groups(state.optimizers), saved, strict=False):
            if float(group["lr"]) == scaled:
                group["lr"] = group["lr"].fill_(before) if isinstance(group["lr"], Tensor) else before

    def state_dict(self) -> list[tuple[float, float]]:
        """Return the rates of all groups before and after scaling; none between steps."""
        if not self._rates:
            return list(self._saved)  # of a loaded checkpoint, until training starts
        # A group that was added in this step, and is not scaled yet, has the same rate before and after.
        unscaled = ((place, (group["lr"], group["lr"], 0)) for place, group in _groups(self._optimizers))
        rates = [self._rates.get(place, rate) for place, rate in unscaled]
        return [(float(before), float(scaled)) for before, scaled, _ in rates]

    def load_state_dict(self, state: list[tuple[float, float]]) -> None:
        """Restore these rates when training starts.

        Args:
            state: What :meth:`state_dict` returned.
        """
        self._rates, self._saved = {}, [(before, scaled) for before, scaled in state]


def _groups(optimizers: Iterable[Optimizer]) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Iterate over the groups of optimizers, with the numbers of the optimizer and of the group."""
    for number, optimizer in enumerate(optimizers):
        for index, group in enumerate(optimizer.param_groups):
            yield (number, index), group
