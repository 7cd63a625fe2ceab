"""The callback that tells the log of allocations which stage of the training runs, and what the memory holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.handler_owner import Handler, owned, owner_of
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.timestamp import Timestamp
from composer.estimation.growth import Growth, extend_history, extend_states, kept_by_each_batch
from composer.memory.allocations import AllocationLog
from composer.trees import leaves
from composer.trials.probe import Finished

__all__ = ["Stages"]

# Attributes of optimizers whose tensors have a role.
_NOTED = frozenset({"state", "param_groups", "defaults"})
# Batches of an evaluation; the second is there while the first is released, and the third tells what each one keeps.
_EVALUATED = 3
# Further steps for short batches, such as the last ones of epochs of two batches.
_MOST_REPEATED = 2


class Stages(Callback):
    """Notes the stage of the training and the module of each allocation, and ends the training.

    The first steps are those of the beginning of the run. For the last one, the time of the run is set to that of its
    last batch, so that methods such as progressive resizing need the memory that they need at the end.

    After the last step, each evaluator runs two batches. While an algorithm or another callback acts, its name is the
    stage.

    Args:
        log: Gets the stages, modules and roles.
        steps: Number of steps, at least 2.
        eval_microbatch: Number of samples in a microbatch of evaluators; None leaves it.
        on_step: Is called when a step begins.

    Attributes:
        batch_size: Number of samples in the largest batch.
        ends: Number of events of the log at the beginning of the first step, and at the end of each.
        eval_ends: The same of the batches of each evaluator, by its label.
        num_batches: Number of steps of the run; 0 if it is not known.
        eval_batches: Number of batches of each evaluator by its label, 0 if it is not known.
        buffers: Bytes of the model's buffers at the end of each step.
        sample_bytes: Bytes of a sample in the batches of the steps at the beginning of the run, on average of a batch.

    >>> Stages(AllocationLog(), steps=3).steps
    3
    """

    def __init__(
        self,
        log: AllocationLog,
        steps: int,
        eval_microbatch: int | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self.log, self.steps = log, steps
        self._eval_microbatch, self._on_step = eval_microbatch, on_step
        self.batch_size = self.num_batches = 0
        self.ends: list[int] = []
        self.eval_ends: dict[str, list[int]] = {}
        self.eval_batches: dict[str, int] = {}
        self.buffers: list[int] = []
        self.sample_bytes: list[float] = []
        self._names: dict[nn.Module, str] = {}
        self._hooks = ExitStack()
        self._done = self._samples = self._repeated = 0

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Wrap the handlers of algorithms and other callbacks, whose names tell what they allocate."""
        del event
        return tuple(handler if owner_of(handler) in (None, self) else self._named(handler) for handler in handlers)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begin to note what the memory holds."""
        del logger
        # fit may be called again.
        self._done = self._repeated = 0
        self.ends, self.eval_ends, self.buffers, self.sample_bytes = [], {}, [], []
        self._note_model(state)
        for metrics in (state.train_metrics, *state.eval_metrics.values()):
            for leaf in leaves([vars(metric) for metric in (metrics or {}).values()]):
                if isinstance(leaf, torch.Tensor):
                    self.log.add(leaf, "metrics")
        for evaluator in state.evaluators:
            given = evaluator.subset_num_batches
            self.eval_batches[evaluator.label] = _num_eval_batches(evaluator.dataloader.dataloader, given)
            evaluator.subset_num_batches = _EVALUATED if given is None or given < 0 else min(given, _EVALUATED)
            evaluator.eval_interval = self._evaluates
            if self._eval_microbatch is not None:
                evaluator.microbatch_size, evaluator.auto_microbatching = self._eval_microbatch, False
        for register, hook in (
            (register_module_forward_pre_hook, self._enter),
            (register_optimizer_step_pre_hook, self._before_step),
            (register_optimizer_step_post_hook, self._after_step),
        ):
            self._hooks.callback(register(hook).remove)  # type: ignore[operator]
        self._hooks.callback(register_module_forward_hook(self._leave, always_call=True).remove)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Note the memory of the batch."""
        del logger
        count = state.train_phase.loader.get_num_samples_in_batch
        self._samples = int(count(state.batch))
        self.batch_size = max(self.batch_size, self._samples)
        tensors = [leaf for leaf in leaves(state.batch) if isinstance(leaf, torch.Tensor)]
        for tensor in tensors:
            self.log.add(tensor, "batch")
        if self._done < self.steps - 1:  # at the end of the run, methods may change the size
            self.sample_bytes.append(sum(tensor.nbytes for tensor in tensors) / max(self._samples, 1))

    def batch_start(self, state: State, logger: Logger) -> None:
        """Begin a step."""
        del logger
        if not self.ends:
            self.ends.append(len(self.log.events))
            self.num_batches = _num_batches(state)
        if self._on_step is not None:
            self._on_step()

    def before_forward(self, state: State, logger: Logger) -> None:
        """Begin the forward pass."""
        self._begin("forward")

    def after_forward(self, state: State, logger: Logger) -> None:
        """End it."""
        self._begin("")

    def before_loss(self, state: State, logger: Logger) -> None:
        """Begin the loss."""
        self._begin("loss")

    def after_loss(self, state: State, logger: Logger) -> None:
        """End it."""
        self._begin("")

    def before_backward(self, state: State, logger: Logger) -> None:
        """Begin the backward pass."""
        self._begin("backward")

    def after_backward(self, state: State, logger: Logger) -> None:
        """End it."""
        self._begin("")
        self.log.backward = ""

    def eval_start(self, state: State, logger: Logger) -> None:
        """Begin an evaluation."""
        del logger
        self._begin("evaluation")
        self.eval_ends[str(state.dataloader_label)] = [len(self.log.events)]

    def eval_batch_end(self, state: State, logger: Logger) -> None:
        """Let metrics keep what they keep at the end of the evaluation."""
        del logger
        label = str(state.dataloader_label)
        metrics, ends = state.eval_metrics[label], self.eval_ends[label]
        for metric in metrics.values():
            self.log.add_roles(leaves(vars(metric)), "metrics")
        ends.append(len(self.log.events))
        remaining = self.eval_batches[label] - _EVALUATED
        parameter = next(state.model.parameters(), None)
        if len(ends) > _EVALUATED and remaining > 0 and parameter is not None:
            extend_states(metrics, _EVALUATED, remaining, parameter.detach())
            for metric in metrics.values():
                self.log.add_roles(leaves(vars(metric)), "metrics")

    def eval_end(self, state: State, logger: Logger) -> None:
        """End it."""
        self._begin("")

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """End the training after the evaluation."""
        del state, logger
        if self._is_done:
            self._finish()

    def batch_end(self, state: State, logger: Logger) -> None:
        """End the training after a last evaluation, or set the time for the last step."""
        del logger
        self._note_owners(state)
        self._note_model(state)
        self._done += 1
        if 1 < self._done < self.steps + self._repeated and self._samples < self.batch_size:
            # The optimizer has its state from the second step on: one of them needs a full batch.
            self._repeated = min(self._repeated + 1, _MOST_REPEATED)
        self.ends.append(len(self.log.events))
        self.buffers.append(sum(buffer.nbytes for buffer in state.model.buffers()))
        if self._is_done and not state.evaluators:
            self._finish()
        self.num_batches = _num_batches(state)
        if self._done == self.steps + self._repeated - 1:
            state.timestamp = _last_batch(state)

    @property
    def _is_done(self) -> bool:
        return self._done >= self.steps + self._repeated

    def growth(self) -> Growth:
        """Return what each step and each batch of an evaluation keeps."""
        steps: dict[str, int] = {}
        if len(self.ends) > _EVALUATED:
            steps = kept_by_each_batch(self.log, self.ends)
        more = {later - earlier for earlier, later in itertools.pairwise(self.buffers)}
        if len(more) == 1 and max(more) > 0:
            steps["buffers"] = 2 * more.pop()  # the old one is there while the new one is made
        evaluations = [
            (ends[0], ends[-1], kept_by_each_batch(self.log, ends), max(self.eval_batches[label] - _EVALUATED, 0))
            for label, ends in self.eval_ends.items()
            if len(ends) > _EVALUATED
        ]
        return Growth(steps, max(self.num_batches - self._done, 0), evaluations)

    def _evaluates(self, state: State, event: Event) -> bool:
        """Return whether to evaluate: after the last step."""
        del state
        return event is Event.FIT_END or (event is Event.BATCH_END and self._is_done)

    def _finish(self) -> None:
        self._hooks.close()
        raise Finished

    def _named(self, handler: Handler) -> Handler:
        """Wrap a handler so that the stage is the name of its algorithm or callback."""
        owner = owner_of(handler)

        def named(state: State, logger: Logger) -> object:
            outer, self.log.stage = self.log.stage, type(owner).__name__
            try:
                return handler(state, logger)
            finally:
                self.log.stage = outer

        return owned(named, owner)

    def _begin(self, stage: str) -> None:
        self.log.stage = stage

    def _note_owners(self, state: State) -> None:
        """Note what algorithms keep, and custom optimizers beside their state."""
        for one in (*state.algorithms, *state.optimizers):
            kept = {name: value for name, value in vars(one).items() if name not in _NOTED}
            for leaf in leaves(kept):
                if isinstance(leaf, torch.Tensor):
                    self.log.keep(leaf, type(one).__name__)

    def _note_model(self, state: State) -> None:
        """Note the parameters and buffers, which methods and sharding can replace."""
        self._names = {module: name for name, module in state.model.named_modules()}
        for parameter in state.model.parameters():
            self.log.add(parameter, "parameters")
        for buffer in state.model.buffers():
            self.log.add(buffer, "buffers")

    def _enter(self, module: nn.Module, args: Any) -> None:
        del args
        self.log.modules.append(self._names.get(module, ""))

    def _leave(self, module: nn.Module, args: Any, outputs: Any) -> None:
        del args
        if self.log.modules:
            self.log.modules.pop()
        name = self._names.get(module, "")
        for leaf in leaves(outputs):
            node = leaf.grad_fn if isinstance(leaf, torch.Tensor) else None
            # A module that returns what another one has returned is not the one whose gradients are computed.
            if node is None:
                continue
            metadata = cast("dict[str, str]", node.metadata)
            if metadata.setdefault("composer.module", name) is name:
                node.register_prehook(lambda gradients: self._reach(name))

    def _reach(self, name: str) -> None:
        self.log.backward = name

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        self._begin("optimizer")
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.log.add(parameter.grad, "gradients")

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if isinstance(optimizer, LBFGS) and self._done == 0:
            extend_history(optimizer, self.num_batches or self.steps)
        for each in optimizer.state.values():
            for leaf in leaves(each):
                if isinstance(leaf, torch.Tensor):
                    self.log.add(leaf, "optimizer state")
        self._begin("")


def _num_eval_batches(loader: Any, subset: int | None) -> int:
    """Return the number of batches of an evaluation; 0 if it is not known."""
    try:
        length = len(loader)
    except (TypeError, NotImplementedError, AttributeError):
        length = 0
    if subset is None or subset < 0:
        return length
    return min(subset, length) if length else subset


def _num_batches(state: State) -> int:
    """Return the number of batches of the run; 0 if it is not known."""
    now, end, length = state.timestamp, state.max_duration, state.dataloader_len
    if end is None:
        return 0
    samples = now.sample.value / max(now.batch.value, 1)
    tokens = now.token.value / max(now.batch.value, 1)
    per_epoch = None if length is None else length.value
    # Batches that the run trains, by the unit of its duration.
    batches: dict[str, Callable[[], float]] = {
        "BATCH": lambda: end.value,
        "SAMPLE": lambda: end.value / samples if samples else 0,
        "TOKEN": lambda: end.value / tokens if tokens else 0,
        "EPOCH": lambda: end.value * (per_epoch or 0),
    }
    count = batches.get(end.unit.name)
    return 0 if count is None else int(count())


def _last_batch(state: State) -> Timestamp:
    """Return the time right before the last batch of the run; the present time if it is not known."""
    now, length = state.timestamp, state.dataloader_len
    last = _num_batches(state) - 1
    if last <= now.batch.value:
        return now
    samples = now.sample.value / max(now.batch.value, 1)
    tokens = now.token.value / max(now.batch.value, 1)
    epoch = int(now.epoch.value if length is None else last // length.value)
    return now.copy(epoch=epoch, batch=last, sample=int(last * samples), token=int(last * tokens))
