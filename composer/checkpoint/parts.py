"""What a checkpoint holds: a table with one row for each part."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from composer import dist, trees
from composer._text import plural
from composer._version import __version__
from composer.checkpoint.metric_values import give_metric_values, take_metric_values
from composer.checkpoint.optimizers import class_name, optimizer_state, set_optimizer_state
from composer.core.data_pass import DataPass
from composer.core.serial import Serializable
from composer.core.timestamp import Timestamp
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from torchmetrics import Metric

    from composer.core.state import State

__all__ = ["PARTS", "Part", "entries_of", "give_each", "own_schedulers"]


@dataclass(frozen=True)
class Part:
    """One row.

    Attributes:
        name: Its key in the file, below ``"state"``.
        take: Returns what is saved, of a state; None leaves the part out.
        give: Puts what was saved into a state; None where it is for the reader of the file.
        with_weights: Whether a checkpoint of the weights alone has it too.
        on_request: Whether it is left out unless asked for.

    >>> [part.name for part in PARTS if part.with_weights]
    ['model', 'integrations', 'metadata']
    """

    name: str
    take: Callable[[State], Any]
    give: Callable[[State, Any], None] | None = None
    with_weights: bool = False
    on_request: bool = False


def _take_model(state: State) -> dict[str, Any]:
    return dict(state.model.state_dict())


def _take_optimizers(state: State) -> list[Any]:
    return [(class_name(optimizer), optimizer_state(state.model, optimizer)) for optimizer in state.optimizers]


def _give_optimizers(state: State, saved: Any) -> None:
    entries = entries_of(saved)
    names = [class_name(optimizer) for optimizer in state.optimizers]
    if [name for name, _ in entries] != names[: len(entries)] or len(entries) > len(names):
        raise ValueError(
            f"The checkpoint is of a training with the optimizers {[name for name, _ in entries]}, but {names} are "
            f"given. Give the same, or leave their state out with load_ignore_keys=['state/optimizers*']."
        )
    if len(entries) < len(names):
        message = f"The checkpoint has no state of the optimizers {names[len(entries) :]}; they begin without."
        warnings.warn(message, ComposerWarning, stacklevel=2)
    for optimizer, (_, value) in zip(state.optimizers, entries, strict=False):
        set_optimizer_state(state.model, optimizer, value)


def _take_schedulers(state: State) -> list[Any]:
    return [(type(scheduler).__qualname__, scheduler.state_dict()) for scheduler in state.schedulers]


def _give_schedulers(state: State, saved: Any) -> None:
    if state.schedulers:  # or they come when training begins
        give_each("schedulers", state.schedulers, own_schedulers(saved, state.schedulers))


def _take_scaler(state: State) -> Any:
    return None if state.scaler is None else state.scaler.state_dict()


def _give_scaler(state: State, saved: Any) -> None:
    # The predecessor has it by its class name. One that was not in use has no state.
    value = saved if "scale" in saved else next(iter(saved.values()), None)
    if state.scaler is not None and value:
        state.scaler.load_state_dict(value)


def _take_algorithms(state: State) -> list[Any]:
    return [(type(algorithm).__qualname__, algorithm.state_dict()) for algorithm in state.algorithms]


def _give_algorithms(state: State, saved: Any) -> None:
    # Methods that were made again by the loading are in the state by now; others may be left out by choice.
    give_each("algorithms", state.algorithms, saved, tell=False)


def _take_callbacks(state: State) -> list[Any]:
    states = [(type(callback).__qualname__, callback.state_dict()) for callback in state.callbacks]
    # All of a class or none, so that the second of a class finds its own state and not that of the first.
    kept = {name for name, value in states if value}
    return [(name, value) for name, value in states if name in kept]


def _give_callbacks(state: State, saved: Any) -> None:
    give_each("callbacks", state.callbacks, saved, tell=False)


def _take_timestamp(state: State) -> dict[str, Any]:
    # Clocks as numbers, which torch.load reads without being told of timedelta.
    amounts = state.timestamp.state_dict().items()
    return {"Timestamp": {name: v if isinstance(v, int) else v.total_seconds() for name, v in amounts}}


def _give_timestamp(state: State, saved: Any) -> None:
    timestamp = Timestamp()
    timestamp.load_state_dict(saved["Timestamp"])
    state.timestamp = timestamp


def _take_position(state: State) -> dict[str, Any]:
    phase = state.train_phase
    place = phase.resume if phase.iterator is None else None  # loaded, and not taken up yet
    if phase.passes is not None and isinstance(phase.iterator, DataPass):
        done = int(phase.timestamp.sample_in_epoch)
        place = phase.passes.place(phase.iterator, done, sized=phase.length is not None)
    elif phase.passes is not None and phase.ended is not None and phase.passes.loader is phase.loader.dataloader:
        place = phase.passes.place_after(*phase.ended, sized=phase.length is not None)
    return {"train": place, "eval": {}, "first_draws": dist.all_gather_object(_first_draws(state))}


def _first_draws(state: State) -> dict[str, Any]:
    """The random states before the first batches of this process, by mode and label."""
    phases = {"train": state.train_phase, "eval": state.eval_phase}
    found = {mode: {label: first.state for label, first in phase.first_draws.items()} for mode, phase in phases.items()}
    return {mode: {label: draws for label, draws in by.items() if draws is not None} for mode, by in found.items()}


def _give_position(state: State, saved: Any) -> None:
    phase = state.train_phase
    phase.iterator = None
    phase.ended = None
    ranks = saved.get("first_draws", [])
    if dist.get_global_rank() < len(ranks):
        mine = ranks[dist.get_global_rank()]
        for one, mode in ((phase, "train"), (state.eval_phase, "eval")):
            for label, draws in mine[mode].items():
                one.first_draws[label].load(draws)
    place = saved.get("train")
    if phase.timestamp.batch_in_epoch.value == 0:
        phase.resume = place if isinstance(place, dict) and "ended" in place else None
    elif isinstance(place, dict) and "kind" in place:
        phase.resume = place
    else:
        # The predecessor's place is that of a data set, or none where it fetched the batches before again.
        phase.resume = {"kind": "dataset", "state": place} if place is not None else {"kind": "any", "rng": None}


def _give_stage(state: State, saved: Any) -> None:
    state.train_phase.stage = saved


def _take_metrics(state: State) -> dict[str, Any]:
    found = {
        "train": {name: _metric_state(metric) for name, metric in state.train_metrics.items()},
        "eval": {
            label: {name: _metric_state(metric) for name, metric in metrics.items()}
            for label, metrics in state.eval_metrics.items()
        },
    }
    if dist.get_world_size() == 1:
        return found
    # Each process has counted its own data.
    return {"ranks": dist.all_gather_object(trees.map_tensors(lambda tensor: tensor.cpu(), found))}


def _give_metrics(state: State, saved: Any) -> None:
    ranks = saved.get("ranks", [saved])
    if len(ranks) != dist.get_world_size():
        message = (
            f"The metrics were saved by {plural(len(ranks), 'rank')}, but there are now "
            f"{plural(dist.get_world_size(), 'rank')}: those of data in work begin anew."
        )
        warnings.warn(message, ComposerWarning, stacklevel=2)
        return
    saved = ranks[dist.get_global_rank()]
    _set_metrics(state.train_metrics, saved["train"])
    for label, metrics in state.eval_metrics.items():
        _set_metrics(metrics, saved["eval"].get(label, {}))


def _metric_state(metric: Metric) -> dict[str, Any]:
    return {"count": metric.update_count, "values": dict(metric.metric_state)}


def _set_metrics(metrics: dict[str, Metric], saved: dict[str, Any]) -> None:
    for name, metric in metrics.items():
        if name in saved:
            device = metric.device
            for key, value in saved[name]["values"].items():
                moved = [v.to(device) for v in value] if isinstance(value, list) else value.to(device)
                setattr(metric, key, moved)
            # As torchmetrics' own loading does; a value computed before is one of before.
            metric._update_count = saved[name]["count"]  # pyright: ignore[reportPrivateUsage]
            metric._computed = None  # pyright: ignore[reportPrivateUsage]


def _give_seed(state: State, saved: Any) -> None:
    state.rank_zero_seed = saved


def _take_ending(state: State) -> dict[str, str]:
    stop, planned = state.stop, state.planned_duration
    found = {} if planned is None else {"planned_duration": str(planned)}
    return found if stop is None else {**found, "stopped_by": stop.by, "reason": stop.reason}


def _take_integrations(state: State) -> dict[str, Any]:
    describe = getattr(state.model, "get_metadata", None)
    return {} if describe is None else {"huggingface": describe()}


def _take_metadata(state: State) -> dict[str, Any]:
    return {
        "composer_version": __version__,
        "torch_version": str(torch.__version__),
        "device": state.device.name,
        "precision": state.precision.value,
        "world_size": dist.get_world_size(),
        "device_train_microbatch_size": state.device_train_microbatch_size,
    }


def _give_metadata(state: State, saved: Any) -> None:
    if state.auto_microbatching:  # begins with what was found; a number that was given stays
        state.device_train_microbatch_size = saved.get("device_train_microbatch_size")


# In the order in which they are given back: what a part needs stands before it.
PARTS: tuple[Part, ...] = (
    Part("model", _take_model, None, with_weights=True),  # loading it has options of its own
    Part("optimizers", _take_optimizers, _give_optimizers),
    Part("schedulers", _take_schedulers, _give_schedulers),
    Part("scaler", _take_scaler, _give_scaler),
    Part("rank_zero_seed", lambda state: state.rank_zero_seed, _give_seed),
    Part("timestamp", _take_timestamp, _give_timestamp),
    Part("dataset_state", _take_position, _give_position),
    Part("stage", lambda state: state.train_phase.stage, _give_stage),
    Part("algorithms", _take_algorithms, _give_algorithms),
    Part("callbacks", _take_callbacks, _give_callbacks),
    Part("metrics", _take_metrics, _give_metrics, on_request=True),
    Part("metric_values", take_metric_values, give_metric_values),
    Part("max_duration", lambda state: None if state.max_duration is None else str(state.max_duration)),
    Part("ending", _take_ending),  # who resumes decides whether it holds
    Part("run_name", lambda state: state.run_name),
    Part("integrations", _take_integrations, None, with_weights=True),
    Part("metadata", _take_metadata, _give_metadata, with_weights=True),
)
"""Every part of a checkpoint, in the order in which it is loaded."""


def entries_of(saved: Any) -> list[tuple[str, Any]]:
    """Return what was saved of several objects as pairs of class name and state.

    Args:
        saved: Such pairs, or a dict of them, with one entry of a class, as the predecessor wrote it.

    >>> entries_of({"SGD": {}})
    [('SGD', {})]
    """
    return list(cast("dict[str, Any]", saved).items() if isinstance(saved, dict) else saved)


def own_schedulers(saved: Any, present: Sequence[Any] = ()) -> list[tuple[str, Any]]:
    """Return what was saved of schedules that have a state of their own.

    Args:
        saved: What a checkpoint has of schedules, in the form of :func:`entries_of`.
        present: The schedules that are to take it over.

    >>> own_schedulers([("StepLR", {"last_epoch": 1})])
    [('StepLR', {'last_epoch': 1})]
    """
    entries = entries_of(saved)
    if isinstance(saved, dict) and not any(type(scheduler).__qualname__ == "LambdaLR" for scheduler in present):
        # So the predecessor names its own schedules; they are functions of the time, and have nothing to take over.
        entries = [(name, value) for name, value in entries if name != "LambdaLR"]
    return entries


def give_each(kind: str, present: Sequence[Any], saved: Any, *, tell: bool = True) -> None:
    """Give each object the state that was saved of the object of its class, the second of the second and so on.

    Args:
        kind: What the objects are called.
        present: The objects.
        saved: The states, in the form of :func:`entries_of`.
        tell: Whether to warn of a state that no object takes.

    >>> scheduler = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD([torch.zeros(1)]))
    >>> give_each("schedulers", [scheduler], [("ConstantLR", {"last_epoch": 3})])
    >>> scheduler.last_epoch
    3
    """
    left, entries = list(present), entries_of(saved)
    # First those that know their state, whatever the order in which they are given now.
    for known in (True, False):
        rest: list[tuple[str, Any]] = []
        for name, value in entries:
            same = [index for index, one in enumerate(left) if type(one).__qualname__ == name]
            own = [index for index in same if _is_own(left[index], value)] if known else same
            if own:
                left.pop(own[0]).load_state_dict(value)
            else:
                rest.append((name, value))
        entries = rest
    for name, _ in entries if tell else ():
        message = f"The checkpoint has the state of {name}, which is not among the {kind}; it is left out."
        warnings.warn(message, ComposerWarning, stacklevel=2)


def _is_own(one: Any, value: Any) -> bool:
    return isinstance(one, Serializable) and isinstance(value, dict) and one.__is_own_state__(value)
