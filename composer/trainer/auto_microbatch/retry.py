"""Train each batch with an automatic microbatch size: after OOM on any rank, halve the size and retry the batch.

    s_0 = n;    microbatches of s samples ran out of memory on any rank:  s <- ceil(s / 2), retry

A retry starts from the same random state, buffers and metrics, so the result is the same as if the smaller size had
been used from the start. Sizes are cached by batch shape, and larger ones are tried from time to time. The package
docstring has the full protocol.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from composer import dist
from composer._containers import copy_containers
from composer.core.data_spec import DataSpec
from composer.core.microbatch_sizes import TRAIN_SIZES, MicrobatchSizes, Shape, halved, shape_of
from composer.core.types import Batch
from composer.parallel.strategy import SingleProcess
from composer.trainer.auto_microbatch.batch_rollback import BatchRollback
from composer.trainer.auto_microbatch.first_size import estimated_halvings
from composer.trainer.auto_microbatch.out_of_memory import ESTIMATE, free, is_out_of_memory
from composer.trainer.auto_microbatch.undo import ObjectSnapshot
from composer.trainer.microbatch import finish_accumulation, run_microbatches
from composer.trainer.microbatch_weights import reduce_loss_weights
from composer.trainer.run import Run

__all__ = ["AutoMicrobatch", "set_microbatch_size"]

_log = logging.getLogger(__name__)


def set_microbatch_size(run: Run, size: int | str | None) -> None:
    """Set the microbatch size of training.

    Args:
        run: The run.
        size: A number of samples, "auto", or None for the full batch.

    Raises:
        ValueError: "auto" is not possible, since the other ranks would hang after OOM on one of them.
    """
    state = run.state
    state.auto_microbatching = size == "auto"
    if isinstance(size, str):
        _check_supported(run)
        if run.auto_microbatch is None:
            run.auto_microbatch, state.microbatch_size = AutoMicrobatch(run), None
    else:
        run.auto_microbatch, state.microbatch_size = None, size
        state.microbatch_sizes = {name: one for name, one in state.microbatch_sizes.items() if name != TRAIN_SIZES}


class AutoMicrobatch:
    """Trains each batch in microbatches that fit into memory.

    With multiple ranks, a rank that runs out of memory issues the collectives that the other ranks wait in, see
    :meth:`.Strategy.finish_collectives`; then the ranks all-reduce whether one failed, and all continue or all retry.

    Args:
        run: The run.

    >>> from composer import Engine, State
    >>> engine = Engine(State(model=nn.Linear(1, 1)))
    >>> auto = AutoMicrobatch(Run(engine.state, engine, engine.logger))
    """

    def __init__(self, run: Run) -> None:
        self._rollback = BatchRollback(run.state)
        self._sizes: MicrobatchSizes | None = None
        self._has_stepped = False
        # Of the current batch: shape, microbatch size, whether that is a try of a larger size, and whether the
        # gradients are complete, so that the optimizers step.
        self._shape: Shape = ()
        self._size = 0
        self._tries_larger = False
        self._gradients_ready = False

    def train_batch(
        self, run: Run, update: Callable[[Run], None], closure_optimizers: Callable[[Run], Sequence[Optimizer]]
    ) -> None:
        """Update the parameters once; undo and retry an update that runs out of memory.

        The first step allocates the optimizer states, and a larger size leaves less memory for them: before such a
        step, model and optimizers are copied to the host. Later steps need no more memory. With sharded weights (FSDP),
        or with a closure on multiple ranks, nothing is copied, and OOM in the step raises.

        Args:
            run: The run; ``state.batch`` is the batch.
            update: Computes the gradients with :meth:`accumulate_gradients`, and steps.
            closure_optimizers: Returns the optimizers that compute the gradients within their step.
        """
        if self._sizes is None:
            self._begin(run)
        assert self._sizes is not None
        self._tries_larger = self._sizes.room_left and self._sizes.is_time_to_grow
        if (self._tries_larger or not self._has_stepped) and _can_undo(run, closure_optimizers):
            self._update_or_undo(run, update, run.state.batch)
        else:
            update(run)
        self._has_stepped = True
        self._sizes.succeed(self._shape, self._size, larger=self._tries_larger)
        run.logger.enqueue({"trainer/device_train_microbatch_size": run.state.microbatch_size})

    def accumulate_gradients(self, run: Run) -> Tensor:
        """Compute the gradients of the batch, in microbatches that fit into memory; return its loss.

        Args:
            run: The run; ``state.batch`` is the batch, and the gradients are zeroed.

        Raises:
            RuntimeError: A single sample does not fit into memory.
        """
        state, batch = run.state, run.state.batch
        assert self._sizes is not None
        self._gradients_ready = False
        samples = run.samples or _num_samples(run)
        run.strategy.begin_batch()
        self._rollback.save()
        while True:
            self._shape, size, self._sizes.room_left = self._sizes.plan(batch, samples)
            if self._tries_larger:
                size = self._sizes.choose(self._shape, samples, larger=True)
            self._size, state.microbatch_size = size if size < samples else samples, size
            error, losses = None, {}
            try:
                # An algorithm that edits the batch in place and restores it later may have been interrupted.
                state.batch = copy_containers(batch)
                losses = run_microbatches(run)
            except Exception as raised:
                if not is_out_of_memory(raised):
                    raise
                error = raised
            state.batch = batch
            if error is not None:
                free(state, error)
                if run.step_sync is not None:
                    self._finish_collectives(run)
            if error is None and run.step_sync is None:
                break
            if not self._reduce_failure(run, samples, error):
                break
            run.strategy.discard_batch(state)
            for optimizer in state.optimizers:
                optimizer.zero_grad()
            self._rollback.restore()
            self._tries_larger = False
        loss = finish_accumulation(run, losses)
        state.batch = batch
        self._gradients_ready = True
        return loss

    def _begin(self, run: Run) -> None:
        state = run.state
        is_resumed = TRAIN_SIZES in state.microbatch_sizes or state.microbatch_size is not None
        self._sizes = state.microbatch_sizes.setdefault(TRAIN_SIZES, MicrobatchSizes(state.microbatch_size))
        if run.step_sync is not None:
            run.strategy.record_collectives()
            if run.strategy.needs_trial_microbatches:
                self._run_trial_microbatches(run)
        if not is_resumed:
            self._begin_at_estimate(run)

    def _begin_at_estimate(self, run: Run) -> None:
        """Begin at the size that is estimated to fit, on the rank with the least memory."""
        assert self._sizes is not None
        size = samples = self._record_shape(run)
        halvings = estimated_halvings(run, samples)
        if run.step_sync is not None:
            halvings = dist.largest(halvings)
        for _ in range(halvings):
            size = halved(size)
        if size < samples:
            self._sizes.begin(self._shape, size)
            _log.info("The estimate says that microbatches of %d of %d samples fit into memory.", size, samples)

    def _run_trial_microbatches(self, run: Run) -> None:
        """Run two small microbatches to initialize the model, and restore what they changed."""
        state, batch, found = run.state, run.state.batch, run.state.microbatch_size
        spec: DataSpec = state.train_phase.loader
        # BatchNorm needs at least two samples to compute a variance.
        state.microbatch_size = 2 if spec.__num_samples__(batch) >= 4 else 1
        self._rollback.save()
        run_microbatches(run, max_microbatches=2)
        run.strategy.discard_batch(state)
        for optimizer in state.optimizers:
            optimizer.zero_grad()
        self._rollback.restore()
        state.batch, state.microbatch_size = batch, found

    def _finish_collectives(self, run: Run) -> None:
        """Issue the collectives that the other ranks wait in until their last backward pass."""
        if run.microbatches_left is None:
            # It failed before the loss weights were all-reduced, which the other ranks wait for.
            reduce_loss_weights(run, None)
        run.strategy.finish_collectives(run.microbatches_left or 0)

    def _update_or_undo(self, run: Run, update: Callable[[Run], None], batch: Batch) -> None:
        state, samples = run.state, self._record_shape(run)
        self._size = min(self._size or samples, samples)
        before = ObjectSnapshot(
            [state.model, state.optimizers, tuple(state.algorithms), tuple(state.schedulers), state.scaler],
            device=torch.device("cpu"),
        )
        rollback = BatchRollback(state)
        rollback.save()

        def undo() -> None:
            state.batch, run.gradients_ready = batch, False
            before.restore()
            rollback.restore()

        while True:
            error = None
            try:
                update(run)
            except Exception as raised:
                # Before the optimizer step, algorithms may run collectives that the other ranks wait in.
                is_safe = self._gradients_ready or run.step_sync is None
                if isinstance(raised, _SingleSampleOOMError) or not is_safe or not is_out_of_memory(raised):
                    raise
                error = raised
            if error is not None:
                free(state, error)
            try:
                if not self._reduce_failure(run, samples, error):
                    return
            except _SingleSampleOOMError:
                undo()
                raise
            if run.step_sync is not None:
                run.step_sync.averages({})  # drop the pending losses of the undone update
            undo()
            self._tries_larger = False

    def _reduce_failure(self, run: Run, samples: int, error: Exception | None) -> bool:
        """All-reduce whether a size was too large on any rank; if so, record it and free memory on all ranks."""
        assert self._sizes is not None
        failed = 0 if error is None else 1 if self._size > 1 else 2
        room = int(self._sizes.has_room(self._shape, samples))
        if run.step_sync is not None:
            reduced = torch.tensor([failed, room])
            dist.all_reduce(reduced, "MAX")  # on the host: no device synchronization
            failed, room = reduced.tolist()
        self._sizes.room_left = bool(room)
        if not failed:
            return False
        if failed == 2:
            where = "" if run.step_sync is None else " on one of the ranks"
            raise _SingleSampleOOMError(
                f"Out of memory{where} with a microbatch of a single sample; batch of shapes "
                f"{[(samples, *dims) for dims in self._shape]}. Use smaller inputs, a smaller model, activation "
                f"checkpointing, or FSDP to shard the parameters. {ESTIMATE}"
            ) from error
        self._sizes.fail(self._shape, self._size, larger=self._tries_larger)
        _log.info("Out of memory with a microbatch of %d samples; retrying the batch with fewer.", self._size)
        if error is None:
            free(run.state, None)
        return True

    def _record_shape(self, run: Run) -> int:
        """Record the shape of the batch; return its number of samples."""
        self._shape = shape_of(run.state.batch)
        return run.samples or _num_samples(run)


class _SingleSampleOOMError(RuntimeError):
    """A microbatch of a single sample does not fit into memory."""


def _num_samples(run: Run) -> int:
    """Count the samples of a dummy batch (uneven inputs)."""
    return run.state.train_phase.loader.__num_samples__(run.state.batch)


def _can_undo(run: Run, closure_optimizers: Callable[[Run], Sequence[Optimizer]]) -> bool:
    """Return whether model and optimizers can be restored after OOM in the step of an optimizer."""
    # With collectives inside the step, the other ranks would hang if one left it.
    return not run.strategy.shards_weights and (run.step_sync is None or not closure_optimizers(run))


def _check_supported(run: Run) -> None:
    """Raise if the other ranks could hang after OOM on one of them."""
    strategy = run.strategy
    if isinstance(strategy, SingleProcess):
        return
    what = "device_train_microbatch_size='auto'"
    if not strategy.can_finish_collectives:
        raise ValueError(
            f"{what} does not work with {strategy.name} as configured here: it runs collectives within the forward and "
            f"backward passes, and the other ranks would hang if one ran out of memory. Set it to a number."
        )
    waiting = {type(module).__name__ for module in run.state.model.modules() if isinstance(module, nn.SyncBatchNorm)}
    if waiting and run.step_sync is not None:
        raise ValueError(
            f"{what} does not work with {', '.join(sorted(waiting))}, which runs collectives within the forward pass. "
            f"Set it to a number, or use BatchNorm."
        )
