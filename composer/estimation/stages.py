"""The callback that tells the log of allocations which stage of the training runs, and what the memory holds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.handler_owner import Handler, owned, owner_of
from composer.core.logger import Logger
from composer.core.state import State
from composer.core.timestamp import Timestamp
from composer.memory.allocations import AllocationLog
from composer.trees import leaves
from composer.trials.probe import Finished

__all__ = ["Stages"]

# Attributes of optimizers whose tensors have a role.
_NOTED = frozenset({"state", "param_groups", "defaults"})
# Batches of an evaluation; the second is there while the first is released.
_EVALUATED = 2


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
        self.batch_size = 0
        self._names: dict[nn.Module, str] = {}
        self._hooks = ExitStack()
        self._done = 0

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Wrap the handlers of algorithms and other callbacks, whose names tell what they allocate."""
        del event
        return tuple(handler if owner_of(handler) in (None, self) else self._named(handler) for handler in handlers)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Begin to note what the memory holds."""
        del logger
        self._note_model(state)
        for evaluator in state.evaluators:
            given = evaluator.subset_num_batches
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
        self.batch_size = max(self.batch_size, int(count(state.batch)))
        for leaf in leaves(state.batch):
            if isinstance(leaf, torch.Tensor):
                self.log.add(leaf, "batch")

    def batch_start(self, state: State, logger: Logger) -> None:
        """Begin a step."""
        del state, logger
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
        self._begin("evaluation")

    def eval_end(self, state: State, logger: Logger) -> None:
        """End it."""
        self._begin("")

    def eval_after_all(self, state: State, logger: Logger) -> None:
        """End the training after the evaluation."""
        del state, logger
        if self._done >= self.steps:
            self._finish()

    def batch_end(self, state: State, logger: Logger) -> None:
        """End the training after a last evaluation, or set the time for the last step."""
        del logger
        self._note_owners(state)
        self._note_model(state)
        self._done += 1
        if self._done >= self.steps and not state.evaluators:
            self._finish()
        if self._done == self.steps - 1:
            state.timestamp = _last_batch(state)

    def _evaluates(self, state: State, event: Event) -> bool:
        """Return whether to evaluate: after the last step."""
        del state
        return event is Event.FIT_END or (event is Event.BATCH_END and self._done >= self.steps)

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
        for each in optimizer.state.values():
            for leaf in leaves(each):
                if isinstance(leaf, torch.Tensor):
                    self.log.add(leaf, "optimizer state")
        self._begin("")


def _last_batch(state: State) -> Timestamp:
    """Return the time right before the last batch of the run; the present time if it is not known."""
    now, end, length = state.timestamp, state.max_duration, state.dataloader_len
    if end is None:
        return now
    samples = now.sample.value / max(now.batch.value, 1)
    tokens = now.token.value / max(now.batch.value, 1)
    per_epoch = None if length is None else length.value
    # Batches that the run trains, by the unit of its duration.
    batches: dict[str, Callable[[], float]] = {
        "BATCH": lambda: end.value,
        "SAMPLE": lambda: end.value / samples,
        "TOKEN": lambda: end.value / tokens if tokens else 0,
        "EPOCH": lambda: end.value * (per_epoch or 0),
    }
    count = batches.get(end.unit.name)
    last = 0 if count is None else int(count()) - 1
    if last <= now.batch.value:
        return now
    epoch = int(now.epoch.value if per_epoch is None else last // per_epoch)
    return now.copy(epoch=epoch, batch=last, sample=int(last * samples), token=int(last * tokens))
