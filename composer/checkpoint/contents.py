"""The table of checkpoint entries: what is saved under each key of ``"state"``, and how it is restored on resume."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from composer import dist, trees
from composer._text import plural
from composer._version import __version__
from composer.checkpoint.added_groups import add_saved_groups
from composer.checkpoint.averaged_losses import get_loss_names, get_new_losses, set_loss_names, set_new_losses
from composer.checkpoint.data_position import get_data_position, set_data_position
from composer.checkpoint.found_microbatch_sizes import get_microbatch_sizes, set_microbatch_sizes
from composer.checkpoint.metric_values import get_metric_values, set_metric_values
from composer.checkpoint.named_states import as_named, by_name, load_each, name_of
from composer.checkpoint.optimizer_states import class_name, optimizer_state, set_optimizer_state
from composer.checkpoint.program import program_of_process
from composer.checkpoint.rank_values import values_of_ranks
from composer.checkpoint.replica_states import gather_replicas, model_state, of_replica, warn_of_other_replicas
from composer.core.timestamp import Timestamp
from composer.ledger.segment import Position
from composer.optim.compiled_schedule import schedule_added_groups
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from torchmetrics import Metric

    from composer.checkpoint.load import ResumeInfo
    from composer.core.state import State

__all__ = ["STATE_ENTRIES", "StateEntry", "timestamp_state"]


@dataclass(frozen=True)
class StateEntry:
    """One entry of a checkpoint, below ``"state"``.

    Attributes:
        name: Its key in the file, below ``"state"``.
        get: Returns the value to save from a state; None leaves the entry out.
        set: Restores a saved value into a state; None if ``load`` handles it. The setter for optimizers also takes
            the names of parameters whose state is not restored, that for replicas the saved algorithms.
        in_weights_only: Whether weights-only checkpoints contain it.
        on_request: Whether it is saved only if requested.

    >>> [entry.name for entry in STATE_ENTRIES if entry.in_weights_only]
    ['model', 'integrations', 'metadata']
    """

    name: str
    get: Callable[[State], Any]
    set: Callable[..., None] | None = None
    in_weights_only: bool = False
    on_request: bool = False


def _get_optimizers(state: State) -> dict[str, Any]:
    # Otherwise it would contain groups with values of which the schedules, saved afterwards, do not know.
    schedule_added_groups(state.schedulers)
    return by_name((class_name(one), optimizer_state(state.model, one)) for one in state.optimizers)


def _set_optimizers(state: State, saved: Any, excluded: Collection[str] = ()) -> None:
    saved = as_named(saved)
    present = by_name((class_name(optimizer), optimizer) for optimizer in state.optimizers)
    if not saved.keys() <= present.keys():
        raise ValueError(
            f"The checkpoint was saved with the optimizers {list(saved)}, but this run has {list(present)}. Pass the "
            f"same optimizers, or skip their state with load_ignore_keys=['state/optimizers*']."
        )
    if missing := [name for name in present if name not in saved]:
        message = f"The checkpoint has no state of the optimizers {missing}; they start without state."
        warnings.warn(message, ComposerWarning, stacklevel=2)
    for name, value in saved.items():
        add_saved_groups(state.model, present[name], value, [one for key, one in present.items() if key != name])
        # Before the values are loaded: a schedule multiplies those of groups that are new to it.
        schedule_added_groups(state.schedulers)
        set_optimizer_state(state.model, present[name], value, excluded)


def _get_each(label: str, present: Sequence[Any]) -> list[tuple[str, Any]]:
    """Return the class name and the state of each object.

    Raises:
        TypeError: A state is not a mapping.
    """
    states: list[tuple[str, Any]] = []
    for one in present:
        name, value = name_of(one), one.state_dict()
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(
                f"{label}: {name}.state_dict() returned {type(value).__qualname__}, but must return a dict. Return "
                f"{{'value': ...}}."
            )
        states.append((name, {} if value is None else value))
    return states


def _get_schedulers(state: State) -> dict[str, Any]:
    loaded: ResumeInfo | None = state.loaded
    if loaded is not None and not state.schedulers:
        return dict(loaded.schedulers)  # for those that are created when training begins
    return by_name(_get_each("schedulers", state.schedulers))


def _set_schedulers(state: State, saved: Any) -> None:
    if state.schedulers:  # otherwise they are created when training begins
        load_each("schedulers", state.schedulers, as_named(saved))


def _get_scaler(state: State) -> Any:
    return None if state.scaler is None else state.scaler.state_dict()


def _set_scaler(state: State, saved: Any) -> None:
    # MosaicML Composer stores it by class name. A gradient scaler that was not in use has no state.
    value = saved if "scale" in saved else next(iter(saved.values()), None)
    if state.scaler is not None and value:
        state.scaler.load_state_dict(value)


def _get_algorithms(state: State) -> list[tuple[str, Any]]:
    # A list, since the order is that in which they changed the model.
    return _get_each("algorithms", state.algorithms)


def _set_algorithms(state: State, saved: Any) -> None:
    # Recreated algorithms are in the state by now; others may be excluded on purpose.
    load_each("algorithms", state.algorithms, as_named(saved), warn=False)


def _get_callbacks(state: State) -> dict[str, Any]:
    return by_name(_get_each("callbacks", state.callbacks))


def _set_callbacks(state: State, saved: Any) -> None:
    load_each("callbacks", state.callbacks, as_named(saved), warn=False)


def _get_replicas(state: State) -> list[dict[str, Any]] | None:
    return gather_replicas(state, _states_of_replica)


def _states_of_replica(state: State) -> dict[str, Any]:
    """Return the states that depend on the gradients of this replica, by the names of their entries."""
    own = [one.replica_size is None for one in state.algorithms]  # the state of the others is that of all replicas
    algorithms = [named for named, differs in zip(_get_algorithms(state), own, strict=True) if differs]
    found = {"optimizers": _get_optimizers(state), "scaler": _get_scaler(state), "algorithms": algorithms}
    return {name: value for name, value in found.items() if value}


def _set_replicas(state: State, saved: Any, algorithms: Any = ()) -> None:
    warn_of_other_replicas(state, saved, algorithms)
    own = of_replica(state, saved, algorithms)
    for name, set_value in (("optimizers", _set_optimizers), ("scaler", _set_scaler), ("algorithms", _set_algorithms)):
        if name in own:
            set_value(state, own[name])
    if "model" in own:
        state.model.load_state_dict(own["model"], strict=False)  # the names were checked with the entry "model"


def _get_timestamp(state: State) -> dict[str, Any]:
    return {"Timestamp": timestamp_state(state.timestamp)}


def _set_timestamp(state: State, saved: Any) -> None:
    timestamp = Timestamp()
    timestamp.load_state_dict(saved["Timestamp"])
    state.timestamp, state.train_phase.extra_batches = timestamp, 0
    state.train_phase.evaluated_at, state.train_phase.evaluators_done = {}, []
    state.train_phase.evaluation_event = state.train_phase.loaded_previous = None
    state.train_phase.metrics_logged_at = None


def _set_stage(state: State, saved: Any) -> None:
    state.train_phase.evaluation_event = saved


def _set_evaluators_done(state: State, saved: Any) -> None:
    state.train_phase.evaluators_done = list(saved)


def _get_previous(state: State) -> dict[str, Any] | None:
    """Return the timestamp before the last step if an evaluation of this step is to follow, whose intervals ask for it.

    Others ask only after a step, which sets it.
    """
    loaded = state.train_phase.loaded_previous
    previous = state.previous_timestamp if loaded is None else loaded
    if state.train_phase.evaluation_event is None or previous is None:
        return None
    return {"Timestamp": timestamp_state(previous)}


def _set_previous(state: State, saved: Any) -> None:
    previous = Timestamp()
    previous.load_state_dict(saved["Timestamp"])
    state.train_phase.loaded_previous = previous


def _get_logged_at(state: State) -> int | None:
    """Return the number of batches if training metrics were logged after the last of them."""
    batch = int(state.timestamp.batch)
    return batch if state.train_phase.metrics_logged_at == batch else None


def _set_logged_at(state: State, saved: Any) -> None:
    state.train_phase.metrics_logged_at = saved


def _get_metrics(state: State) -> dict[str, Any]:
    found = {
        "train": {name: _metric_state(metric) for name, metric in state.train_metrics.items()},
        "eval": {
            label: {name: _metric_state(metric) for name, metric in metrics.items()}
            for label, metrics in state.eval_metrics.items()
        },
    }
    if dist.get_world_size() == 1:
        return found
    # Each rank has counted its shard of the data.
    return {"ranks": values_of_ranks(trees.map_tensors(lambda tensor: tensor.cpu(), found))}


def _set_metrics(state: State, saved: Any) -> None:
    ranks = saved.get("ranks", [saved])
    if len(ranks) != dist.get_world_size():
        message = (
            f"The metrics were saved by {plural(len(ranks), 'rank')}, but there are now "
            f"{plural(dist.get_world_size(), 'rank')}: metrics of the current epoch are reset."
        )
        warnings.warn(message, ComposerWarning, stacklevel=2)
        return
    saved = ranks[dist.get_global_rank()]
    _set_metric_states(state.train_metrics, saved["train"])
    for label, metrics in state.eval_metrics.items():
        _set_metric_states(metrics, saved["eval"].get(label, {}))


def _metric_state(metric: Metric) -> dict[str, Any]:
    return {"count": metric.update_count, "values": dict(metric.metric_state)}


def _set_metric_states(metrics: dict[str, Metric], saved: dict[str, Any]) -> None:
    for name, metric in metrics.items():
        if name in saved:
            device = metric.device
            for key, value in saved[name]["values"].items():
                moved = [v.to(device) for v in value] if isinstance(value, list) else value.to(device)
                setattr(metric, key, moved)
            # As torchmetrics does when it loads a state; a cached value would be outdated.
            metric._update_count = saved[name]["count"]  # pyright: ignore[reportPrivateUsage]
            metric._computed = None  # pyright: ignore[reportPrivateUsage]


def _set_seed(state: State, saved: Any) -> None:
    state.rank_zero_seed = saved


def _continued(state: State) -> ResumeInfo | None:
    """Return the loaded run if its calls of ``fit`` go on (autoresume), until training starts and knows its end."""
    return state.loaded if state.fit_calls and not state.is_fitting else None


def _get_max_duration(state: State) -> str | None:
    if (loaded := _continued(state)) is not None:
        return loaded.max_duration
    return None if state.max_duration is None else str(state.max_duration)


def _get_stop_info(state: State) -> dict[str, Any]:
    stop, planned, loaded = state.stop, state.planned_duration, _continued(state)
    batch, evaluated_at = state.timestamp.batch.value, state.train_phase.evaluated_at
    # Also before the end of training, which may come without another batch: they are not to be evaluated again then.
    evaluated = {label: True for label, at in evaluated_at.items() if at == batch}
    if loaded is not None:
        stop, planned = loaded.stop, loaded.planned_duration
        evaluated |= dict.fromkeys(loaded.unevaluated, False)
    elif state.finished:
        evaluated |= {one.label: False for one in state.evaluators if one.label not in evaluated}
    found: dict[str, Any] = {} if planned is None else {"planned_duration": str(planned)}
    if state.fit_calls:
        found["fit_calls"] = state.fit_calls
    if evaluated:
        found["evaluated"] = evaluated
    return found if stop is None else {**found, "stopped_by": stop.by, "reason": stop.reason}


def _set_evaluated(state: State, saved: Any) -> None:
    batch = int(state.timestamp.batch)
    state.train_phase.evaluated_at = {label: batch for label, is_done in saved.get("evaluated", {}).items() if is_done}


def _get_integrations(state: State) -> dict[str, Any]:
    describe = getattr(state.model, "get_metadata", None)
    return {} if describe is None else {"huggingface": describe()}


def _get_metadata(state: State) -> dict[str, Any]:
    return {
        "composer_version": __version__,
        "torch_version": str(torch.__version__),
        "device": state.device.name,
        "precision": state.precision.value,
        "world_size": dist.get_world_size(),
        "device_train_microbatch_size": state.microbatch_size,
    }


def _set_metadata(state: State, saved: Any) -> None:
    if state.auto_microbatching:  # start from the size that was found; an explicit size is kept
        state.microbatch_size = saved.get("device_train_microbatch_size")


def _set_fingerprint(state: State, saved: Any) -> None:
    state.fingerprint = saved


def _get_position_in_ledger(state: State) -> Any:
    state.clock.exchange()
    return state.clock.position().to_saved()


def _set_position_in_ledger(state: State, saved: Any) -> None:
    state.clock.resumed = Position.of_saved(saved)


def _set_origin(state: State, saved: Any) -> None:
    state.forked_from = saved


# In the order in which they are restored: an entry comes after those that it needs.
STATE_ENTRIES: tuple[StateEntry, ...] = (
    StateEntry("model", model_state, None, in_weights_only=True),  # loading it has further options
    StateEntry("optimizers", _get_optimizers, _set_optimizers),
    StateEntry("schedulers", _get_schedulers, _set_schedulers),
    StateEntry("scaler", _get_scaler, _set_scaler),
    StateEntry("rank_zero_seed", lambda state: state.rank_zero_seed, _set_seed),
    StateEntry("timestamp", _get_timestamp, _set_timestamp),
    StateEntry("dataset_state", get_data_position, set_data_position),
    StateEntry("stage", lambda state: state.train_phase.evaluation_event, _set_stage),
    StateEntry("evaluators_done", lambda state: list(state.train_phase.evaluators_done) or None, _set_evaluators_done),
    StateEntry("previous_timestamp", _get_previous, _set_previous),
    StateEntry("metrics_logged_at", _get_logged_at, _set_logged_at),
    StateEntry("in_step", lambda state: state.train_phase.in_step or None),  # at_step reads it
    StateEntry("algorithms", _get_algorithms, _set_algorithms),
    StateEntry("callbacks", _get_callbacks, _set_callbacks),
    StateEntry("replicas", _get_replicas, _set_replicas),  # once the states of the first replica are restored
    StateEntry("metrics", _get_metrics, _set_metrics, on_request=True),
    StateEntry("metric_values", get_metric_values, set_metric_values),
    StateEntry("max_duration", _get_max_duration),
    StateEntry("ending", _get_stop_info, _set_evaluated),  # run_completion decides whether it still applies
    StateEntry("microbatch_sizes", get_microbatch_sizes, set_microbatch_sizes),
    StateEntry("loss_names", get_loss_names, set_loss_names),
    StateEntry("new_losses", get_new_losses, set_new_losses),
    StateEntry("run_name", lambda state: state.run_name),
    StateEntry("forked_from", lambda state: state.forked_from, _set_origin),
    StateEntry("program", lambda state: program_of_process()),  # of rank 0, which writes it
    StateEntry("fingerprint", lambda state: state.fingerprint, _set_fingerprint),  # likewise
    StateEntry("ledger", _get_position_in_ledger, _set_position_in_ledger),
    StateEntry("integrations", _get_integrations, None, in_weights_only=True),
    StateEntry("metadata", _get_metadata, _set_metadata, in_weights_only=True),
)
"""Every entry below ``"state"``, in the order in which they are loaded; ``save`` adds the top-level ``"rng"``."""


def timestamp_state(timestamp: Timestamp) -> dict[str, int | float]:
    """Return the state of a timestamp with durations in seconds, which ``torch.load(weights_only=True)`` can read.

    Args:
        timestamp: The timestamp.

    >>> timestamp_state(Timestamp(epoch=1))["epoch"], timestamp_state(Timestamp())["total_wct"]
    (1, 0.0)
    """
    amounts = timestamp.state_dict().items()
    return {name: value if isinstance(value, int) else value.total_seconds() for name, value in amounts}
