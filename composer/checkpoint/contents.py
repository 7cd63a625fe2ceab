"""What a checkpoint holds: a table with one row for each part."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from composer import dist, trees
from composer._text import plural
from composer._version import __version__
from composer.checkpoint.metric_values import give_metric_values, take_metric_values
from composer.checkpoint.named_states import as_named, by_name, load_each, name_of
from composer.checkpoint.optimizer_states import class_name, optimizer_state, set_optimizer_state
from composer.core.epoch_iterator import EpochIterator
from composer.core.timestamp import Timestamp
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from torchmetrics import Metric

    from composer.core.state import State

__all__ = ["PARTS", "Part", "timestamp_state"]


@dataclass(frozen=True)
class Part:
    """One row.

    Attributes:
        name: Its key in the file, below ``"state"``.
        take: Returns what is saved, of a state; None leaves the part out.
        give: Puts what was saved into a state; None where it is for the reader of the file. That of optimizers takes
            the names of parameters too, whose state it leaves out.
        with_weights: Whether a checkpoint of the weights alone has it too.
        on_request: Whether it is left out unless asked for.

    >>> [part.name for part in PARTS if part.with_weights]
    ['model', 'integrations', 'metadata']
    """

    name: str
    take: Callable[[State], Any]
    give: Callable[..., None] | None = None
    with_weights: bool = False
    on_request: bool = False


def _take_model(state: State) -> dict[str, Any]:
    return dict(state.model.state_dict())


def _take_optimizers(state: State) -> dict[str, Any]:
    return by_name((class_name(one), optimizer_state(state.model, one)) for one in state.optimizers)


def _give_optimizers(state: State, saved: Any, left_out: Collection[str] = ()) -> None:
    saved = as_named(saved)
    present = by_name((class_name(optimizer), optimizer) for optimizer in state.optimizers)
    if not saved.keys() <= present.keys():
        raise ValueError(
            f"The checkpoint is of a run with the optimizers {list(saved)}, but {list(present)} are given. Give the "
            f"same, or leave their state out with load_ignore_keys=['state/optimizers*']."
        )
    if missing := [name for name in present if name not in saved]:
        message = f"The checkpoint has no state of the optimizers {missing}; they begin without."
        warnings.warn(message, ComposerWarning, stacklevel=2)
    for name, value in saved.items():
        set_optimizer_state(state.model, present[name], value, left_out)


def _take_each(kind: str, present: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the class name and the state of each object.

    Raises:
        TypeError: A state is not a mapping, which a checkpoint could not hold.
    """
    states: list[tuple[str, Any]] = []
    for one in present:
        name, value = name_of(one), one.state_dict()
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(
                f"{kind}: {name}.state_dict() returned {type(value).__qualname__}, where a dict is due. Return "
                f"{{'value': ...}}."
            )
        states.append((name, {} if value is None else value))
    return states


def _take_schedulers(state: State) -> dict[str, Any]:
    return by_name(_take_each("schedulers", state.schedulers))


def _give_schedulers(state: State, saved: Any) -> None:
    if state.schedulers:  # or they come when training begins
        load_each("schedulers", state.schedulers, as_named(saved))


def _take_scaler(state: State) -> Any:
    return None if state.scaler is None else state.scaler.state_dict()


def _give_scaler(state: State, saved: Any) -> None:
    # The predecessor has it by its class name. One that was not in use has no state.
    value = saved if "scale" in saved else next(iter(saved.values()), None)
    if state.scaler is not None and value:
        state.scaler.load_state_dict(value)


def _take_algorithms(state: State) -> list[tuple[str, Any]]:
    # A list, since their order is that in which they changed the model.
    return _take_each("algorithms", state.algorithms)


def _give_algorithms(state: State, saved: Any) -> None:
    # Methods that were made again by the loading are in the state by now; others may be left out by choice.
    load_each("algorithms", state.algorithms, as_named(saved), warn=False)


def _take_callbacks(state: State) -> dict[str, Any]:
    return by_name(_take_each("callbacks", state.callbacks))


def _give_callbacks(state: State, saved: Any) -> None:
    load_each("callbacks", state.callbacks, as_named(saved), warn=False)


def _take_timestamp(state: State) -> dict[str, Any]:
    return {"Timestamp": timestamp_state(state.timestamp)}


def _give_timestamp(state: State, saved: Any) -> None:
    timestamp = Timestamp()
    timestamp.load_state_dict(saved["Timestamp"])
    state.timestamp = timestamp


def _take_position(state: State) -> dict[str, Any]:
    phase = state.train_phase
    place = phase.resume if phase.iterator is None else None  # loaded, and not taken up yet
    if phase.epoch_iterators is not None and isinstance(phase.iterator, EpochIterator):
        done = int(phase.timestamp.sample_in_epoch)
        place = phase.epoch_iterators.position(phase.iterator, done, sized=phase.length is not None)
    elif (
        phase.epoch_iterators is not None
        and phase.ended is not None
        and phase.epoch_iterators.loader is phase.loader.dataloader
    ):
        place = phase.epoch_iterators.position_after(*phase.ended, sized=phase.length is not None)
    return {"train": place, "eval": {}, "first_batch_rng": dist.all_gather_object(_first_draws(state))}


def _first_draws(state: State) -> dict[str, Any]:
    """The random states before the first batches of this process, by mode and label."""
    phases = {"train": state.train_phase, "eval": state.eval_phase}
    found = {
        mode: {label: first.state for label, first in phase.first_batch_rng.items()} for mode, phase in phases.items()
    }
    return {mode: {label: draws for label, draws in by.items() if draws is not None} for mode, by in found.items()}


def _give_position(state: State, saved: Any) -> None:
    phase = state.train_phase
    phase.iterator = None
    phase.ended = None
    ranks = saved.get("first_batch_rng", [])
    if dist.get_global_rank() < len(ranks):
        mine = ranks[dist.get_global_rank()]
        for one, mode in ((phase, "train"), (state.eval_phase, "eval")):
            for label, draws in mine[mode].items():
                one.first_batch_rng[label].load(draws)
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
        "device_train_microbatch_size": state.microbatch_size,
    }


def _give_metadata(state: State, saved: Any) -> None:
    if state.auto_microbatching:  # begins with what was found; a number that was given stays
        state.microbatch_size = saved.get("device_train_microbatch_size")


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


def timestamp_state(timestamp: Timestamp) -> dict[str, int | float]:
    """Return the state of a timestamp with its clocks in seconds, which ``torch.load(weights_only=True)`` reads.

    Args:
        timestamp: The timestamp.

    >>> timestamp_state(Timestamp(epoch=1))["epoch"], timestamp_state(Timestamp())["total_wct"]
    (1, 0.0)
    """
    amounts = timestamp.state_dict().items()
    return {name: value if isinstance(value, int) else value.total_seconds() for name, value in amounts}
