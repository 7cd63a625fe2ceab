"""Finding, while training, how many samples can go through the model at once.

    s_0 = n;    a step of microbatches of s samples ran out of memory, in any process:  s <- ceil(s / 2), and again

A batch that did not fit is trained again from its beginning: same random numbers, same buffers, same metrics, so that
the run is the one that the smaller size would have been from the start. The sizes are kept by shape of the batch, and
larger ones are tried now and then.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from composer import dist
from composer.core.data_spec import DataSpec
from composer.core.time import TimeUnit
from composer.core.types import Batch
from composer.parallel.strategy import SingleProcess
from composer.trainer.auto_microbatch.batch_rollback import Replay
from composer.trainer.auto_microbatch.out_of_memory import free, is_out_of_memory
from composer.trainer.auto_microbatch.sizes import MicrobatchSizes, Shape, shape_of
from composer.trainer.auto_microbatch.undo import Snapshot
from composer.trainer.microbatch import conclude, run_microbatches
from composer.trainer.microbatch_weights import reduce_loss_weights
from composer.trainer.run import Run

__all__ = ["AutoMicrobatch", "set_microbatch_size"]

_log = logging.getLogger(__name__)


def set_microbatch_size(run: Run, size: int | str | None) -> None:
    """Set how many samples go through the model at once.

    Args:
        run: The run.
        size: A number, "auto", or None for the whole batch.

    Raises:
        ValueError: "auto" is asked for, where a process that runs out of memory would leave the others waiting.
    """
    state = run.state
    state.auto_microbatching = size == "auto"
    if isinstance(size, str):
        _check(run)
        if run.auto is None:
            run.auto, state.microbatch_size = AutoMicrobatch(run), None
    else:
        run.auto, state.microbatch_size = None, size


class AutoMicrobatch:
    """Trains each batch in microbatches that fit into memory.

    In distributed training, a rank that runs out of memory completes the collectives that the others are waiting in,
    see :meth:`.Strategy.finish_collectives`; then the ranks exchange their outcomes, and all continue or all retry.

    Args:
        run: The run.

    >>> from composer import Engine, State
    >>> engine = Engine(State(model=nn.Linear(1, 1)))
    >>> auto = AutoMicrobatch(Run(engine.state, engine, engine.logger))
    """

    def __init__(self, run: Run) -> None:
        self._replay = Replay(run.state)
        self._sizes: MicrobatchSizes | None = None
        self._has_stepped = False
        # Of the batch in work: shape, samples of a microbatch, whether that is a try of a larger size, and whether the
        # gradients are there and the optimizers step.
        self._shape: Shape = ()
        self._size = 0
        self._larger = False
        self._steps = False
        # Whether there was a larger size to try in the last batch, in any process.
        self._has_room = False

    def train_batch(self, run: Run, update: Callable[[Run], None], *, uses_closure: bool) -> None:
        """Update the parameters once; an update that ran out of memory is undone and done again.

        The first step makes the state of the optimizers, and a larger size leaves less for them: before those steps
        what they change is copied to the host. Later ones need no more than those did.

        Args:
            run: The run; ``state.batch`` is the batch.
            update: Computes the gradients by :meth:`accumulate_gradients`, and steps.
            uses_closure: Whether the gradients are computed within the step of an optimizer.
        """
        if self._sizes is None:
            self._begin(run)
        assert self._sizes is not None
        state, batch = run.state, run.state.batch
        self._larger = self._has_room and self._sizes.is_time_to_grow
        # With collectives within the step, a process that leaves it would leave the others waiting.
        can_undo = not run.strategy.shards_weights and (run.step_sync is None or not uses_closure)
        if can_undo and (self._larger or not self._has_stepped):
            self._update_or_undo(run, update, batch)
        else:
            update(run)
        self._has_stepped = True
        self._sizes.hold(self._shape, self._size, larger=self._larger)
        if run.logger.destinations:
            step = state.timestamp.count(TimeUnit.BATCH)
            run.logger.enqueue({"trainer/device_train_microbatch_size": state.microbatch_size}, step)

    def accumulate_gradients(self, run: Run) -> Tensor:
        """Compute the gradients of the batch, in microbatches that fit; return its loss.

        Args:
            run: The run; ``state.batch`` is the batch, and the gradients are those of no batch.

        Raises:
            RuntimeError: A single sample does not fit.
        """
        state, batch = run.state, run.state.batch
        assert self._sizes is not None
        self._steps = False
        samples = self._look_at(run)
        run.strategy.begin_batch()
        self._replay.note()
        while True:
            size = self._sizes.choose(self._shape, samples, larger=self._larger)
            self._size, state.microbatch_size = min(size, samples), size
            error, losses = None, {}
            try:
                # A method may edit the batch in place, and put it back when it is done, to which it did not come.
                state.batch = batch if isinstance(batch, Tensor) else copy.copy(batch)
                losses = run_microbatches(run)
            except Exception as raised:
                if not is_out_of_memory(raised):
                    raise
                error = raised
            state.batch = batch
            if error is not None:
                free(state, error)
                if run.step_sync is not None:
                    self._catch_up(run)
            if not self._agree(run, samples, error):
                break
            run.strategy.discard_batch(state)
            for optimizer in state.optimizers:
                optimizer.zero_grad()
            self._replay.restore()
            self._larger = False
        loss = conclude(run, losses)
        state.batch = batch
        self._steps = True
        return loss

    def _begin(self, run: Run) -> None:
        self._sizes = MicrobatchSizes(run.state.microbatch_size)
        if run.step_sync is not None:
            run.strategy.record_collectives()
            if run.strategy.needs_trial_microbatches:
                self._rehearse(run)

    def _rehearse(self, run: Run) -> None:
        """Run two small microbatches of the batch through the model, and forget what they did."""
        state, batch, found = run.state, run.state.batch, run.state.microbatch_size
        spec: DataSpec = state.train_phase.loader
        # Of a single sample there is no variance to normalise by.
        state.microbatch_size = 2 if spec.__num_samples__(batch) >= 4 else 1
        self._replay.note()
        run_microbatches(run, most=2)
        run.strategy.discard_batch(state)
        for optimizer in state.optimizers:
            optimizer.zero_grad()
        self._replay.restore()
        state.batch, state.microbatch_size = batch, found

    def _catch_up(self, run: Run) -> None:
        """Take part in what the others wait for until their last backward pass."""
        if run.microbatches_left is None:
            # It failed before it knew its microbatches, which the others hear of before they begin theirs.
            reduce_loss_weights(run, None)
        run.strategy.finish_collectives(run.microbatches_left or 0)

    def _update_or_undo(self, run: Run, update: Callable[[Run], None], batch: Batch) -> None:
        state, samples = run.state, self._look_at(run)
        self._size = min(self._size or samples, samples)
        before = Snapshot(
            [state.model, state.optimizers, tuple(state.algorithms), state.scaler], device=torch.device("cpu")
        )
        replay = Replay(state)
        replay.note()

        def undo() -> None:
            state.batch, run.steps = batch, False
            before.restore()
            replay.restore()

        while True:
            error = None
            try:
                update(run)
            except Exception as raised:
                # Before the step there may be collectives, of methods, that the others wait in.
                is_safe = self._steps or run.step_sync is None
                if isinstance(raised, _NothingFitsError) or not is_safe or not is_out_of_memory(raised):
                    raise
                error = raised
            if error is not None:
                free(state, error)
            try:
                if not self._agree(run, samples, error):
                    return
            except _NothingFitsError:
                undo()
                raise
            if run.step_sync is not None:
                run.step_sync.averages({})  # those on their way are of an update that is undone
            undo()
            self._larger = False

    def _agree(self, run: Run, samples: int, error: Exception | None) -> bool:
        """Tell whether a size was too large in any process, in which case all note it and free what they hold."""
        assert self._sizes is not None
        failed = 0 if error is None else 1 if self._size > 1 else 2
        room = int(self._sizes.has_room(self._shape, samples))
        if run.step_sync is not None:
            told = torch.tensor([failed, room])
            dist.all_reduce(told, "MAX")  # on the host: no device waits for it
            failed, room = told.tolist()
        self._has_room = bool(room)
        if not failed:
            return False
        if failed == 2:
            where = "" if run.step_sync is None else " in one of the processes"
            raise _NothingFitsError(
                f"Out of memory{where} with a single sample going through the model at once; batch of shapes "
                f"{[(samples, *part) for part in self._shape]}. Smaller inputs, a smaller model, recomputation of "
                f"activations or weights divided among processes need less."
            ) from error
        self._sizes.fail(self._shape, self._size, larger=self._larger)
        _log.info("Out of memory with %d samples at once; the batch is trained again with fewer.", self._size)
        if error is None:
            free(run.state, None)
        return True

    def _look_at(self, run: Run) -> int:
        """Note the shape of the batch; return its number of samples, also of one that only keeps step with others."""
        self._shape = shape_of(run.state.batch)
        return run.samples or run.state.train_phase.loader.__num_samples__(run.state.batch)


class _NothingFitsError(RuntimeError):
    """Not even one sample fits into memory."""


def _check(run: Run) -> None:
    """Refuse what could leave processes waiting for one that has run out of memory."""
    strategy = run.strategy
    if isinstance(strategy, SingleProcess):
        return
    what = "device_train_microbatch_size='auto'"
    if not strategy.can_finish_collectives:
        raise ValueError(
            f"{what} does not work with {strategy.name} as it is configured here: its processes wait for each other "
            f"within the passes, and the others would wait for one that has run out of memory. Give a number."
        )
    waiting = {type(module).__name__ for module in run.state.model.modules() if isinstance(module, nn.SyncBatchNorm)}
    if waiting and run.step_sync is not None:
        raise ValueError(
            f"{what} does not work with {', '.join(sorted(waiting))}, which waits for the other processes within the "
            f"forward pass. Give a number, or use BatchNorm."
        )
