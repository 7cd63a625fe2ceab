"""Replicas that train apart between synchronizations: which ranks form one, and the weights that all of them share.

Low-communication training (DiLoCo, local SGD) averages gradients only among the ranks of a replica. Between two
synchronizations the weights of the replicas differ, and the last synchronized ones are those that are evaluated and
saved as the model of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Replicas"]


@dataclass
class Replicas:
    """The replicas of a run, as seen from one rank.

    Attributes:
        count: Number of replicas.
        size: Number of ranks that form a replica, adjacent ones, which average their gradients in each step.
        index: Index of the replica that this rank belongs to.
        rank_in_replica: Index of this rank in its replica; the first rank speaks for the replica.
        group: The process group of the ranks of this replica; None if this is its only rank.
        first_ranks: The process group of the first rank of each replica; None on other ranks, and with one replica.
        synchronized: Each weight or buffer of the model, paired with its last synchronized value, while the weights of
            the replicas may differ; None while they are equal.
        background: What averages over the replicas in the background, while an algorithm overlaps that with training.

    >>> Replicas().is_first, Replicas().ranks
    (True, range(0, 1))
    """

    count: int = 1
    size: int = 1
    index: int = 0
    rank_in_replica: int = 0
    group: ProcessGroup | None = None
    first_ranks: ProcessGroup | None = None
    synchronized: Sequence[tuple[Tensor, Tensor]] | None = None
    background: Any = field(default=None, repr=False)
    _local: dict[int, Tensor] = field(default_factory=dict, repr=False)
    _swaps: ExitStack | None = field(default=None, repr=False)

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of its replica."""
        return self.rank_in_replica == 0

    @property
    def ranks(self) -> range:
        """The global ranks of this replica."""
        return range(self.index * self.size, (self.index + 1) * self.size)

    def synchronized_state(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the state dict of a model with its last synchronized weights, equal on all ranks.

        Args:
            model: The model of the run.

        >>> model = nn.Linear(1, 1, bias=False)
        >>> Replicas(synchronized=[(model.weight, torch.ones(1, 1))]).synchronized_state(model)
        {'weight': tensor([[1.]])}
        """
        values = {id(weight): value for weight, value in self.synchronized or ()}
        return _state_with(model, values)

    def local_state(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the state dict of a model with the weights of this replica, also while it is evaluated with others.

        Args:
            model: The model of the run.

        >>> list(Replicas().local_state(nn.Linear(1, 1)))
        ['weight', 'bias']
        """
        return _state_with(model, self._local)

    @contextmanager
    def evaluation_weights(self) -> Generator[None]:
        """Load the last synchronized weights into the model, and restore those of this replica on exit.

        Values are copied: optimizers and captured graphs keep references to the parameters.

        >>> model = nn.Linear(1, 1, bias=False)
        >>> with Replicas(synchronized=[(model.weight, torch.ones(1, 1))]).evaluation_weights():
        ...     model.weight.item()
        1.0
        >>> model.weight.item() == 1.0
        False
        """
        if self._swaps is not None:
            yield
            return
        try:
            with ExitStack() as self._swaps:
                if self.synchronized is not None:
                    self._swaps.enter_context(self._swapped(self.synchronized))
                yield
        finally:
            self._swaps = None

    def before_restoring(self, undo: Callable[[], None]) -> bool:
        """Undo another swap of weights at the end of an evaluation, also of one that fails or is interrupted.

        Swaps must be undone in reverse order: one that is undone later would overwrite what was restored.

        Args:
            undo: Called before the weights of this replica are restored; ignored outside of an evaluation.

        Returns:
            Whether the weights of this replica are kept apart meanwhile, from where checkpoints get them.

        >>> replicas = Replicas()
        >>> with replicas.evaluation_weights():
        ...     print(replicas.before_restoring(lambda: print("undone")))
        False
        undone
        """
        if self._swaps is not None:
            self._swaps.callback(undo)
        return bool(self._local)

    @contextmanager
    def _swapped(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Generator[None]:
        """Load values into weights, and restore those on exit."""
        self._local = {id(weight): weight.detach().clone() for weight, _ in pairs}
        try:
            with torch.no_grad():
                for weight, value in pairs:
                    weight.copy_(value)
            yield
        finally:
            with torch.no_grad():
                for weight, _ in pairs:
                    weight.copy_(self._local[id(weight)])
            self._local = {}


def _state_with(model: nn.Module, values: dict[int, Tensor]) -> dict[str, Tensor]:
    """Return the state dict of a model with other values for some of its tensors, by their ``id``."""
    found = model.state_dict(keep_vars=True)
    replaced = {name: values[id(value)].to(value.dtype) for name, value in found.items() if id(value) in values}
    return {**model.state_dict(), **replaced}
