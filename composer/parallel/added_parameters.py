"""Parameters that are added to optimizers during training, as with a new layer: strategies do not know them yet."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch.distributed as torch_dist
from torch import nn

from composer.dist.collectives import communicates
from composer.dist.dtensor import is_dtensor

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["AddedParameters"]


class AddedParameters:
    """Finds parameters that were added to the optimizers of a run.

    Args:
        state: The state of the run, whose present optimizers are noted.

    >>> from composer import State
    >>> model, layer = nn.Linear(2, 2), nn.Linear(2, 1, bias=False)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> added = AddedParameters(State(model=model, optimizers=optimizer))
    >>> optimizer.add_param_group({"params": layer.parameters()})
    >>> [parameter is layer.weight for parameter in added.found()]
    [True]
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._noted = self._optimized()

    def note(self) -> None:
        """Note the parameters of the optimizers."""
        self._noted = self._optimized()

    def found(self) -> list[nn.Parameter]:
        """Return the parameters that were added since they were noted."""
        optimized = self._optimized()
        if len(optimized) == len(self._noted) and all(map(operator.is_, optimized, self._noted)):
            return []
        known = {id(one) for one in self._noted}
        return [one for one in optimized if id(one) not in known]

    def broadcast(self) -> list[nn.Parameter]:
        """Give the parameters that were added, and are not sharded, the values of rank 0; return and note them."""
        added = [one for one in self.found() if not is_dtensor(one)]
        self.note()
        if communicates():
            for parameter in added:
                torch_dist.broadcast(value := parameter.detach().contiguous(), 0)
                parameter.detach().copy_(value)
        return added

    def _optimized(self) -> list[nn.Parameter]:
        """Return the parameters of the optimizers."""
        return [one for each in self._state.optimizers for group in each.param_groups for one in group["params"]]
