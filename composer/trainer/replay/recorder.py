"""Read a step while it runs: batch, outputs, losses, gradients, learning rates."""

from __future__ import annotations

import linecache
import math
import pdb
import sys
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from composer import dist, trees
from composer.callbacks.lr_monitor import learning_rates
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.sample_indices import sample_indices
from composer.core.state import State
from composer.core.time import TimeUnit
from composer.dist.dtensor import norms
from composer.trainer.microbatch import named_losses
from composer.trainer.replay.loss_calls import LossCalls, SampleLosses
from composer.trainer.replay.record import Microbatch, ReplayedStep
from composer.trainer.run import Run

if TYPE_CHECKING:
    from composer.trainer.trainer import Trainer

__all__ = ["StepRecorder", "StepReplayed", "open_prompt"]


class StepReplayed(BaseException):
    """Ends training after the step; not an Exception, which programs catch.

    >>> issubclass(StepReplayed, Exception)
    False
    """


class StepRecorder(Callback):
    """Records one step, and ends training after it. It listens only to events that do not change how a step runs.

    Args:
        trainer: The trainer, for the prompt.
        run: Its run.
        step: Number of batches trained before the step.
        start: Where the replay started.
        prompt: Whether to stop in a Python prompt before the step.

    >>> StepRecorder(None, None, step=3, start="seed 17").record is None
    True
    """

    def __init__(self, trainer: Trainer, run: Run, step: int, start: str, *, prompt: bool = False) -> None:
        self._trainer, self._run, self._step, self._start, self._prompt = trainer, run, step, start, prompt
        self._is_step, self._losses = False, LossCalls(run)
        self._microbatches: list[Microbatch] = []
        self._values: dict[str, Any] = {}
        self._unknown: dict[str, str] = {}
        self.record: ReplayedStep | None = None

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Copy the batch."""
        self._is_step = state.timestamp.count(TimeUnit.BATCH) == self._step
        if self._is_step:
            # Methods may edit the batch in place.
            self._values = {"batch": _copied(state.batch), "timestamp": state.timestamp}

    def batch_start(self, state: State, logger: Logger) -> None:
        """Open the prompt."""
        if self._is_step and self._prompt:
            open_prompt(self._trainer, state, state.batch, self._step)

    def before_train_batch(self, state: State, logger: Logger) -> None:
        """Begin the list of microbatches."""
        self._microbatches = []  # an optimizer with a closure, or a retry after out of memory, begins again
        if self._is_step:
            self._losses.begin()

    def after_backward(self, state: State, logger: Logger) -> None:
        """Copy the microbatch."""
        if self._is_step:
            loss = float(named_losses(state.loss)[1]["loss/train/total"])
            self._microbatches.append(Microbatch(_copied(state.batch), _copied(state.outputs), loss))
            self._losses.add_microbatch(self._microbatches[-1].outputs, self._microbatches[-1].batch, loss)

    def after_train_batch(self, state: State, logger: Logger) -> None:
        """Compute the norms of the gradients."""
        if not self._is_step:
            return
        self._losses.end()
        rates = learning_rates(state.optimizers)
        self._values["learning_rates"] = {name: float(rate) for name, rate in rates.items()}
        if self._run.strategy.has_own_optimizer_step:
            self._unknown["gradient_norms"] = f"{self._run.strategy.name} keeps the gradients to itself"
            return
        gradients = {name: p.grad for name, p in state.model.named_parameters() if p.grad is not None}
        found = {name: float(norm) for name, norm in zip(gradients, norms(list(gradients.values())), strict=True)}
        self._values |= {"gradient_norms": found, "module_norms": _by_module(found)}

    def batch_end(self, state: State, logger: Logger) -> None:
        """Make the record."""
        if not self._is_step:
            return
        indices = sample_indices(state.train_phase, iterates_custom=True)
        # The dummy batch of a rank without data has no samples.
        is_idle = self._run.uneven_inputs is not None and self._run.uneven_inputs.is_idle
        losses = SampleLosses([]) if is_idle else self._losses.sample_losses()
        self._unknown |= {
            name: reason
            for name, reason in (("sample_indices", indices.reason), ("sample_losses", losses.reason))
            if reason
        }
        self.record = ReplayedStep(
            step=self._step,
            start=self._start,
            rank=dist.get_global_rank(),
            sample_indices=indices.indices,
            microbatches=tuple(self._microbatches),
            losses={name: float(loss) for name, loss in state.total_loss_dict.items()},
            sample_losses=losses.losses,
            unknown=self._unknown,
            **self._values,
        )
        raise StepReplayed


def open_prompt(trainer: Trainer, state: State, batch: Any, step: int) -> None:
    """Stop in the Python debugger; ``c`` continues, ``s`` steps into the code that follows, and ``q`` ends.

    Args:
        trainer: The trainer.
        state: Its state, right before the step.
        batch: The batch, on the device.
        step: Number of batches trained before.

    Raises:
        BdbQuit: The user quits.
    """
    # Code of its own, so that the prompt shows these names and nothing of the library.
    name, lines = f"<before step {step}>", ["stop()\n", "'here: batch, state, trainer, step'  # c: continue, q: quit\n"]
    linecache.cache[name] = sum(map(len, lines)), None, lines, name
    names = {"trainer": trainer, "state": state, "batch": batch, "step": step}
    exec(compile("".join(lines), name, "exec"), {"stop": _stop, **names})


def _stop() -> None:
    pdb.Pdb(nosigint=True).set_trace(sys._getframe(1))


def _copied(tree: Any) -> Any:
    return trees.map_tensors(lambda tensor: tensor.detach().clone(), tree)


def _by_module(by_parameter: Mapping[str, float]) -> dict[str, float]:
    """Return the norm over the parameters of each module, parents included; "" is the model."""
    squares: defaultdict[str, list[float]] = defaultdict(list)
    for name, norm in by_parameter.items():
        path = name
        while path:
            path = path.rpartition(".")[0]
            squares[path].append(norm * norm)
    return {path: math.sqrt(math.fsum(found)) for path, found in squares.items()}
