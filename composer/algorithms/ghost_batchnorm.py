"""Ghost batch norm: normalise small parts of a batch on their own, so that a large batch regularises like a small one.

Paper: Train longer, generalize better, Hoffer et al. 2017, https://arxiv.org/abs/1705.08741
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from composer._text import positive
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
    """Let the batch norms of a model normalise ghost batches, in place.

    In training each batch is split into parts of at most ``ghost_batch_size`` samples, and each part is normalised by
    its own mean and variance; the running statistics follow all parts. Evaluation stays as it is, and so do the names
    of weights.

    Use it where batches are so large that a model generalises worse than with small ones. It makes nothing faster.
    Batch norms of several devices together (``SyncBatchNorm``) do the opposite and stay, as do classes derived from
    batch norm that compute something of their own.

    Args:
        model: The model.
        ghost_batch_size: Number of samples in a ghost batch, at most; 16, 32 and 64 are usual.
        optimizers: Those of the model. Weights stay the same objects, so these need no change.

    Returns:
        The model itself.

    Raises:
        ValueError: ``ghost_batch_size`` is not positive.

    >>> apply_ghost_batchnorm(nn.Sequential(nn.BatchNorm1d(4)), ghost_batch_size=16)[0].ghost_batch_size
    16

    Paper: https://arxiv.org/abs/1705.08741 (Hoffer et al. 2017)
    """
    positive("ghost_batch_size", ghost_batch_size)

    def ghost(module: _BatchNorm, module_index: int) -> nn.Module | None:
        if isinstance(module, _GHOSTS) or type(module).forward is not _BatchNorm.forward:
            return None
        return to_ghost_batchnorm(module, ghost_batch_size)

    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    if not replace_module_classes(model, dict.fromkeys(kinds, ghost), optimizers):
        message = (
            "GhostBatchNorm changes nothing: the model has no BatchNorm1d, BatchNorm2d or BatchNorm3d that computes "
            "what these do and is not split into ghost batches already."
        )
        warnings.warn(message, NoEffectWarning, stacklevel=2)
    return model


class GhostBatchNorm(Algorithm):
    """Applies :func:`apply_ghost_batchnorm` at the start.

    When to use it:
        Where batches on one device are so large that a model with batch norm generalises worse than with small ones.

    When not to:
        At batches of the usual size on one device (a few dozen samples), with norms that do not look across samples,
        and where ``SyncBatchNorm`` is wanted, which does the opposite.

    How to choose:
        ``ghost_batch_size`` 16, 32 or 64, a divisor of the batch size on a device.

    Cost:
        It makes nothing faster: the same arithmetic in more and smaller parts.

    Args:
        ghost_batch_size: Number of samples in a ghost batch, at most. A batch, or microbatch, on one device that is
            no larger is normalised as a whole.

    Raises:
        ValueError: ``ghost_batch_size`` is not positive.

    >>> GhostBatchNorm()
    GhostBatchNorm(ghost_batch_size=32)

    Paper: https://arxiv.org/abs/1705.08741 (Hoffer et al. 2017)
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        sharding=Sharding.PER_RANK,
        sharding_reason="Ghost batches are parts of what a process has of a batch.",
    )

    def __init__(self, ghost_batch_size: int = 32) -> None:
        self.ghost_batch_size = positive("ghost_batch_size", ghost_batch_size)

    @staticmethod
    def required_on_load() -> bool:
        """Yes: the weights fit without it, and the model would do something else."""
        return True

    def init(self, state: State, logger: Logger) -> None:
        """Replace the layers and log how many there are."""
        apply_ghost_batchnorm(state.model, self.ghost_batch_size, state.optimizers)
        logger.log_hyperparameters({"GhostBatchNorm/num_new_modules": count_module_instances(state.model, _GHOSTS)})
