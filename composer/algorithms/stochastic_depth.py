"""Stochastic depth: randomly skip residual blocks in training.

    y = activation(shortcut(x) + b * branch(x))          b ~ Bernoulli(1 - p) in training, 1 - p in evaluation

Paper: Deep Networks with Stochastic Depth, Huang et al. 2016, https://arxiv.org/abs/1603.09382
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from composer._numbers import in_unit_interval
from composer._text import did_you_mean, one_of
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.event import Event
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.traits import Traits
from composer.nn.stochastic_depth import StochasticBlock, decide_blocks, make_stochastic, register_residual_block
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["StochasticDepth", "apply_stochastic_depth", "decide_blocks", "register_residual_block"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)

_METHODS = ("block", "sample")
_DISTRIBUTIONS = ("linear", "uniform")
_OLD_NAMES = {"ResNetBottleneck": "Bottleneck"}


def apply_stochastic_depth(
    model: ModuleT,
    target_layer_name: str | type[nn.Module],
    stochastic_method: str = "block",
    drop_rate: float = 0.2,
    drop_distribution: str = "linear",
) -> ModuleT:
    """Make the residual blocks of a model stochastic, so that training skips them at random, in place.

        y = activation(shortcut(x) + b * branch(x))          b ~ Bernoulli(1 - p) in training, 1 - p in evaluation

    The model relies less on single blocks, so that deep residual networks and transformers generalize better. Skipping
    blocks for the entire batch also saves their time; compiled models save nothing, and neither does skipping per
    sample. Parameters of a skipped block get no gradient, so that the optimizer skips them (compiled, a zero gradient).
    Do not use it on shallow models or in short runs.

    The blocks stay the same objects with the same parameter names. Supported are the residual blocks of torchvision's
    and timm's ResNets and of their transformers, and those registered with :func:`.register_residual_block`.

    Args:
        model: The model.
        target_layer_name: The class of the blocks, or its name, such as ``"Bottleneck"`` or ``"BasicBlock"``. The old
            name ``"ResNetBottleneck"`` is an alias of the first.
        stochastic_method: ``"block"`` skips a block for the entire batch, ``"sample"`` for each sample independently.
        drop_rate: Probability p of the last block, from 0 (off) to 1.
        drop_distribution: ``"uniform"`` gives all blocks that probability, ``"linear"`` gives the i-th of n blocks
            i / n of it, since early blocks matter more.

    Returns:
        The model itself.

    Raises:
        ValueError: An argument is out of range, or the blocks are of an unsupported class.

    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.body = nn.Linear(8, 8)
    ...
    ...     def forward(self, x):
    ...         return x + self.body(x)
    >>> register_residual_block(Block)
    >>> model = apply_stochastic_depth(nn.Sequential(Block(), Block()), Block, drop_rate=0.2)
    >>> [block.block_drop_rate for block in model]
    [0.1, 0.2]

    Paper: https://arxiv.org/abs/1603.09382 (Huang et al. 2016)
    """
    _check(stochastic_method, drop_rate, drop_distribution)
    blocks = _targets(model, target_layer_name)
    if not blocks or drop_rate == 0:
        warnings.warn(_no_effect_reason(model, target_layer_name, drop_rate), NoEffectWarning, stacklevel=2)
        return model
    for index, block in enumerate(blocks, start=1):
        scale = index / len(blocks) if drop_distribution == "linear" else 1.0
        make_stochastic(block, stochastic_method, drop_rate * scale)
    return model


class StochasticDepth(Algorithm):
    """Applies :func:`apply_stochastic_depth` at initialization, with optional warm-up of the probabilities.

    All ranks skip the same blocks, so that none waits for another; each rank skips samples independently. Logs
    ``stochastic_depth/num_stochastic_layers``, and in a warm-up the probability of the last block as
    ``stochastic_depth/drop_rate``.

    When to use it:
        For deep residual networks and transformers in long runs.

    When not to:
        For shallow models and in short runs. It saves no time in compiled models.

    How to choose:
        ``drop_rate`` 0.1 for ResNet-50, 0.2 and more for deeper networks; ``"linear"`` skips the early blocks, which
        matter more, less often. ``"block"`` saves time, ``"sample"`` varies within a batch.

    Cost:
        ``"block"`` saves the time of skipped blocks, half of ``drop_rate`` of them with ``"linear"``;
        ``"sample"`` saves nothing and costs a product over each block's output.

    Args:
        target_layer_name: The class of the blocks, or its name.
        stochastic_method: ``"block"`` skips a block for the entire batch, ``"sample"`` for each sample independently.
        drop_rate: Probability of the last block, from 0 (off) to 1.
        drop_distribution: ``"linear"`` or ``"uniform"``, see :func:`apply_stochastic_depth`.
        drop_warmup: Time over which probabilities increase linearly from 0: a fraction of the run, or a time.

    Raises:
        ValueError: An argument is out of range.

    >>> StochasticDepth("Bottleneck", drop_rate=0.1).find_unused_parameters
    True

    Paper: https://arxiv.org/abs/1603.09382 (Huang et al. 2016)
    """

    __traits__ = Traits(
        slot=Slot.SURGERY,
        conflicts_with={
            "SAM": "the two forward passes of a step would skip different blocks. Use stochastic_method='sample'.",
        },
        sharding=Sharding.SAFE,
        sharding_reason="All ranks skip the same blocks; each samples which samples to skip.",
        neutral={"drop_rate": 0.0},
    )

    def __init__(
        self,
        target_layer_name: str | type[nn.Module],
        stochastic_method: str = "block",
        drop_rate: float = 0.2,
        drop_distribution: str = "linear",
        drop_warmup: float | Time | str = 0.0,
    ) -> None:
        _check(stochastic_method, drop_rate, drop_distribution)
        self.target_layer_name = target_layer_name
        self.stochastic_method = stochastic_method
        self.drop_rate = drop_rate
        self.drop_distribution = drop_distribution
        self.drop_warmup = ensure_time(drop_warmup, TimeUnit.DURATION, "drop_warmup")
        if self.drop_warmup.unit is TimeUnit.DURATION:
            in_unit_interval("drop_warmup", self.drop_warmup.value)
        self.find_unused_parameters = stochastic_method == "block"
        if stochastic_method == "sample":
            self.__traits__ = replace(self.__traits__, conflicts_with={}, sharding=Sharding.PER_RANK)
        self._generator: torch.Generator | None = None
        self._target_rates: dict[StochasticBlock, float] = {}
        self._progress = 1.0

    @staticmethod
    def required_on_load() -> bool:
        """Return True: the parameters would load without it, but the model would compute something else."""
        return True

    def __listens__(self, event: Event) -> bool:
        """Unsubscribe from events without work to do."""
        if event in (Event.AFTER_LOAD, Event.BATCH_START) and self.drop_warmup.value == 0:
            return False
        return super().__listens__(event) and (event is not Event.BEFORE_FORWARD or self.stochastic_method == "block")

    def state_dict(self) -> dict[str, Any]:
        """Return the random state that determines which blocks are skipped."""
        return {
            **super().state_dict(),
            "generator": None if self._generator is None else self._generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the random state.

        Args:
            state: A result of :meth:`state_dict`.
        """
        if state["generator"] is not None:
            self._generator = torch.Generator()
            self._generator.set_state(state["generator"].cpu())

    def init(self, state: State, logger: Logger) -> None:
        """Make the blocks stochastic and log their number."""
        before = {module for module in state.model.modules() if isinstance(module, StochasticBlock)}
        apply_stochastic_depth(
            state.model, self.target_layer_name, self.stochastic_method, self.drop_rate, self.drop_distribution
        )
        blocks = [module for module in state.model.modules() if isinstance(module, StochasticBlock)]
        self._target_rates = {block: block.block_drop_rate for block in blocks if block not in before}
        if self._generator is None:
            # The same seed on all ranks; the random state of the model and the data is not touched.
            self._generator = torch.Generator().manual_seed(state.rank_zero_seed)
        logger.log_metrics({"stochastic_depth/num_stochastic_layers": len(self._target_rates)})

    def after_load(self, state: State, logger: Logger) -> None:
        """Set the probabilities of the time at which training resumes."""
        self._warm_up(state)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Increase the probabilities in the warm-up."""
        if self._progress < 1:
            self._warm_up(state)
            logger.log_metrics({"stochastic_depth/drop_rate": self.drop_rate * self._progress})

    def before_forward(self, state: State, logger: Logger) -> None:
        """Select which blocks run."""
        if self._target_rates:
            decide_blocks(state.model, self._generator)

    def _warm_up(self, state: State) -> None:
        """Set the probabilities; at the end of the warm-up, to their final values."""
        self._progress = self._warmed(state)
        for block, rate in self._target_rates.items():
            block.block_drop_rate = rate * self._progress

    def _warmed(self, state: State) -> float:
        """Return the completed fraction of the warm-up."""
        return min(state.progress(self.drop_warmup.unit) / self.drop_warmup.value, 1.0)


def _check(stochastic_method: str, drop_rate: float, drop_distribution: str) -> None:
    one_of("stochastic_method", stochastic_method, _METHODS)
    in_unit_interval("drop_rate", drop_rate)
    one_of("drop_distribution", drop_distribution, _DISTRIBUTIONS)


def _names(module: nn.Module) -> list[str]:
    return [cls.__name__ for cls in type(module).__mro__ if issubclass(cls, nn.Module) and cls is not nn.Module]


def _targets(model: nn.Module, target: str | type[nn.Module]) -> list[nn.Module]:
    """Return the blocks of a class, in model order, except those that are already stochastic."""
    if isinstance(target, str):
        name = _OLD_NAMES.get(target, target)
        found = [module for module in model.modules() if name in _names(module)]
    else:
        found = [module for module in model.modules() if isinstance(module, target)]
    return [module for module in found if not isinstance(module, StochasticBlock)]


def _no_effect_reason(model: nn.Module, target: str | type[nn.Module], drop_rate: float) -> str:
    if drop_rate == 0:
        return "StochasticDepth has no effect: drop_rate is 0."
    if not isinstance(target, str):
        return f"StochasticDepth has no effect: the model has no {target.__name__} that is not stochastic already."
    name = _OLD_NAMES.get(target, target)
    hint = did_you_mean(name, {name for module in model.modules() for name in _names(module)} - {name})
    return f"StochasticDepth has no effect: the model has no {name} that is not stochastic already.{hint}"
