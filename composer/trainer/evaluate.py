"""The evaluation loop: run the evaluators that are due during training, or on request, and log their metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

from composer.core.data_sharding import check_sharded_data
from composer.core.evaluator import Evaluator
from composer.core.event import Event
from composer.core.interval import IntervalSchedule
from composer.core.microbatch_sizes import MicrobatchSizes, eval_sizes
from composer.core.model import ComposerModel
from composer.core.state import State
from composer.core.time import TimeUnit
from composer.core.types import Batch
from composer.ledger.category import Category
from composer.parallel.buffer_sync import sync_buffers
from composer.trainer.auto_microbatch.evaluation import AutoEvaluation, check_auto_evaluation
from composer.trainer.evaluation_pass import evaluation_pass
from composer.trainer.microbatch import pad_microbatches
from composer.trainer.outputs import clone_reused_outputs, free_outputs
from composer.trainer.run import Run
from composer.trainer.schedules import observe_evaluation
from composer.trainer.train_metrics import (
    compute_across_ranks,
    describe_arrays,
    metrics_of,
    move_metrics,
    named_values,
    to_metrics_device,
)

__all__ = ["due_evaluators", "evaluate", "evaluate_if_due", "set_eval_metrics"]


def due_evaluators(state: State, event: Event) -> list[Evaluator]:
    """Return the evaluators whose interval is due.

    Args:
        state: The state of the run.
        event: The event that fired last, or ``FIT_END`` before training ends.

    >>> from composer.core import State
    >>> due_evaluators(State(model=torch.nn.Linear(1, 1)), Event.FIT_END)
    []
    """
    due: list[Evaluator] = []
    batch, evaluated_at = state.timestamp.count(TimeUnit.BATCH), state.train_phase.evaluated_at
    for evaluator in state.evaluators:
        if evaluator.eval_interval is None:  # added to the state by a script
            evaluator.eval_interval = 1
        interval = cast("Callable[..., bool]", evaluator.eval_interval)
        # An interval does not know of an evaluation of this batch before the run was resumed.
        is_known = event is Event.FIT_END and isinstance(interval, IntervalSchedule)
        if interval(state, event) and not (is_known and evaluated_at.get(evaluator.label) == batch):
            due.append(evaluator)
    return due


def evaluate_if_due(run: Run, event: Event) -> None:
    """Run the evaluators whose interval is due; evaluation does not count as training time.

    If this evaluation was interrupted, in this process or before the run was resumed, those that had completed are not
    run again: their metrics are logged already, and callbacks have counted them.

    Args:
        run: The run.
        event: The event that fired last, or ``FIT_END`` before training ends.
    """
    state, fire, phase = run.state, run.engine.run_event, run.state.train_phase
    if not state.evaluators or not (due := due_evaluators(state, event)):
        phase.evaluation_event, phase.evaluators_done = None, []
        return
    phase.evaluation_event = event.value
    done = [label for label in phase.evaluators_done if _has_values(state, label)]
    with state.clock.during(Category.EVALUATION):
        fire(Event.EVAL_BEFORE_ALL)
        for evaluator in due:
            if evaluator.label not in done:
                evaluate(run, evaluator)
                phase.evaluators_done.append(evaluator.label)
            phase.evaluated_at[evaluator.label] = state.timestamp.count(TimeUnit.BATCH)
        fire(Event.EVAL_AFTER_ALL)
    phase.evaluation_event, phase.evaluators_done = None, []
    observe_evaluation(run, [evaluator.label for evaluator in due])
    phase.batch_start_time = time.perf_counter()


def _has_values(state: State, label: str) -> bool:
    """Return whether the values of an evaluator are known, for schedules and checkpoints that read its metrics."""
    metrics, values = state.eval_metrics.get(label, {}), state.eval_values.get(label)
    return values is not None and all(name in values and metric.update_called for name, metric in metrics.items())


def evaluate(run: Run, evaluator: Evaluator, subset_num_batches: int | None = None, *, log: bool = True) -> None:
    """Run the model over an evaluator's data and log its metrics.

    Restores the state's phase, batch, outputs and loss, and the mode of each module, when it returns.

    Args:
        run: The run.
        evaluator: The data and the names of the metrics.
        subset_num_batches: Number of batches, instead of the evaluator's setting; -1 uses all.
        log: Whether to log the metrics.
    """
    state, fire = run.state, run.engine.run_event
    check_auto_evaluation(run, evaluator)
    if evaluator.label not in state.eval_metrics:  # added to the state by a script
        set_eval_metrics(state, evaluator)
    metrics = state.eval_metrics[evaluator.label]
    move_metrics(metrics, state)
    for metric in metrics.values():
        metric.reset()

    subset = next((n for n in (subset_num_batches, evaluator.subset_num_batches) if n is not None), -1)
    with evaluation_pass(run, state.eval_phase, evaluator.dataloader, evaluator.label, subset) as batches:
        fire(Event.EVAL_START)
        sync_buffers(state.model)
        for state.batch in batches:
            fire(Event.EVAL_BATCH_START)
            _evaluate_batch(run, evaluator, batches.samples, counts=not batches.is_idle)
            batches.count()
            fire(Event.EVAL_BATCH_END)
            batches.stop_if_requested()
        values: dict[str, Any] = {}
        found = compute_across_ranks(metrics, run.strategy.data_group)
        state.eval_values[evaluator.label] = found
        state.evaluations += 1
        for name, value in found.items():
            named = named_values(f"metrics/{evaluator.label}/{name}", value)
            if log:
                describe_arrays(run, named, metrics[name], evaluator.dataloader)
            values.update(named)
        size = evaluator.microbatch_size
        if log and evaluator.auto_microbatching and size is not None:
            run.logger.enqueue({f"trainer/{evaluator.label}/device_eval_microbatch_size": size})
        if values and log:
            run.logger.enqueue(values, as_numbers=False)
            if run.summary is not None:
                run.summary.record(run.state.timestamp.count(TimeUnit.BATCH), values)
        if log:
            run.logger.log_event("evaluation", evaluator.label)
        fire(Event.EVAL_END)


def set_eval_metrics(state: State, evaluator: Evaluator) -> None:
    """Give an evaluator separate copies of the model's metrics.

    Args:
        state: The state.
        evaluator: The evaluator.
    """
    check_sharded_data(evaluator.dataloader.dataloader, state.data_shard, "eval_dataloader")
    metrics = metrics_of(cast(ComposerModel, state.model), is_train=False)
    state.eval_metrics[evaluator.label] = move_metrics(evaluator.__select__(metrics), state)
    # Replaced, not updated in place: on failure the old mapping is restored.
    state.eval_values = {label: values for label, values in state.eval_values.items() if label != evaluator.label}


def _evaluate_batch(run: Run, evaluator: Evaluator, samples: int, *, counts: bool) -> None:
    """Run one batch through the model and the metrics."""
    state, spec = run.state, evaluator.dataloader
    if evaluator.auto_microbatching:
        sizes = state.microbatch_sizes.setdefault(eval_sizes(evaluator.label), MicrobatchSizes())

        def evaluate_one(microbatch: Batch) -> None:
            _evaluate_microbatch(run, evaluator, microbatch, counts=counts)

        AutoEvaluation(sizes).evaluate(run, evaluator, samples, evaluate_one)
        return
    size = evaluator.microbatch_size
    microbatches = spec.__microbatches__(state.batch, size, samples)
    number_of_microbatches = len(microbatches)
    if (
        run.step_sync is not None
        and run.strategy.has_collectives_per_microbatch
        and (size is not None or spec.__splits_itself__)
    ):
        microbatches = pad_microbatches(microbatches)
    for number, microbatch in enumerate(microbatches):
        _evaluate_microbatch(run, evaluator, microbatch, counts=counts and number < number_of_microbatches)


def _evaluate_microbatch(run: Run, evaluator: Evaluator, microbatch: Batch, *, counts: bool) -> None:
    """Run a microbatch through the model, and update the metrics unless it is a dummy for uneven inputs."""
    state, fire, spec = run.state, run.engine.run_event, evaluator.dataloader
    model = cast(ComposerModel, state.model)
    free_outputs(state)  # before the new ones are allocated
    state.batch = microbatch if spec.microbatch_transforms is None else spec.microbatch_transforms(microbatch)
    with nullcontext() if run.autocast is None else run.autocast():
        fire(Event.EVAL_BEFORE_FORWARD)
        state.outputs = model.eval_forward(state.batch)
        clone_reused_outputs(run)
        fire(Event.EVAL_AFTER_FORWARD)
        metrics = state.eval_metrics[evaluator.label] if counts else {}
        if metrics:
            batch, outputs = to_metrics_device(state, state.batch, state.outputs)
            for metric in metrics.values():
                state.metric_outputs = model.update_metric(batch, outputs, metric) or {}
