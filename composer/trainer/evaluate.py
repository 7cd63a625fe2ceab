"""Evaluating a model while it trains and on request."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any, cast

from composer.core.evaluator import Evaluator
from composer.core.event import Event
from composer.core.model import ComposerModel
from composer.core.time import TimeUnit
from composer.trainer.metrics import named_values, place
from composer.trainer.passes import count_batch, one_pass
from composer.trainer.run import Run
from composer.trainer.schedules import observe_evaluation

__all__ = ["evaluate", "evaluate_if_due"]


def evaluate_if_due(run: Run, event: Event) -> None:
    """Run the evaluators whose interval says so; their time does not count as training time.

    Args:
        run: The run.
        event: The event that fired last, or ``FIT_END`` before the training ends.
    """
    state, fire = run.state, run.engine.run_event
    if not state.evaluators:
        return
    due = [e for e in state.evaluators if e.eval_interval is not None and e.eval_interval(state, event)]
    if not due:
        return
    state.train_phase.stage = event.value
    fire(Event.EVAL_BEFORE_ALL)
    for evaluator in due:
        evaluate(run, evaluator)
    fire(Event.EVAL_AFTER_ALL)
    state.train_phase.stage = None
    observe_evaluation(run, [evaluator.label for evaluator in due])
    state.train_phase.mark = time.perf_counter()


def evaluate(run: Run, evaluator: Evaluator, subset_num_batches: int | None = None, *, log: bool = True) -> None:
    """Run the model over an evaluator's data and log its metrics.

    The state's phase, batch and outputs, and the mode of each module, are what they were when it returns.

    Args:
        run: The run.
        evaluator: The data and the names of the metrics.
        subset_num_batches: Number of batches, instead of the evaluator's own; -1 is all.
        log: Whether the metrics are logged.
    """
    state, fire = run.state, run.engine.run_event
    metrics = state.eval_metrics[evaluator.label]
    place(metrics, state)
    for metric in metrics.values():
        metric.reset()

    subset = next((n for n in (subset_num_batches, evaluator.subset_num_batches) if n is not None), -1)
    with one_pass(run, state.eval_phase, evaluator.dataloader, evaluator.label, subset) as batches:
        fire(Event.EVAL_START)
        for state.batch in batches:
            fire(Event.EVAL_BATCH_START)
            samples = _evaluate_batch(run, evaluator)
            count_batch(state.eval_phase, samples)
            fire(Event.EVAL_BATCH_END)
            if run.interruption is not None:
                run.interruption.check_alone()
        values: dict[str, Any] = {}
        for name, metric in metrics.items():
            if metric.update_called:
                values.update(named_values(f"metrics/{evaluator.label}/{name}", metric.compute()))
        if values and log:
            run.logger.enqueue(values)
            if run.summary is not None:
                run.summary.note(run.state.timestamp.count(TimeUnit.BATCH), values)
        fire(Event.EVAL_END)


def _evaluate_batch(run: Run, evaluator: Evaluator) -> int:
    """Run one batch through the model and the metrics; return its number of samples."""
    state, fire, spec = run.state, run.engine.run_event, evaluator.dataloader
    model = cast(ComposerModel, state.model)
    samples = spec.get_num_samples_in_batch(state.batch)
    size = evaluator.device_eval_microbatch_size
    microbatches = [state.batch] if size is None or size >= samples else spec.split_batch(state.batch, size)
    for microbatch in microbatches:
        state.batch = microbatch
        if spec.microbatch_transforms is not None:
            state.batch = spec.microbatch_transforms(state.batch)
        with nullcontext() if run.autocast is None else run.autocast():
            fire(Event.EVAL_BEFORE_FORWARD)
            state.outputs = model.eval_forward(state.batch)
            fire(Event.EVAL_AFTER_FORWARD)
            for metric in state.eval_metrics[evaluator.label].values():
                state.metric_outputs = model.update_metric(state.batch, state.outputs, metric)
    return samples
