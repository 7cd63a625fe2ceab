"""The :class:`Run`: the state, the engine, the strategy and the progress of one trainer, shared by all loops."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch.nn import Module

from composer.core.engine import Engine
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.types import Batch
from composer.parallel.strategy import SingleProcess, Strategy
from composer.trainer.dynamic_dims import DynamicDims
from composer.trainer.owned_memory import OwnedMemory
from composer.trainer.signals import Interruption
from composer.trainer.step_sync import StepSync
from composer.trainer.uneven_data import UnevenInputs

if TYPE_CHECKING:
    from composer.parallel.float8_layers import Float8Settings
    from composer.trainer.auto_microbatch.retry import AutoMicrobatch
    from composer.trainer.microbatch_weights import Counts
    from composer.trainer.run_ledger import RunLedger
    from composer.trainer.run_summary import Summary

__all__ = ["LoopOptions", "Run"]


@dataclass(frozen=True)
class LoopOptions:
    """Options of the training loop.

    Attributes:
        weight_by_tokens: Whether to weight microbatches by the number of tokens that the loss averages over, rather
            than samples; None decides by the batch.
        step_schedulers_every_batch: Whether to step schedules after every batch rather than every epoch.
        create_graph: Whether gradients must be differentiable.
        overfit_batches: Number of batches that every epoch repeats, or 0 for all data.
        spin_dataloaders: Whether a resumed run continues at the batch where it stopped.

    >>> LoopOptions().step_schedulers_every_batch
    False
    """

    weight_by_tokens: bool | None = None
    step_schedulers_every_batch: bool = False
    create_graph: bool = False
    overfit_batches: int = 0
    spin_dataloaders: bool = True


@dataclass
class Run:
    """The state of a run with the components and options that the loops use.

    Attributes:
        state: The state.
        engine: Fires the events.
        logger: Receives the metrics.
        options: Options of the loops.
        autocast: Creates the autocast context of a forward pass, or None if none is needed.
        float8: How linear layers are converted to float8 (``amp_fp8``), or None if they are not.
        forward_and_loss: Forward and loss as one compiled function ``batch, detached -> (outputs, loss)``, if compiled.
        compiled: The modules that the trainer has compiled: module, what its call runs, and what it ran before.
        dynamic_dims: Marks the sizes that are dynamic in a compiled model.
        reuses_outputs: Whether each call of a compiled function overwrites the outputs of the previous call, as CUDA
            graphs do.
        owned_gradients: The memory of gradients that were cloned for that reason.
        strategy: The parallelism strategy, such as DDP or FSDP.
        step_sync: Per-step all-reduce of counts and losses, or None for a single process.
        uneven_inputs: Dummy batches for ranks whose data ends early, or None for a single process.
        unbound_schedules: Schedules that wait for optimizers, and their scale ratio.
        interruption: Records signals during training, or None if no checkpoints are saved.
        ledger: Records where the wall time of the run goes, or None without a trainer.
        summary: Collects results for the table at the end of training, or None if no table is shown.
        samples: Number of samples in the current batch of this rank.
        tokens: Number of tokens in the current batch of this rank.
        user_token_count: Result of ``get_num_tokens_in_batch`` before algorithms edited the batch: a number or a
            mapping.
        batch_counts: What the loss of the current batch averages over, if it could be counted when the batch was
            loaded; None in a single process.
        auto_microbatch: Finds the microbatch size, or None if it is fixed.
        microbatches_left: Number of microbatches of the current batch left to run on this rank; None before the loss
            weights are all-reduced.
        fetched: The batches of the current step as fetched, in a tuple that is empty before the first; None after the
            step is counted.
        is_fetching: Whether a batch is being fetched, so that an exception means that it failed to load.
        last_fit_failed: Whether an exception ended the last fit.
        gradients_ready: Whether the gradients of the current batch are complete, so that optimizers may have stepped.
        noted_data: The training data whose fingerprint was noted, as a weak reference; None before.
        check_start: Called once with the fingerprint when training starts, to compare it with that of another run.
        reported_model: The line that described the model when training started.

    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> logger = Logger(state)
    >>> run = Run(state, Engine(state, logger), logger)
    >>> run.samples, run.interruption
    (0, None)
    """

    state: State
    engine: Engine
    logger: Logger
    options: LoopOptions = field(default_factory=LoopOptions)
    autocast: Callable[[], AbstractContextManager[Any]] | None = None
    float8: Float8Settings | None = None
    forward_and_loss: Callable[[Batch, bool], tuple[Any, Any]] | None = None
    compiled: list[tuple[Module, Any, Any]] = field(default_factory=list[tuple[Module, Any, Any]])
    dynamic_dims: DynamicDims = field(default_factory=DynamicDims)
    reuses_outputs: bool = False
    owned_gradients: OwnedMemory = field(default_factory=OwnedMemory)
    strategy: Strategy = field(default_factory=SingleProcess)
    step_sync: StepSync | None = None
    uneven_inputs: UnevenInputs | None = None
    unbound_schedules: tuple[list[Any], float] | None = None
    interruption: Interruption | None = None
    ledger: RunLedger | None = None
    summary: Summary | None = None
    samples: int = 0
    tokens: int = 0
    user_token_count: Any = None
    batch_counts: Counts | None = None
    auto_microbatch: AutoMicrobatch | None = None
    microbatches_left: int | None = None
    fetched: tuple[Batch, ...] | None = None
    is_fetching: bool = False
    last_fit_failed: bool = False
    gradients_ready: bool = False
    noted_data: weakref.ref[Any] | None = None
    check_start: Callable[[Mapping[str, Any]], None] | None = None
    reported_model: str = ""
