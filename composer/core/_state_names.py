"""Names by which scripts know parts of the state: its phases, and how weights are divided."""

from __future__ import annotations

from abc import ABC
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from composer.core.phase import Phase
from composer.core.time import Time, TimeUnit

if TYPE_CHECKING:
    from composer.core.timestamp import Timestamp

__all__ = ["StateNames"]


class StateNames(ABC):
    """Forwards to what a state holds.

    >>> from composer import State
    >>> state = State(model=nn.Linear(1, 1), max_duration="3ep")
    >>> state.max_epochs, state.fsdp_enabled
    (3, False)
    """

    model: nn.Module
    device_train_microbatch_size: int | None
    parallelism_config: Any
    phase: Phase
    train_phase: Phase
    eval_phase: Phase
    predict_phase: Phase
    max_duration: Any

    @property
    def timestamp(self) -> Timestamp:
        """How far training has come."""
        return self.train_phase.timestamp

    @timestamp.setter
    def timestamp(self, timestamp: Timestamp) -> None:
        self.train_phase.timestamp = timestamp

    @property
    def eval_timestamp(self) -> Timestamp:
        """How far the evaluation has come."""
        return self.eval_phase.timestamp

    @property
    def predict_timestamp(self) -> Timestamp:
        """How far the prediction has come."""
        return self.predict_phase.timestamp

    @property
    def dataloader(self) -> Any:
        """The data of the active phase."""
        return None if self.phase.loader is None else self.phase.loader.dataloader

    @property
    def dataloader_label(self) -> str | None:
        """The label of the data of the active phase."""
        return self.phase.label

    @property
    def max_epochs(self) -> int:
        """Old name of ``max_duration`` in epochs; a fraction set is cut off."""
        if self.max_duration is None or self.max_duration.unit is not TimeUnit.EPOCH:
            raise ValueError(f"max_epochs needs a max_duration in epochs, but it is {self.max_duration}.")
        return int(self.max_duration.value)

    @max_epochs.setter
    def max_epochs(self, epochs: float) -> None:
        self.max_duration = Time.from_epoch(int(epochs))

    @property
    def grad_accum(self) -> int:
        """Old name for the number of microbatches in a full batch."""
        size = None if self.train_phase.loader is None else self.train_phase.loader.__batch_size__
        if size is None or self.device_train_microbatch_size is None:
            return 1
        return -(-size // self.device_train_microbatch_size)

    @property
    def fsdp_config(self) -> Any:
        """The :class:`.FSDPConfig` by which weights are divided, or None."""
        return getattr(self.parallelism_config, "fsdp", None)

    @property
    def tp_config(self) -> Any:
        """The :class:`.TPConfig` by which layers are divided, or None."""
        return getattr(self.parallelism_config, "tp", None)

    @property
    def fsdp_enabled(self) -> bool:
        """Whether weights are divided among processes."""
        return self.fsdp_config is not None

    @property
    def fsdp_config_version(self) -> int:
        """2, torch's second form, where weights are divided; else 0."""
        return 2 if self.fsdp_enabled else 0

    @property
    def fsdp_state_dict_type(self) -> str | None:
        """Whether checkpoints of divided weights are one file, ``"full"``, or a folder, ``"sharded"``; else None."""
        return self.fsdp_config.state_dict_type if self.fsdp_enabled else None

    @property
    def fsdp_sharded_state_dict_enabled(self) -> bool:
        """Whether each process saves its part of the weights."""
        return self.fsdp_state_dict_type == "sharded"

    @property
    def load_monolith_rank0_only(self) -> bool:
        """Whether only the first process reads a checkpoint that is one file."""
        return self.fsdp_enabled and self.fsdp_config.load_monolith_rank0_only

    @property
    def is_model_ddp(self) -> bool:
        """Whether the model has to be looked for in ``state.model.module``; a :class:`.Trainer` never wraps it so."""
        return isinstance(self.model, DistributedDataParallel)
