"""How a model is trained by one process or by several."""

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

_WHATEVER: AbstractContextManager[None] = nullcontext()


class Strategy(ABC):
    """What the training loop asks for where processes have to work together.

    The loop, the algorithms and the callbacks do not know which one is in use: ``state.model`` is the user's model all
    the time, and its parameters are what the optimizers step, whole or, as ``DTensor``, in parts.

    Attributes:
        name: By which :func:`.choose_strategy` finds it.
        shards_weights: Whether a process holds parts of the weights only.
        steps_itself: Whether :meth:`step` updates the parameters, rather than the optimizers, of which there is one.
        autocasts: Whether operations choose their format; if not, weights and batches are in it.
        caches_casts: Whether autocast may keep the weights that it has cast until the end of a forward pass; not where
            weights are resharded before.
        batch_dtype: Format that floating-point numbers of batches are brought to; None leaves them as they are.
        syncs_in_forward: Whether processes wait for each other with every microbatch, so that all must run the same
            number of them.
        module: What training calls in place of the model, where the model has to be wrapped for its backward pass.
        checkpoint_folders: How checkpoints are divided among processes, or None where each is one file.
        can_catch_up: Whether a process whose pass broke off, because memory ran out, can take part in what the others
            still do: :meth:`watch`, :meth:`catch_up` and :meth:`recover` are there.
        has_to_rehearse: Whether for that it has to see two microbatches that fit, before the first batch.
        first_reads: Whether a checkpoint that is one file is read by the first process, which gives the others their
            parts, rather than by all.
        device_mesh: The mesh of the ranks, once the model has been placed, where weights are sharded over one.

    >>> SingleProcess().shards_weights
    False
    """

    name: ClassVar[str]
    shards_weights: bool = False
    steps_itself: ClassVar[bool] = False
    autocasts: bool = True
    caches_casts: bool = True
    batch_dtype: torch.dtype | None = None
    syncs_in_forward: bool = False
    module: nn.Module | None = None
    checkpoint_folders: CheckpointFolders | None = None
    can_catch_up: bool = False
    has_to_rehearse: ClassVar[bool] = False
    first_reads: bool = False
    device_mesh: DeviceMesh | None = None

    def place(self, model: nn.Module, device: Device) -> None:
        """Bring a model to the device, before algorithms see it.

        Args:
            model: The user's model.
            device: Where to.

        Raises:
            ValueError: The model has no values yet.
        """
        tensors = (*model.named_parameters(), *model.named_buffers())
        if empty := [name for name, tensor in tensors if tensor.is_meta]:
            raise ValueError(
                f"model: {empty[0]} is on the meta device, which keeps no values. Make the model outside of "
                f"torch.device('meta'), or divide its weights, with parallelism_config={{'fsdp': {{}}}}; they are made "
                f"then."
            )
        device.module_to_device(model)

    def settle_precision(self, asked: Precision | None, device: Device) -> Precision:
        """Return the precision to train in.

        Args:
            asked: What the user gave; None is the best that the device has.
            device: Where the model is.
        """
        return default_precision(device) if asked is None else asked

    def make_scaler(self, device_type: str) -> torch.amp.GradScaler:
        """Return what scales the gradients of float16.

        Args:
            device_type: Such as ``"cuda"``.
        """
        return torch.amp.GradScaler(device_type)

    @property
    def data_rank(self) -> int:
        """Which part of the data this process gets, from 0."""
        return dist.get_global_rank()

    @property
    def data_world_size(self) -> int:
        """How many parts the data is dealt out in: fewer than processes where some work on the same batch."""
        return dist.get_world_size()

    @property
    def data_group(self) -> ProcessGroup | None:
        """The processes that have all parts of the data together, of which this is one; None is all."""
        return None

    @abstractmethod
    def prepare(self, state: State) -> None:
        """Make the model and its optimizers ready for several processes.

        Called once: the model has the layers that it will have, and not yet the weights of a checkpoint.

        Args:
            state: The state of the run.
        """

    def begin(self) -> None:
        """Do what processes do together before a batch, so that none waits for another before its backward pass.

        Called once for a batch, by all; a batch that is trained again after :meth:`recover` has begun.
        """
        return

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context for forward and backward of a microbatch.

        Args:
            is_last: Whether it is the last of its batch, after which the gradients are to be the same everywhere.
        """
        return _WHATEVER

    def backward(self, loss: Tensor, *, create_graph: bool = False) -> None:
        """Add the gradients of a microbatch to those of the ones before.

        Args:
            loss: A scalar.
            create_graph: Whether the gradients are to be differentiable.
        """
        loss.backward(create_graph=create_graph)

    def reduce(self) -> None:
        """Make the gradients the same everywhere, where the last backward pass has not; called once for a batch."""
        return

    def watch(self) -> None:
        """Keep account, from now on, of what :meth:`catch_up` has to know; called once, before the first batch."""
        return

    def catch_up(self, microbatches: int) -> None:
        """Take part in what the others wait for until their last backward pass, after a pass that broke off.

        Args:
            microbatches: Number of those of the batch that are not done; the one that broke off is the first. 0 where
                none had begun, and the number did not matter to the others.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot catch up.")

    def recover(self, state: State) -> None:
        """Drop what is left of a batch that is to be trained again; all processes call this.

        Args:
            state: The state of the run.
        """
        return

    def step(self) -> None:
        """Update the parameters; called in place of the optimizers' step where :attr:`steps_itself`."""
        raise NotImplementedError(f"{type(self).__name__} leaves the step to the optimizers.")

    def close(self) -> None:
        """Let go of what was made for the run."""
        return


class SingleProcess(Strategy):
    """One process, which has everything.

    >>> SingleProcess.name
    'single'
    """

    name = "single"

    def prepare(self, state: State) -> None:
        """Nothing has to be agreed upon."""
