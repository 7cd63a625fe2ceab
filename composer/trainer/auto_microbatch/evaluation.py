"""Automatic microbatch size for evaluation: split a microbatch that runs out of memory (OOM), and retry it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from composer import rng
from composer._containers import copy_containers
from composer.core.evaluator import Evaluator
from composer.core.microbatch_sizes import MicrobatchSizes, shape_of
from composer.core.types import Batch
from composer.trainer.auto_microbatch.batch_rollback import MetricStates
from composer.trainer.auto_microbatch.out_of_memory import ESTIMATE, free, is_out_of_memory
from composer.trainer.run import Run

__all__ = ["AutoEvaluation", "check_auto_evaluation"]

_log = logging.getLogger(__name__)


class AutoEvaluation:
    """Runs each batch of an evaluator in microbatches that fit into memory.

    A microbatch that runs out of memory is split and retried; earlier microbatches stay counted. Each rank finds its
    size separately.

    Args:
        sizes: The sizes that are known.

    >>> finder = AutoEvaluation(MicrobatchSizes())
    """

    def __init__(self, sizes: MicrobatchSizes) -> None:
        self._sizes = sizes

    def evaluate(self, run: Run, evaluator: Evaluator, samples: int, evaluate_one: Callable[[Batch], None]) -> None:
        """Evaluate on ``state.batch``.

        Args:
            run: The run.
            evaluator: The evaluator of the batch; its ``microbatch_size`` is set to the size that fits.
            samples: Number of samples in the batch.
            evaluate_one: Runs a microbatch through the model and updates the metrics.

        Raises:
            RuntimeError: A single sample does not fit into memory.
        """
        state, spec, sizes = run.state, evaluator.dataloader, self._sizes
        metrics, batch = state.eval_metrics[evaluator.label], state.batch
        shape = shape_of(batch)
        larger = sizes.is_time_to_grow and sizes.has_room(shape, samples)
        size = sizes.choose(shape, samples, larger=larger)
        left = list(spec.__microbatches__(batch, size, samples))
        while left:
            metric_states, generators = MetricStates(metrics), rng.RNGSnapshot()
            error = None
            try:
                evaluate_one(copy_containers(left[0]))
            except Exception as raised:
                if not is_out_of_memory(raised):
                    raise
                error = raised
            if error is None:
                left.pop(0)
                continue
            free(state, error)
            metric_states.restore()
            generators.restore()
            failed = spec.__num_samples__(left[0])
            if failed == 1:
                raise RuntimeError(
                    f"Out of memory with a microbatch of a single sample, in the evaluation on {evaluator.label!r}; "
                    f"batch of shapes {[(samples, *dims) for dims in shape]}. {ESTIMATE}"
                ) from error
            sizes.fail(shape, failed, larger=larger)
            larger, size = False, sizes.choose(shape, failed)
            _log.info("Out of memory with a microbatch of %d samples in an evaluation; retrying with %d.", failed, size)
            left = [smaller for one in left for smaller in spec.split_batch(one, size)]
        sizes.succeed(shape, min(size, samples), larger=larger)
        evaluator.microbatch_size = size


def check_auto_evaluation(run: Run, evaluator: Evaluator) -> None:
    """Raise if automatic microbatching is not possible, since ranks would hang after OOM on one of them.

    Args:
        run: The run.
        evaluator: The evaluator to check.

    Raises:
        ValueError: The forward pass has collectives, which the other ranks would wait in.

    >>> from composer import Engine, State
    >>> engine = Engine(State(model=torch.nn.Linear(1, 1)))
    >>> run = Run(engine.state, engine, engine.logger)
    >>> check_auto_evaluation(
    ...     run, Evaluator(label="test", dataloader=[], device_eval_microbatch_size="auto")
    ... )
    """
    if evaluator.auto_microbatching and run.step_sync is not None and run.strategy.shards_weights:
        raise ValueError(
            f"Evaluator {evaluator.label!r}: device_eval_microbatch_size='auto' does not work with "
            f"{run.strategy.name}: all ranks all-gather parameters in each forward pass, and would hang if one ran out "
            f"of memory. Set it to a number."
        )
