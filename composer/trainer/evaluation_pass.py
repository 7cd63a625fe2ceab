"""Iterate once over evaluation or prediction data, in eval mode without gradients, and restore the state afterwards.

With multiple ranks the data is sharded; ranks with fewer batches (uneven inputs) run dummy batches that do not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
import warnings
from collections.abc import Generator, Iterator
from typing import Any

import torch

from composer import rng
from composer.core.data_sharding import parts_of, samplers_of
from composer.core.data_spec import DataSpec
from composer.core.epoch_iterator import EpochIterator
from composer.core.eval_mode import model_eval_mode
from composer.core.infinite_data import LongEpochWatch, raise_if_infinite
from composer.core.loader_workers import iterate
from composer.core.phase import Phase
from composer.core.timestamp import Timestamp
from composer.core.types import Batch
from composer.core.user_counts import as_tokens
from composer.trainer.batch_loading import load
from composer.trainer.run import Run
from composer.trainer.step_sync import StepSync
from composer.trainer.training_data import training_data_kept
from composer.trainer.uneven_data import END, UnevenInputs
from composer.warnings import ComposerWarning

__all__ = ["EvaluationPass", "evaluation_pass"]

_REMEDY = "Set subset_num_batches (eval_subset_num_batches of the Trainer), the number of batches to use."


class EvaluationPass:
    """Iterator over the batches of an evaluation, the same number on all ranks; created by :func:`evaluation_pass`.

    Args:
        run: The run.
        phase: The active phase.
        loader: The loader to iterate over: that of the phase, or a copy of it.

    Attributes:
        samples: Number of samples in the current batch of this rank, also if it is a dummy.

    >>> from types import SimpleNamespace
    >>> from composer.core import TrainerMode
    >>> EvaluationPass(SimpleNamespace(step_sync=None), Phase(TrainerMode.EVAL)).is_idle
    False
    """

    def __init__(self, run: Run, phase: Phase, loader: Any = None) -> None:
        self._run, self._phase, self._loader = run, phase, loader
        self.samples = self._tokens = 0
        self._step_sync = None if run.step_sync is None else StepSync(run.step_sync.ranks_per_batch)
        self._uneven_inputs = None if self._step_sync is None else UnevenInputs(self._step_sync)

    @property
    def is_idle(self) -> bool:
        """Whether the current batch is a dummy, on a rank whose data has ended (uneven inputs), and does not count."""
        return self._uneven_inputs is not None and self._uneven_inputs.is_idle

    def __iter__(self) -> Iterator[Batch]:
        """Start iterating over the data."""
        run, phase = self._run, self._phase
        spec: DataSpec = phase.loader
        phase.batch_start_time = time.perf_counter()
        iterator = _start(run, spec, self._loader)
        watch = _watch(phase) if phase.length is None else None
        rest = itertools.islice(iterator, phase.length)
        while True:
            batch = next(rest, END)
            if self._uneven_inputs is not None:
                if batch is END:
                    batch = self._uneven_inputs.dummy_batch(lambda: self._send_counts(0, 0, has_batch=False))
                else:
                    self._uneven_inputs.set_batch(batch)
            if batch is END:
                break
            batch = load(batch, spec, run.state.device, run.strategy.batch_dtype, self._record_counts)
            if self._uneven_inputs is not None and not self.is_idle:
                self._send_counts(self.samples, self._tokens)
                self._uneven_inputs.join_first_step()
            yield batch
            phase.batch_start_time = time.perf_counter()
            if watch is not None:
                watch.update(phase.timestamp.batch.value)
        if phase.timestamp.batch.value == 0:
            message = f"The data {phase.label!r} yielded no batches; there are no results: {spec.dataloader!r}."
            warnings.warn(message, ComposerWarning, stacklevel=2)

    def count(self) -> None:
        """Advance the timestamp by the current batch, summed over all ranks."""
        samples, tokens, phase = self.samples, self._tokens, self._phase
        if self._step_sync is not None:
            counts = self._step_sync.counts()
            samples, tokens = counts.samples, counts.tokens
        phase.timestamp = phase.timestamp.to_next_batch(samples, tokens, time.perf_counter() - phase.batch_start_time)
        self._run.state.clock.tick()

    def _record_counts(self, batch: Batch) -> None:
        spec: DataSpec = self._phase.loader
        self.samples, self._tokens = spec.__num_samples__(batch), as_tokens(spec.__tokens__(batch))

    def stop_if_requested(self) -> None:
        """Stop if a signal requested it, on all ranks after the same batch.

        Raises:
            Interrupted: A rank received a signal.
        """
        if self._run.interruption is not None:
            self._run.interruption.check(None if self._step_sync is None else self._step_sync.counts().signum)

    def _send_counts(self, samples: int, tokens: int, *, has_batch: bool = True) -> None:
        assert self._step_sync is not None
        signum = None if self._run.interruption is None else self._run.interruption.signum
        self._step_sync.send_counts(samples, tokens, 0.0, signum, has_batch=has_batch)


@contextlib.contextmanager
def evaluation_pass(run: Run, phase: Phase, spec: DataSpec, label: str, subset: int) -> Generator[EvaluationPass]:
    """Activate a phase, in eval mode without gradients, and yield an iterator over the batches of the data.

    Ranks take turns with the batches of a ``DataLoader``, so each batch is the same as with a single process.

    If replicas train apart (:class:`.Replicas`), the model has the last synchronized weights meanwhile.

    On exit, restores the state's phase, batch, outputs and loss, the mode of each module, the random state, and the
    position in the training data if that is evaluated: training does not depend on how often it is evaluated.
    Checkpoints that are saved meanwhile have the random state and the position from before. Generators that the user
    gave to the loader or its samplers are restored too: each evaluation has the same order, also in a resumed run,
    whose generators begin anew.

    Args:
        run: The run.
        phase: The phase; its timestamp is reset.
        spec: The data.
        label: Label of the data.
        subset: Number of batches; -1 uses all.
    """
    state = run.state
    before = (state.phase, state.batch, state.outputs, state.loss)
    rng_before = state.rng_before_evaluation
    length = spec.__length_of__(state.data_shard, shard_batches=True)
    phase.loader, phase.label, phase.timestamp = spec, label, Timestamp()
    phase.length = length if subset == -1 else min(subset, length or subset)
    if subset == -1:
        raise_if_infinite(f"Iterating over the data {label!r}", spec.dataloader, _REMEDY)
    state.phase = phase
    weights = contextlib.nullcontext() if state.replicas is None else state.replicas.evaluation_weights()
    try:
        state.rng_before_evaluation = rng_before or rng.get_local_rng_state()
        with (
            weights,
            model_eval_mode(state.model),
            rng.preserve_rng_state(),
            _preserved_generators(spec.dataloader),
            training_data_kept(run, spec.dataloader, label) as loader,
            torch.no_grad(),
        ):
            yield EvaluationPass(run, phase, loader)
    finally:
        state.phase, state.batch, state.outputs, state.loss = before
        state.rng_before_evaluation = rng_before
        state.metric_outputs = {}


@contextlib.contextmanager
def _preserved_generators(loader: Any) -> Generator[None]:
    """Restore the generators of a loader, its parts and their samplers at the end."""
    found = [getattr(one, "generator", None) for part in parts_of(loader) for one in (part, *samplers_of(part))]
    before = [(one, one.get_state()) for one in found if isinstance(one, torch.Generator)]
    try:
        yield
    finally:
        for generator, state in before:
            generator.set_state(state)


def _watch(phase: Phase) -> LongEpochWatch:
    """Warn if iterating over data of unknown length takes very long."""
    return LongEpochWatch(
        f"Iterating over the data {phase.label!r} takes very long, and {phase.loader.dataloader!r} has no length. If "
        f"the data is infinite, it never ends. {_REMEDY}"
    )


def _start(run: Run, spec: DataSpec, loader: Any) -> Iterator[Batch]:
    state = run.state
    epoch_iterators = spec.__epoch_iterators__(state.rank_zero_seed, state.data_shard)
    if loader is not spec.dataloader:
        epoch_iterators = dataclasses.replace(epoch_iterators, loader=loader)
    for part in parts_of(loader):
        if callable(follow := getattr(part, "__follow__", None)):
            follow(state, evaluates=True)

    def begin() -> Iterator[Batch]:
        if state.data_shard.size > 1:
            batches = epoch_iterators.begin(epoch=0)
        else:
            if callable(begin_at := getattr(loader, "set_epoch", None)):
                begin_at(0)  # the same samples in each evaluation, as on several ranks
            batches = iterate(loader)
        if state.phase.length is None:
            source = batches.source if isinstance(batches, EpochIterator) else batches
            raise_if_infinite(f"Iterating over the data {state.phase.label!r}", source, _REMEDY)
        return batches

    if not epoch_iterators.can_prefetch:
        return begin()
    first = state.phase.first_batch_rng[str(state.phase.label)]
    first.repeat(spec.dataloader, begin)
    return first.record(spec.dataloader, begin())
