"""Fork a run: a new run that shares the past of another one up to a step, and trains on with changed settings."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor
from torch.optim import Optimizer

from composer._secrets.masking import mask_text
from composer._string_lists import as_strings
from composer._text import did_you_mean
from composer.checkpoint.at_step import CheckpointFacts, history_of, run_folder
from composer.checkpoint.named_states import as_named, class_of
from composer.checkpoint.on_all_ranks import run_on_rank_zero
from composer.checkpoint.save import save_checkpoint
from composer.core.callback import Callback
from composer.core.name_placeholders import format_name
from composer.core.state import State
from composer.core.time import TimeUnit
from composer.optim.compiled_schedule import CompiledSchedule
from composer.optim.hyperparameter import set_value
from composer.optim.wrapped_optimizer import is_or_wraps
from composer.storage.uris import is_remote, local_path
from composer.trainer.fingerprint.expect import expect_start
from composer.trainer.replay.file_guard import changed_files
from composer.trainer.replay.recorder import StepReplayed
from composer.trainer.replay.replay import Replay, load_state, not_reached
from composer.trainer.resume import savers_of
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.trainer.run import Run
    from composer.trainer.trainer import Trainer

__all__ = ["StateSaver", "check_folder", "checkpoint_at", "fork"]

# As in "optimizers.lr", "optimizers.0.lr" and "optimizers.AdamW.lr".
_HYPERPARAMETER = re.compile(r"optimizers\.(?:(?P<which>\w+)\.)?(?P<name>[A-Za-z_]\w*)")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")


def checkpoint_at(
    trainer: Trainer,
    run: Run,
    step: int,
    path: str,
    source: str | None,
    arguments: dict[str, Any],
    *,
    allow_changes: bool = False,
) -> str | None:
    """Save the state of a run right before a step; see :meth:`.Trainer.checkpoint_at`.

    Args:
        trainer: Made with the arguments of the run.
        run: Its run.
        step: Number of batches trained before the step.
        path: Where to save.
        source: Path or URI of the run; None for the folder that the trainer saves to.
        arguments: Arguments of ``fit``, as in the run.
        allow_changes: Whether to go on if the data or the initial weights are not those of the run.

    Raises:
        ValueError: The step is beyond the end of the run, or cannot be repeated exactly.
    """
    replay = Replay(trainer, run, step, source, allow_changes=allow_changes)
    replay.load()
    step = replay.step
    if run.state.timestamp.batch.value == step:
        raise ValueError(f"{replay.start!r} is the state at batch {step} already; use it.")
    saver = StateSaver(step, path)
    replay.train_with(saver, trainer.fit, **arguments)
    if not saver.is_saved:
        raise ValueError(not_reached(step, run))
    return saver.saved


class StateSaver(Callback):
    """Saves a checkpoint once a number of batches is trained, and ends training.

    Args:
        step: Number of batches.
        path: Where to save.

    Attributes:
        is_saved: Whether training came so far.
        saved: Path of the checkpoint on rank 0, None on other ranks.

    >>> StateSaver(3, "state.pt").is_saved
    False
    """

    def __init__(self, step: int, path: str) -> None:
        self._step, self._path = step, path
        self.is_saved, self.saved = False, cast("str | None", None)

    def batch_checkpoint(self, state: State, logger: Logger) -> None:
        """Save if the step is next."""
        if state.timestamp.count(TimeUnit.BATCH) == self._step:
            callbacks = state.callbacks
            state.callbacks = [callback for callback in callbacks if callback is not self]
            try:
                with changed_files():
                    self.saved = save_checkpoint(state, self._path)
            finally:
                state.callbacks = callbacks
            self.is_saved = True
            raise StepReplayed


def fork(
    trainer: Trainer,
    run: Run,
    at: int,
    source: str,
    changes: Sequence[str] = (),
    *,
    parent: str | None = None,
    described: Sequence[str] | None = None,
) -> None:
    """Load the state of another run at a step, to train on as a new run; see :meth:`.Trainer.fork`.

    Args:
        trainer: Made with the arguments of the run, and changes; has not trained.
        run: Its run.
        at: Number of batches that both runs share.
        source: Path or URI of the other run, or of a checkpoint of it at this step.
        changes: Names of the settings that differ.
        parent: Path or URI of the other run, if ``source`` is not part of it.
        described: The changes as text, to be recorded; None describes them by the values in the trainer.

    Raises:
        TypeError: ``at`` is not an integer, or ``changes`` is not a sequence of strings.
        ValueError: The run has no checkpoint at this step, a name is unknown, or name or folder are those of the run.
        RuntimeError: The trainer has trained.
    """
    state = run.state
    changes = as_strings("changes", changes)
    known = inspect.signature(type(trainer).__init__).parameters
    for name in changes:
        _check_name(name, known, state.optimizers)
    told = [_described(name, state.optimizers) for name in changes] if described is None else list(described)
    at = Replay(trainer, run, at, source, argument="at").step  # checks the step and the trainer
    if state.forked_from is not None and trainer._autoresumed:  # pyright: ignore[reportPrivateUsage]
        if state.forked_from["step"] != at:
            raise ValueError(
                f"{state.load_path!r}, from which this trainer resumed, was forked at batch "
                f"{state.forked_from['step']}, not {at}. Use another save_folder for another fork."
            )
        return
    facts = run_on_rank_zero(lambda: _exactly_at(source, at), "look for checkpoints")
    parent = source if parent is None else parent
    _check_own(state, facts.run_name, parent)
    made = [[_copied(group) for group in optimizer.param_groups] for optimizer in state.optimizers]
    removed: list[str] = []

    def edit(content: dict[str, Any]) -> list[str]:
        removed.extend(_edit(content, state, changes))
        return removed

    try:
        load_state(trainer, run, facts.path, edit=edit)
    except RuntimeError as error:
        if not removed:
            raise
        raise ValueError(
            f"The weights of the run do not fit the model without {', '.join(removed)}, since a method that replaces "
            f"layers was removed: they were trained with these layers. Keep that method, and remove only methods that "
            f"act on batches, losses and optimizers. {error}"
        ) from error
    _restore_settings(state, changes, made)
    path = parent if is_remote(parent) else str(local_path(parent).absolute())
    is_same_data = "train_dataloader" not in {name.partition(".")[0] for name in changes}
    expect_start(run, facts, repr(mask_text(parent)), raises=False, compare_data=lambda: is_same_data)
    state.forked_from = {"run_name": facts.run_name, "step": at, "path": mask_text(path), "changes": told}
    if described is not None:
        state.forked_from["by_command"] = True  # the changes are not part of the program
    text = f"forked from {facts.run_name} at batch {at}{' with ' if told else ''}{', '.join(told)}"
    run.logger.notice(text, kind="fork")


def check_folder(folder: str, parent: str, remedy: str) -> None:
    """Raise if a folder is that of a run, or inside it.

    Args:
        folder: Path or URI of the folder.
        parent: Path or URI of the run, its folder or one of its checkpoints.
        remedy: What to do, for the message.

    Raises:
        ValueError: It is.

    >>> check_folder("runs/night/fork", "runs/night", "Choose another folder.")
    Traceback (most recent call last):
    ...
    ValueError: The fork would save to 'runs/night/fork', in the folder of the run that it forks. Choose another folder.
    """
    if is_remote(folder) != is_remote(parent):
        return
    theirs = run_folder(parent)
    if is_remote(parent):
        is_same, is_inside = folder.rstrip("/") == theirs, folder.startswith(f"{theirs}/")
    else:
        mine, other = local_path(folder).resolve(), local_path(theirs).resolve()
        is_same, is_inside = mine == other, mine.is_relative_to(other)
    # A checkpoint may lie above the folders of several runs.
    is_inside = is_same or (is_inside and theirs == parent.rstrip("/"))
    if is_inside:
        raise ValueError(
            f"The fork would save to {mask_text(folder)!r}, in the folder of the run that it forks. {remedy}"
        )


def _check_name(name: str, arguments: Mapping[str, Any], optimizers: Sequence[Optimizer]) -> None:
    """Raise if a name of a change is not an argument of the Trainer, or not a hyperparameter of the optimizers."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"changes: {name!r} is not the name of a setting. Give the value to the Trainer, and only the name here, "
            f"as in changes=['optimizers.lr']."
        )
    argument = name.partition(".")[0]
    if argument not in arguments:
        raise ValueError(f"changes: Trainer has no argument {argument!r}.{did_you_mean(argument, arguments)}")
    if not name.startswith("optimizers."):
        return
    match = _HYPERPARAMETER.fullmatch(name)
    chosen = [] if match is None else _chosen(match, optimizers)
    if match is None or not any(match["name"] in optimizer.defaults for _, optimizer in chosen):
        known = [key for optimizer in optimizers for key in optimizer.defaults]
        hint = did_you_mean(name.rpartition(".")[2], known)
        raise ValueError(f"changes: {name!r} is not a hyperparameter of the optimizers.{hint}")


def _chosen(match: re.Match[str], optimizers: Sequence[Optimizer]) -> list[tuple[int, Optimizer]]:
    """Return the optimizers that a name refers to, with their numbers."""
    which = match["which"]
    return [(i, one) for i, one in enumerate(optimizers) if which in (None, str(i), type(one).__name__)]


def _described(name: str, optimizers: Sequence[Optimizer]) -> str:
    """Return a change as text, with the value of a hyperparameter."""
    match = _HYPERPARAMETER.fullmatch(name)
    if match is None:
        return name
    groups = [group for _, optimizer in _chosen(match, optimizers) for group in optimizer.param_groups]
    values = [_initial(group, match["name"]) for group in groups if match["name"] in group]
    return f"{name}={', '.join(dict.fromkeys(map(str, values)))}"


def _exactly_at(source: str, at: int) -> CheckpointFacts:
    """Return the checkpoint of a run at a step."""
    history = history_of(source, at)
    found = history.before
    if found is not None and found.batch == at:
        return found
    if found is not None and found.is_end:
        raise ValueError(
            f"{mask_text(source)!r} has no batch {at}: the run ends at batch {found.batch}. To train longer, fork it "
            f"there with a larger max_duration."
        )
    nearest = found or history.after
    parts = [f"{mask_text(source)!r} has no complete checkpoint at batch {at}."]
    if nearest is not None:
        parts.append(f"The nearest is at batch {nearest.batch}.")
    if history.problems:
        parts.append(history.problems)
    make = (
        f"Make one with a trainer that has the arguments of the run: trainer.checkpoint_at({at}, 'state.pt', run=...)"
    )
    # The command forks from batch 1 on.
    parts.append(f"{make}; or use the command composer fork, which trains the steps in between." if at else f"{make}.")
    raise ValueError(" ".join(parts))


def _check_own(state: State, parent_name: str, parent: str) -> None:
    """Raise if a fork has the name of its parent, or would save into its folder."""
    if state.run_name == parent_name:
        raise ValueError(f"run_name={state.run_name!r} is the name of the run that is forked; give the fork its own.")
    for saver in savers_of(state):
        check_folder(format_name(saver.folder, state.run_name), parent, "Use another save_folder for the fork.")


def _edit(content: dict[str, Any], state: State, changes: Sequence[str]) -> list[str]:
    """Drop what a fork changes from a checkpoint; return the names of the algorithms that were removed."""
    saved: dict[str, Any] = content["state"]
    for name in ("optimizers", "schedulers"):
        if name in changes:
            saved.pop(name, None)
    if "optimizers" in changes:
        # The values that schedules multiply are those of the new optimizers, which may have other groups.
        for schedule in as_named(saved.get("schedulers", {})).values():
            for name in ("base_lrs", "_last_lr"):
                schedule.pop(name, None)
    if "seed" in changes:
        saved["rank_zero_seed"], content["rng"] = state.rank_zero_seed, None
    saved.pop("forked_from", None)
    if not any(name.partition(".")[0] == "algorithms" for name in changes):
        return []  # those that the weights need are recreated
    present = {type(algorithm).__qualname__ for algorithm in state.algorithms}
    return [name for name in dict.fromkeys(map(class_of, as_named(saved.get("algorithms", {})))) if name not in present]


def _restore_settings(state: State, changes: Sequence[str], made: list[list[dict[str, Any]]]) -> None:
    """Set hyperparameters and schedules as they were before the checkpoint replaced them."""
    kept: set[tuple[int, str]] = set()
    for name in changes:
        match = _HYPERPARAMETER.fullmatch(name)
        if match is None:
            continue
        for index, optimizer in _chosen(match, state.optimizers):
            kept.add((index, match["name"]))
            for number, group in enumerate(made[index]):
                if match["name"] in group:
                    _set_hyperparameter(state, optimizer, number, match["name"], _initial(group, match["name"]))
    if "schedulers" in changes or "optimizers" in changes:
        for scheduler in state.schedulers:
            if isinstance(scheduler, CompiledSchedule):
                scheduler.multiplier = None  # of the start of the run; is set when training begins
    if "optimizers" not in changes:
        _warn_of_loaded(state, made, kept)


def _set_hyperparameter(state: State, optimizer: Optimizer, number: int, name: str, value: Any) -> None:
    """Set a hyperparameter of a group, as the value that its schedule multiplies if there is one."""
    group, current = optimizer.param_groups[number], value
    for scheduler in state.schedulers:
        if not is_or_wraps(optimizer, scheduler.optimizer):
            continue
        if isinstance(scheduler, CompiledSchedule):
            if scheduler.hyperparameter == name and number in scheduler.groups:
                scheduler.base_lrs[number] = float(value)
                current = value * (1.0 if scheduler.multiplier is None else scheduler.multiplier)
        elif name == "lr":
            before = scheduler.base_lrs[number]
            current = value * (group["lr"] / before if before else 1.0)
            scheduler.base_lrs[number] = value
    if f"initial_{name}" in group:
        group[f"initial_{name}"] = value
    set_value(group, name, current)


def _warn_of_loaded(state: State, made: list[list[dict[str, Any]]], kept: set[tuple[int, str]]) -> None:
    """Warn about hyperparameters that the checkpoint has replaced by others."""
    for index, optimizer in enumerate(state.optimizers):
        for number, (given, group) in enumerate(zip(made[index], optimizer.param_groups, strict=True)):
            for name in optimizer.defaults.keys() & given.keys() & group.keys():
                one, other = _initial(given, name), _initial(group, name)
                is_scheduled = name == "betas" and ("initial_beta1" in group or "initial_beta2" in group)
                if (index, name) not in kept and not is_scheduled and one != other:
                    message = (
                        f"{name} of {type(optimizer).__name__} (group {number}) is {other}, from the run that is "
                        f"forked, not {one}, which the optimizer was created with. To change it, name it: "
                        f"changes=['optimizers.{name}']."
                    )
                    warnings.warn(message, ComposerWarning, stacklevel=5)


def _initial(group: Mapping[str, Any], name: str) -> Any:
    """Return a hyperparameter without its schedule."""
    value = group.get(f"initial_{name}", group[name])
    return value.item() if isinstance(value, Tensor) else value


def _copied(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, Tensor) else value for name, value in group.items() if name != "params"
    }
