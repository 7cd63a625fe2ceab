"""The callback of ``composer verify``: digests of every stage of a training step, before others can change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from composer import dist
from composer.checkpoint.save import save_checkpoint
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.handler_owner import Handler, owned, owner_of
from composer.core.logger import Logger
from composer.core.sample_indices import sample_indices
from composer.core.state import State
from composer.dist.dtensor import full_tensor
from composer.dist.tensor_digest import tensor_digest
from composer.trainer.microbatch import named_losses
from composer.trials.probe import Finished
from composer.verification import _checkpoints, _data_facts, _run_facts
from composer.verification._sampling import Sampling, sampled_alike, share_batch
from composer.verification.code_facts import suspects
from composer.verification.compiled_modules import CompiledModules
from composer.verification.digests import digest, rng_digest, row_digest
from composer.verification.exact_mode import Neutral, as_float64
from composer.verification.module_watch import ModuleWatch
from composer.verification.snapshot import Snapshot, differences, snapshot

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["Watch"]

# Events at which the watch acts, and acts before all others.
_FIRST = {
    Event.AFTER_DATALOADER: "_samples",
    Event.BATCH_START: "_start",
    Event.BEFORE_FORWARD: "_batch",
    Event.AFTER_LOSS: "_loss",
    Event.AFTER_TRAIN_BATCH: "_gradients",
}
# Larger outputs are not kept: bytes.
_MAX_KEPT = 2**28
# Largest number of microbatches, and of elements of a parameter, whose increments to the gradient are kept.
_MAX_MICROBATCHES, _MAX_INCREMENT = 64, 2**16


class Watch(Callback):
    """Records the steps of a run.

    Args:
        steps: Number of steps, after which it raises :class:`.Finished`.
        save_at: Number of steps after which a checkpoint is saved.
        checkpoint: Path to which to save it; None if the run does so itself.
        again: Folder in which a run that was resumed saves the checkpoint again; None for other runs.
        neutral: What to leave out in exact mode; None trains as the program does.
        inspect: Whether to collect facts about the modules, the algorithms and the data.
        attribute: Whether to record which callback changes what.
        hooks: Whether to record the outputs of modules.
        data: Whether to fetch samples before and after training, to see whether training modifies them.
        evaluate: Whether to record what evaluation changes.
        compiled_alone: Arguments of ``torch.compile`` with which to compile each module alone; None does not.
        share: Whether to give all ranks the same batches, and to find out what samples the same then.

    Attributes:
        steps: A record of each step.
        facts: What was found out.
        tensors: In exact mode the gradients, outputs and parameters of the first step and of the step after the
            checkpoint, and the last parameters.
        trainer: The trainer, set before it trains.
        loggers: Class names of the loggers of the program that can be tried.
        neutral: The neutral setting of each method by class name, a text if it has none.
        compiled: Whether the program compiles its model.
        num_evaluators: Number of evaluators of the program, set before it trains.
        end: Called after the last step, if the run must not end by an exception.
    """

    trainer: Trainer
    num_evaluators: int
    compiled: bool = False
    loggers: Sequence[str] = ()
    neutral: Mapping[str, Any] = MappingProxyType({})
    end: Callable[[State], None] | None = None

    def __init__(
        self,
        *,
        steps: int,
        save_at: int | None = None,
        checkpoint: Path | None = None,
        again: Path | None = None,
        neutral: Neutral | None = None,
        inspect: bool = False,
        attribute: bool = False,
        hooks: bool = True,
        data: bool = False,
        evaluate: bool = False,
        compiled_alone: Mapping[str, Any] | None = None,
        share: bool = False,
    ) -> None:
        self._share = share
        self._sampling: Sampling | None = None
        self._data, self._evaluate = data, evaluate
        self._num_steps, self._save_at, self._checkpoint = steps, save_at, checkpoint
        self._neutral, self._inspect, self._attribute = neutral, inspect, attribute
        self._hooks, self._again, self._compiled_alone = hooks, again, compiled_alone
        self._compiled: CompiledModules | None = None
        self.steps: list[dict[str, Any]] = []
        self.facts: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        self.snapshots: dict[str, Any] = {}
        self.reloaded: list[str] = []
        self.sampled_alike: str | None = None
        self._groups: list[list[str]] = []
        self._loss_hooks: list[str] = []
        self._step: dict[str, Any] = {}
        self._modules: ModuleWatch | None = None
        self._changes: dict[str, set[str]] = {}
        self._increments: list[Tensor] = []
        self._losses: list[float] = []

    def record(self) -> dict[str, Any]:
        """Return everything that was recorded, but for tensors and facts, in JSON types."""
        return {
            "steps": self.steps,
            "snapshots": self.snapshots,
            "changes": {name: sorted(changed) for name, changed in self._changes.items()},
            "saved": None if self._checkpoint is not None or self._again is not None else self._save_at,
            "reloaded": self.reloaded,
            "compiled": None if self._compiled is None else self._compiled.record(),
            "initial": self.facts.get("initial", {}),
            "groups": self._groups,
            "sampled alike": self.sampled_alike,
        }

    # --- the handlers that come before all others

    def __wrap_handlers__(self, event: Event, handlers: tuple[Handler, ...]) -> tuple[Handler, ...]:
        """Put the own handler first, and note what the others change."""
        found = [handler for handler in handlers if owner_of(handler) is not self]
        if self._inspect or self._attribute:
            found = [handler if owner_of(handler) is None else self._noting(handler) for handler in found]
        own = [handler for handler in handlers if owner_of(handler) is self]
        if self._sampling is not None:
            found = [self._sampling.noting(handler, event) for handler in found]
        if event == Event.FIT_START and self._again is not None:
            return (self._save_again, *found, *own)
        name = _FIRST.get(event)
        return tuple([getattr(self, name), *found] if name is not None else [*found, *own])

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Listen; the handler is put first."""

    batch_start = before_forward = after_loss = after_train_batch = after_dataloader

    def _noting(self, handler: Handler) -> Handler:
        """Return a handler that notes what it changes: the random state, and if asked for the training."""
        owner = owner_of(handler)
        name = type(owner).__name__

        def call(state: State, logger: Logger) -> None:
            before = self._watched(state)
            handler(state, logger)
            changed = {key for key, value in self._watched(state).items() if value != before[key]}
            if changed:
                self._changes.setdefault(name, set()).update(changed)

        return owned(call, owner)

    def _watched(self, state: State) -> dict[str, str]:
        watched = {"random state": rng_digest()}
        if self._attribute:
            watched["training mode"] = digest([module.training for module in state.model.modules()])
            watched["buffers"] = digest(_tensor_digests(state.model.named_buffers()))
            watched["learning rate"] = digest(_learning_rates(state))
            trained = {id(parameter) for parameter in state.model.parameters() if parameter.grad is not None}
            for label, wanted in (("parameters", True), ("frozen parameters", False)):
                named = (
                    (name, each) for name, each in state.model.named_parameters() if (id(each) in trained) is wanted
                )
                watched[label] = digest(_tensor_digests(named))
            watched["gradients"] = digest(_tensor_digests(_named_gradients(state)))
            watched["batch"] = digest(state.batch)
            watched["outputs"] = digest(state.outputs)
            watched["loss"] = digest(state.loss)
        return watched

    # --- the stages of a step

    def _save_again(self, state: State, logger: Logger) -> None:
        """Save the state that was loaded, before callbacks change it when training begins."""
        if not self.steps and self._again is not None:
            self.reloaded = _checkpoints.reloaded(state, self._again)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Register hooks, and inspect the data before it is trained on."""
        if self._data:
            self.facts["data"] = _data_facts.before(state)
        if self._share:
            self._sampling = Sampling(suspects(state))
            self._sampling.watch(state.model)
        if self._modules is None:
            watched = state.model if self._hooks else nn.Identity()
            self._modules = ModuleWatch(watched, keep=True, gradients=self._neutral is not None)
            if self._neutral is not None:
                self._neutral.prepare(state.model)
            if self._compiled_alone is not None:
                self._compiled = CompiledModules(state.model, self._compiled_alone)

    def _samples(self, state: State, logger: Logger) -> None:
        if self._neutral is not None:
            state.batch = as_float64(state.batch)
        if self._share:
            share_batch(state)
        rows, problems = _data_facts.rows(state.train_phase.loader, state.batch)
        self._step = {
            "step": state.timestamp.batch.value,
            "random state": rng_digest(),
            "samples": [row_digest(row) for row in rows],
            "indices": sample_indices(state.train_phase).indices,
            "batch": [],
            "random states": {},
            "batch in epoch": state.timestamp.batch_in_epoch.value,
        }
        if self._inspect:
            self.facts["split"] = self.facts.get("split") or problems
            if not self.steps:
                self.facts["ignored labels"] = _data_facts.ignored_labels(state.batch)

    def _start(self, state: State, logger: Logger) -> None:
        if "initial" not in self.facts:
            self.facts["initial"] = _tensor_digests(state.model.named_parameters())
            self._groups = _run_facts.groups(state)
        if state.timestamp.batch.value == self._save_at and self._checkpoint is None:
            self.snapshots["resumed" if self._again is not None else "saved"] = snapshot(state, self)

    def _batch(self, state: State, logger: Logger) -> None:
        assert self._modules is not None
        self._step["batch"].append(digest(state.batch))
        self._modules.active = True
        if self._inspect and len(self.steps) == 1:  # what the first forward pass makes is not changed any more
            self._before_forward = snapshot(state, self)

    def _loss(self, state: State, logger: Logger) -> None:
        assert self._modules is not None
        self._modules.active = False
        if self._inspect and len(self.steps) == 1:
            self.facts["changed in forward"] = differences(self._before_forward, snapshot(state, self))
        if self._inspect:
            self._loss_hooks = _run_facts.hooks_of(state.loss)
        if self._sampling is not None:
            self._sampling.loss(state)

    def after_backward(self, state: State, logger: Logger) -> None:
        """Keep the gradient so far, to see what each microbatch of the first step adds."""
        if self._neutral is None or self.steps or len(self._step["batch"]) > _MAX_MICROBATCHES:
            return
        gradients = [gradient for _, gradient in _named_gradients(state) if gradient.numel() <= _MAX_INCREMENT]
        if gradients:
            largest = max(gradients, key=lambda gradient: gradient.numel())
            self._increments.append(full_tensor(largest).detach().flatten().cpu().clone())
            self._losses.append(float(named_losses(state.loss)[0]))

    def _gradients(self, state: State, logger: Logger) -> None:
        assert self._modules is not None
        self._step["random states"].update(self._modules.states)
        later = state.timestamp.batch.value + 1 == self._save_at
        self._step["outputs"] = self._modules.take(keep=later)
        self._step["gradients"] = _tensor_digests(_named_gradients(state))
        if self._neutral is None and _bytes(state) > _MAX_KEPT:
            return  # only exact mode needs them
        key = "later" if self.steps and state.timestamp.batch.value == self._save_at else "first"
        if key == "later" or not self.steps:
            self.tensors[key] = {
                "gradients": _full(_named_gradients(state)),
                "outputs": dist.all_gather_object(_kept(self._modules.outputs)),
                "output gradients": dist.all_gather_object(self._modules.gradients),
                "samples": dist.all_gather_object(self._step["indices"] or self._step["samples"]),
                "increments": list(self._increments),
                "losses": list(self._losses),
                "before": _full(state.model.named_parameters()),
            }

    def batch_end(self, state: State, logger: Logger) -> None:
        """Complete the record of the step."""
        step = self._step
        step["loss"] = {name: float(value).hex() for name, value in sorted(state.total_loss_dict.items())}
        step["learning rate"] = _learning_rates(state)
        step["parameters"] = _tensor_digests(state.model.named_parameters())
        step["buffers"] = _tensor_digests(state.model.named_buffers())
        step["optimizer"] = _optimizer_digests(state)
        key = "later" if len(self.steps) and step["step"] == self._save_at else "first"
        if key in self.tensors and "stepped" not in self.tensors[key]:
            self.tensors[key]["stepped"] = _full(_named_gradients(state))
        own: dict[str, Any] = {
            "samples": step.pop("samples"),
            "indices": step.pop("indices"),
            "random states": step.pop("random states"),
            "parameters": step["parameters"],
            "learning rate": step["learning rate"],
            "changes": self._changes,
        }
        if self._sampling is not None:
            own |= {"found": self._sampling.found, "changed": self._sampling.changed}
        ranks = dist.all_gather_object(own)
        step["samples"] = [rank["samples"] for rank in ranks]
        indices = [rank["indices"] for rank in ranks]
        step["indices"] = None if None in indices else indices
        step["random states"] = [rank["random states"] for rank in ranks]
        for name, changed in (item for rank in ranks for item in rank["changes"].items()):
            self._changes.setdefault(name, set()).update(changed)  # a change may be that of one rank only
        if self._sampling is not None:
            self.sampled_alike, self._sampling.is_over = self.sampled_alike or sampled_alike(ranks), True
        step["ranks differ"] = sorted(
            {
                name
                for rank in ranks[1:]
                for name, value in rank["parameters"].items()
                if value != step["parameters"][name]
            }
        )
        step["rates differ"] = any(rank["learning rate"] != step["learning rate"] for rank in ranks)
        self.steps.append(step)
        if self._evaluate:  # between this event and the next one
            self._before_evaluation = self._evaluated(state)

    def _evaluated(self, state: State) -> Snapshot:
        """Return a snapshot of what evaluation must not change."""
        found = {name: value for name, value in snapshot(state, self).items() if not name.startswith("data ")}
        return {**found, "random state": {"": rng_digest()}}

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save the checkpoint, and end after the last step."""
        done = state.timestamp.batch.value
        if self._evaluate:
            changed = differences(self._before_evaluation, self._evaluated(state))
            self._changes.setdefault("evaluation", set()).update(changed)
        if done == self._save_at and self._checkpoint is not None:
            save_checkpoint(self.trainer.state, self._checkpoint)
        if done >= self._num_steps:
            if self._inspect and self._modules is not None:
                self.facts.update(_run_facts.collected(state, self._modules, self._changes, self))
                self.facts["gradient hooks"] = [*_run_facts.gradient_hooks(state), *self._loss_hooks]
                self.facts.update(neutral=dict(self.neutral), compiled=self.compiled, loggers=self.loggers)
                self.facts.update(evaluators=self.num_evaluators, batch_size=len(self.steps[0]["samples"][0]))
            if self._data:
                self.facts["data"] = _data_facts.after(state, self.facts["data"])
            if self._neutral is not None:
                self.tensors["parameters"] = _full(state.model.named_parameters())
            if self.end is not None:
                self.end(state)
            raise Finished


def _bytes(state: State) -> int:
    return sum(p.numel() * p.element_size() for p in state.model.parameters())


def _learning_rates(state: State) -> list[str]:
    return [float(group["lr"]).hex() for one in state.optimizers for group in one.param_groups if "lr" in group]


def _tensor_digests(named: Any) -> dict[str, int]:
    return {name: int(tensor_digest(full_tensor(tensor))) for name, tensor in named}


def _named_gradients(state: State) -> Iterator[tuple[str, Tensor]]:
    """Yield the gradient of each parameter that has one, by its name."""
    return ((name, p.grad) for name, p in state.model.named_parameters() if p.grad is not None)


def _optimizer_digests(state: State) -> dict[str, str]:
    """Return a digest of each parameter's optimizer state, by parameter name and key."""
    names = {id(parameter): name for name, parameter in state.model.named_parameters()}
    return {
        f"{names.get(id(parameter), '?')} {key}": digest(value)
        for one in state.optimizers
        for parameter, entries in one.state.items()
        for key, value in (entries.items() if isinstance(entries, dict) else ())
    }


def _full(named: Any) -> dict[str, Tensor]:
    return {name: full_tensor(tensor).detach().cpu().clone() for name, tensor in named}


def _kept(outputs: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    """Return outputs of modules in order, as many as fit."""
    kept: dict[str, list[Tensor]] = {}
    size = 0
    for name, tensors in outputs.items():
        size += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if size > _MAX_KEPT:
            break
        kept[name] = tensors
    return kept
