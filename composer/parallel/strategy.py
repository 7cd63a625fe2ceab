"""The interface between the training loop and parallelism: DDP, FSDP, tensor parallelism, DeepSpeed, single process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from composer import dist
from composer.precision import Precision, default_precision

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from composer.core.checkpoint_folders import CheckpointFolders
    from composer.core.state import State
    from composer.devices import Device

__all__ = ["SingleProcess", "Strategy"]

_NO_CONTEXT: AbstractContextManager[None] = nullcontext()


class Strategy(ABC):
    """The operations of the training loop that depend on how the model is parallelized.

    The loop, the algorithms and the callbacks do not know which strategy is in use: ``state.model`` is always the
    user's model, and the optimizers step its parameters, which are sharded (``DTensor``) or not.

    Attributes:
        name: Name of the strategy.
        shards_weights: Whether each rank holds only a shard of the weights.
        has_own_optimizer_step: Whether :meth:`step` updates the parameters in place of the optimizers, of which there
            is then one.
        autocasts: Whether autocast chooses the dtype of operations; if not, weights and batches have that dtype.
        autocast_cache_enabled: Whether autocast may cache cast weights until the end of a forward pass; not if weights
            are resharded earlier.
        batch_dtype: The dtype to which floating-point tensors of batches are cast; None leaves them unchanged.
        has_collectives_per_microbatch: Whether every microbatch has collectives, so that all ranks must run the same
            number of microbatches.
        module: The wrapper that training calls in place of the model, if its backward pass needs one.
        checkpoint_folders: How sharded checkpoints are written, or None if each checkpoint is a single file.
        can_finish_collectives: Whether a rank that ran out of memory (OOM) in a pass can complete the collectives of
            the batch: :meth:`record_collectives`, :meth:`finish_collectives` and :meth:`discard_batch` are implemented.
        needs_trial_microbatches: Whether that requires two completed microbatches before the first batch.
        rank_zero_reads: Whether only rank 0 reads a single-file checkpoint and sends the other ranks their shards.
        device_mesh: The device mesh over which weights are sharded, set by :meth:`setup_device`; None without one.

    >>> SingleProcess().shards_weights
    False
    """

    name: ClassVar[str]
    shards_weights: bool = False
    has_own_optimizer_step: ClassVar[bool] = False
    autocasts: bool = True
    autocast_cache_enabled: bool = True
    batch_dtype: torch.dtype | None = None
    has_collectives_per_microbatch: bool = False
    module: nn.Module | None = None
    checkpoint_folders: CheckpointFolders | None = None
    can_finish_collectives: bool = False
    needs_trial_microbatches: ClassVar[bool] = False
    rank_zero_reads: bool = False
    device_mesh: DeviceMesh | None = None

    def setup_device(self, model: nn.Module, device: Device) -> None:
        """Move the model to the device, before algorithms run.

        Args:
            model: The user's model.
            device: The target device.

        Raises:
            ValueError: A tensor of the model is on the meta device.
        """
        tensors = (*model.named_parameters(), *model.named_buffers())
        if empty := [name for name, tensor in tensors if tensor.is_meta]:
            raise ValueError(
                f"model: {empty[0]} is on the meta device, which holds no values. Create the model outside of "
                f"torch.device('meta'), or shard it with parallelism_config={{'fsdp': {{}}}}, which initializes its "
                f"weights."
            )
        device.module_to_device(model)

    def resolve_precision(self, requested: Precision | None, device: Device) -> Precision:
        """Return the precision to train in.

        Args:
            requested: The user's argument; None selects the device's default.
            device: The device of the model.
        """
        return default_precision(device) if requested is None else requested

    def make_scaler(self, device_type: str) -> torch.amp.GradScaler:
        """Return the gradient scaler for fp16 loss scaling.

        Args:
            device_type: The device type, such as ``"cuda"``.
        """
        return torch.amp.GradScaler(device_type)

    @property
    def data_rank(self) -> int:
        """Index of this rank's data shard, from 0."""
        return dist.get_global_rank()

    @property
    def data_world_size(self) -> int:
        """Number of data shards; smaller than the world size if some ranks train on the same batch."""
        return dist.get_world_size()

    @property
    def data_group(self) -> ProcessGroup | None:
        """The process group, including this rank, whose ranks together have all data shards; None for all ranks."""
        return None

    @abstractmethod
    def prepare(self, state: State) -> None:
        """Prepare the model and its optimizers for distributed training.

        Called once, after algorithms have changed the layers and before a checkpoint is loaded.

        Args:
            state: The state of the run.
        """

    def begin_batch(self) -> None:
        """Run the collectives that precede a batch, so that no rank waits for another before its backward pass.

        All ranks call this once per batch; not again if the batch is retried after :meth:`discard_batch`.
        """
        return

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context for the forward and backward pass of a microbatch (gradient accumulation).

        Args:
            is_last: Whether it is the last microbatch of its batch, after which gradients must be synchronized.
        """
        return _NO_CONTEXT

    def backward(self, loss: Tensor, *, create_graph: bool = False) -> None:
        """Run the backward pass of a microbatch, which accumulates gradients.

        Args:
            loss: A scalar.
            create_graph: Whether to make the gradients differentiable.
        """
        loss.backward(create_graph=create_graph)

    def reduce(self) -> None:
        """Synchronize the gradients that the last backward pass has not synchronized; called once per batch."""
        return

    def record_collectives(self) -> None:
        """Start recording collectives for :meth:`finish_collectives`; called once, before the first batch."""
        return

    def finish_collectives(self, microbatches: int) -> None:
        """Complete the collectives of the batch after a failed pass, so that the other ranks do not hang.

        Args:
            microbatches: Number of microbatches of the batch that are not complete, including the failed one. 0 if none
                had begun and the other ranks do not depend on the number.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement finish_collectives().")

    def discard_batch(self, state: State) -> None:
        """Discard the state of a failed batch before it is retried; all ranks call this.

        Args:
            state: The state of the run.
        """
        return

    def step(self) -> None:
        """Update the parameters; called in place of the optimizers' step if :attr:`has_own_optimizer_step`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement step(); the optimizers do.")

    def close(self) -> None:
        """Release the resources of the run."""
        return


class SingleProcess(Strategy):
    """Training in a single process, without parallelism.

    >>> SingleProcess.name
    'single'
    """

    name = "single"

    def prepare(self, state: State) -> None:
        """Do nothing."""
