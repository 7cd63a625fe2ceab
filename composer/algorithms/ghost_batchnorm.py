"""Ghost batch norm: normalize chunks of a batch separately, so that a large batch regularizes like a small one.

Paper: Train longer, generalize better, Hoffer et al. 2017, https://arxiv.org/abs/1705.08741
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from composer._numbers import whole_number
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits
from composer.nn.ghost_batchnorm import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from composer.nn.ghost_batchnorm import ghost_batchnorm as to_ghost_batchnorm
from composer.surgery import count_module_instances, replace_module_classes
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["GhostBatchNorm", "apply_ghost_batchnorm"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_GHOSTS = (GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d)


def apply_ghost_batchnorm(
    model: ModuleT,
    ghost_batch_size: int = 32,
    optimizers: Optimizer | Sequence[Optimizer] | None = None,
) -> ModuleT:
    """Make the batch norms of a model normalize ghost batches, in place.

    In training, each batch is split into chunks of at most ``ghost_batch_size`` samples, and each chunk is normalized
    by its mean and variance; the running statistics are updated with all chunks. Evaluation and parameter names do not
    change.

    Use it if batches are so large that a model generalizes worse than with small ones. It does not speed up training.
    ``SyncBatchNorm``, which does the opposite, is unchanged, as are subclasses of batch norm with a custom forward
    pass.

    Args:
        model: The model.
        ghost_batch_size: Maximum number of samples in a ghost batch; 16, 32 and 64 are usual.
        optimizers: The model's optimizers. Parameters stay the same objects, so the optimizers do not change.

    Returns:
        The model itself.

    Raises:
        ValueError: ``ghost_batch_size`` is not positive.

    >>> apply_ghost_batchnorm(nn.Sequential(nn.BatchNorm1d(4)), ghost_batch_size=16)[0].ghost_batch_size
    16

    Paper: https://arxiv.org/abs/1705.08741 (Hoffer et al. 2017)
    """
    ghost_batch_size = whole_number("ghost_batch_size", ghost_batch_size, minimum=1)

    def ghost(module: _BatchNorm, module_index: int) -> nn.Module | None:
        if isinstance(module, _GHOSTS) or type(module).forward is not _BatchNorm.forward:
            return None
        return to_ghost_batchnorm(module, ghost_batch_size)

    classes = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if not replace_module_classes(model, dict.fromkeys(classes, ghost), optimizers):
        message = (
            "GhostBatchNorm has no effect: the model has no BatchNorm1d, BatchNorm2d or BatchNorm3d that has the "
            "standard forward pass and is not split into ghost batches already."
        )
        warnings.warn(message, NoEffectWarning, stacklevel=2)
    return model


class GhostBatchNorm(Algorithm):
    """Applies :func:`apply_ghost_batchnorm` at initialization.

    When to use it:
        If batches on one device are so large that a model with batch norm generalizes worse than with small ones.

    When not to:
        With usual batch sizes on one device (a few dozen samples), with norms that are independent of the batch, and
        if you need ``SyncBatchNorm``, which does the opposite.

    How to choose:
        ``ghost_batch_size`` 16, 32 or 64, a divisor of the batch size on a device.

    Cost:
        Not faster: the same arithmetic in more, smaller kernels.

    Args:
        ghost_batch_size: Maximum number of samples in a ghost batch. A batch, or microbatch, on one device that is
            not larger is normalized as one.

    Raises:
        ValueError: ``ghost_batch_size`` is not positive.

    >>> GhostBatchNorm()
    GhostBatchNorm(ghost_batch_size=32)

    Paper: https://arxiv.org/abs/1705.08741 (Hoffer et al. 2017)
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        sharding=Sharding.PER_RANK,
        sharding_reason="Ghost batches are chunks of the batch shard of a rank.",
        neutral={"ghost_batch_size": 10**9},
    )

    def __init__(self, ghost_batch_size: int = 32) -> None:
        self.ghost_batch_size = whole_number("ghost_batch_size", ghost_batch_size, minimum=1)

    @staticmethod
    def required_on_load() -> bool:
        """Return True: the parameters would load without it, but the model would compute something else."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Replace the layers and log their number."""
        apply_ghost_batchnorm(state.model, self.ghost_batch_size, state.optimizers)
        logger.log_hyperparameters({"GhostBatchNorm/num_new_modules": count_module_instances(state.model, _GHOSTS)})
