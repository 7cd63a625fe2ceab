"""What the loops work on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from composer.checkpoint.load import ResumeInfo
from composer.core.engine import Engine
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.types import Batch
from composer.parallel.strategy import SingleProcess, Strategy
from composer.trainer.options import LoopOptions
from composer.trainer.owned_memory import OwnedMemory
from composer.trainer.signals import Interruption
from composer.trainer.step_sync import StepSync
from composer.trainer.uneven_data import UnevenInputs

if TYPE_CHECKING:
    from composer.trainer.auto_microbatch.evaluation import AutoEvaluation
    from composer.trainer.auto_microbatch.retry import AutoMicrobatch
    from composer.trainer.run_summary import Summary

__all__ = ["Run"]


@dataclass
class Run:
    """A state, what acts on it, and how the loops are to go.

    Attributes:
        state: The state.
        engine: Fires the events.
        logger: Takes metrics.
        options: How the loops go.
        autocast: Makes the context of a forward pass, or is None where none is needed.
        forward_and_loss: Both as one compiled function ``batch, detached -> (outputs, loss)``, if compiled.
        reuses_outputs: Whether each run of a compiled function writes over what the one before returned, as CUDA
            graphs do.
        own_gradients: The memory of gradients that were copied for that reason.
        strategy: How several processes train together, or one alone.
        step_sync: What they tell each other in every step, or None for one process.
        uneven_inputs: Keeps them together where their data ends at different places, or None for one process.
        unbound_schedules: Schedules that wait for optimizers, and the ratio that scales them.
        loaded: What a checkpoint says that matters when training begins.
        interruption: Notes signals while training, or None where nobody is to save a checkpoint then.
        summary: Collects what is told at the end of the training, or None where nothing is.
        samples: Number of samples of the batch in work, of this process.
        tokens: Number of tokens of the batch in work, of this process.
        counted: What counted them has said, before methods edited the batch: a number, or a mapping.
        auto: Finds the size of microbatches, or None where it is given.
        auto_evaluations: Find those of evaluators by label, where they are not given.
        microbatches_left: How many of the batch in work are not done, of this process; None before that is known, and
            before the processes have told each other what they average over.
        fetched: The batch in work as it was fetched, in a tuple that is empty before that; None where the last one is
            counted.
        failed: Whether an exception ended the last fit.
        metrics_logged_at: Number of batches trained when metrics of the training data were last logged in this epoch.
        steps: Whether the gradients of the batch in work are complete, so that the optimizers may have begun to step.
        reported_model: The line that told of the model when training began.

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
    forward_and_loss: Callable[[Batch, bool], tuple[Any, Any]] | None = None
    reuses_outputs: bool = False
    own_gradients: OwnedMemory = field(default_factory=OwnedMemory)
    strategy: Strategy = field(default_factory=SingleProcess)
    step_sync: StepSync | None = None
    uneven_inputs: UnevenInputs | None = None
    unbound_schedules: tuple[list[Any], float] | None = None
    loaded: ResumeInfo | None = None
    interruption: Interruption | None = None
    summary: Summary | None = None
    samples: int = 0
    tokens: int = 0
    counted: Any = None
    auto: AutoMicrobatch | None = None
    auto_evaluations: dict[str, AutoEvaluation] = field(default_factory=dict[str, "AutoEvaluation"])
    microbatches_left: int | None = None
    fetched: tuple[Batch, ...] | None = None
    failed: bool = False
    metrics_logged_at: int | None = None
    steps: bool = False
    reported_model: str = ""
