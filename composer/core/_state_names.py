"""Attributes of State that scripts for older versions read: ``max_epochs``, and ``fsdp_*`` for sharded weights."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from composer.core.time import Time, TimeUnit, ensure_time

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["StateNames"]


class StateNames(ABC):
    """Old attribute names of a :class:`.State`, derived from its current attributes.

    >>> from composer import State
    >>> state = State(model=nn.Linear(1, 1), max_duration="3ep")
    >>> state.max_epochs, state.fsdp_enabled
    (3, False)
    """

    model: nn.Module
    max_duration: Any
    fsdp_config: Any = None
    tp_config: Any = None
    device_mesh: DeviceMesh | None = None
    _iteration_time: Time | None = None

    def _repr_html_(self) -> str:
        """Return the state as a table, for notebooks."""
        from composer.core.state_html import state_html

        return state_html(self)

    @property
    def _iteration_length(self) -> Time | None:
        """Duration of an iteration in epochs or tokens; set to a number of epochs, a time string or a time."""
        return self._iteration_time

    @_iteration_length.setter
    def _iteration_length(self, length: int | str | Time | None) -> None:
        time = None if length is None else ensure_time(length, TimeUnit.EPOCH, "_iteration_length")
        if time is not None and time.unit not in (TimeUnit.EPOCH, TimeUnit.TOKEN):
            raise NotImplementedError(f"_iteration_length={str(time)!r} must be in epochs or tokens.")
        self._iteration_time = time

    @property
    def max_epochs(self) -> int:
        """Old name of ``max_duration`` in epochs; a fractional value is truncated."""
        if self.max_duration is None or self.max_duration.unit is not TimeUnit.EPOCH:
            raise ValueError(f"max_epochs needs a max_duration in epochs, but it is {self.max_duration}.")
        return int(self.max_duration.value)

    @max_epochs.setter
    def max_epochs(self, epochs: float) -> None:
        self.max_duration = Time.from_epoch(int(epochs))

    @property
    def fsdp_enabled(self) -> bool:
        """Whether weights are sharded among ranks."""
        return self.fsdp_config is not None

    @property
    def fsdp_config_version(self) -> int:
        """2 (torch's FSDP2) if weights are sharded; else 0."""
        return 2 if self.fsdp_enabled else 0

    @property
    def fsdp_state_dict_type(self) -> str | None:
        """``"full"`` (one file) or ``"sharded"`` (a folder) for checkpoints of sharded weights; else None."""
        return self.fsdp_config.state_dict_type if self.fsdp_enabled else None

    @property
    def fsdp_sharded_state_dict_enabled(self) -> bool:
        """Whether each rank saves its shard of the weights."""
        return self.fsdp_state_dict_type == "sharded"

    @property
    def load_monolith_rank0_only(self) -> bool:
        """Whether only rank 0 reads a checkpoint that is a single file."""
        return self.fsdp_enabled and self.fsdp_config.load_monolith_rank0_only

    @property
    def is_model_ddp(self) -> bool:
        """Whether ``state.model`` is wrapped, with the model in ``.module``; a :class:`.Trainer` never wraps it."""
        return isinstance(self.model, DistributedDataParallel)
