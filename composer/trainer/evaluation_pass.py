"""One pass over data without training on it."""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from collections.abc import Generator, Iterator

import torch

from composer import rng
from composer.core.data_spec import DataSpec
from composer.core.epoch_iterator import EpochIterator
from composer.core.infinite_data import LongEpochWatch, refuse_endless
from composer.core.loader_workers import iterate
from composer.core.phase import Phase
from composer.core.timestamp import Timestamp
from composer.core.types import Batch
from composer.core.user_counts import as_tokens
from composer.trainer.batch_loading import load
from composer.trainer.eval_mode import model_eval_mode
from composer.trainer.run import Run
from composer.trainer.step_sync import StepSync
from composer.trainer.uneven_data import END, UnevenInputs
from composer.warnings import ComposerWarning

__all__ = ["EvaluationPass", "evaluation_pass"]

_REMEDY = "Give subset_num_batches (eval_subset_num_batches of the Trainer), the number of batches of a pass."


class EvaluationPass:
    """The batches of a pass, the same number for all processes; made by :func:`evaluation_pass`.

    Args:
        run: The run.
        phase: The active phase.

    Attributes:
        samples: Number of samples of the batch in work, of this process, also of one that is not to count.

    >>> from types import SimpleNamespace
    >>> from composer.core import TrainerMode
    >>> EvaluationPass(SimpleNamespace(step_sync=None), Phase(TrainerMode.EVAL)).is_idle
    False
    """

    def __init__(self, run: Run, phase: Phase) -> None:
        self._run, self._phase = run, phase
        self.samples = self._tokens = 0
        self._step_sync = None if run.step_sync is None else StepSync(run.step_sync.copies)
        self._uneven_inputs = None if self._step_sync is None else UnevenInputs(self._step_sync)

    @property
    def is_idle(self) -> bool:
        """Whether the batch is one that keeps step with other processes, and is not to count."""
        return self._uneven_inputs is not None and self._uneven_inputs.is_idle

    def __iter__(self) -> Iterator[Batch]:
        """Begin the pass."""
        run, phase = self._run, self._phase
        spec: DataSpec = phase.loader
        phase.mark = time.perf_counter()
        pass_under_way = _begin(run, spec)
        watch = _watch(phase) if phase.length is None else None
        rest = itertools.islice(pass_under_way, phase.length)
        while True:
            batch = next(rest, END)
            if self._uneven_inputs is not None:
                if batch is END:
                    batch = self._uneven_inputs.substitute(lambda: self._tell(0, 0, has_batch=False))
                else:
                    self._uneven_inputs.keep(batch)
            if batch is END:
                break
            batch = load(batch, spec, run.state.device, run.strategy.batch_dtype, self._note_counts)
            if self._uneven_inputs is not None and not self.is_idle:
                self._tell(self.samples, self._tokens)
                self._uneven_inputs.meet()
            yield batch
            phase.mark = time.perf_counter()
            if watch is not None:
                watch.look(phase.timestamp.batch.value)
        if phase.timestamp.batch.value == 0:
            message = f"The data {phase.label!r} yielded no batch, so there is nothing to report: {spec.dataloader!r}."
            warnings.warn(message, ComposerWarning, stacklevel=2)

    def count(self) -> None:
        """Count the batch in work, that of all processes where there are several."""
        samples, tokens, phase = self.samples, self._tokens, self._phase
        if self._step_sync is not None:
            told = self._step_sync.counts()
            samples, tokens = told.samples, told.tokens
        phase.timestamp = phase.timestamp.to_next_batch(samples, tokens, time.perf_counter() - phase.mark)

    def _note_counts(self, batch: Batch) -> None:
        spec: DataSpec = self._phase.loader
        self.samples, self._tokens = spec.__num_samples__(batch), as_tokens(spec.__tokens__(batch))

    def stop_if_requested(self) -> None:
        """Leave where a signal asks to stop, in all processes after the same batch.

        Raises:
            Interrupted: One does.
        """
        if self._run.interruption is not None:
            self._run.interruption.check(None if self._step_sync is None else self._step_sync.counts().signum)

    def _tell(self, samples: int, tokens: int, *, has_batch: bool = True) -> None:
        assert self._step_sync is not None
        signum = None if self._run.interruption is None else self._run.interruption.signum
        self._step_sync.send_counts(samples, tokens, 0.0, signum, has_batch=has_batch)


@contextlib.contextmanager
def evaluation_pass(run: Run, phase: Phase, spec: DataSpec, label: str, subset: int) -> Generator[EvaluationPass]:
    """Make a phase active, the model evaluate and gradients not be recorded; give the batches of the data.

    Several processes take the batches of a ``DataLoader`` in turn, so each batch is as a single process would have it.

    Afterwards the state's phase, batch, outputs and loss, the mode of each module and the random generators are what
    they were, so that training does not depend on how often it is evaluated.

    Args:
        run: The run.
        phase: The phase; its timestamp begins anew.
        spec: The data.
        label: Name of the data.
        subset: Number of batches; -1 is all.
    """
    state = run.state
    before = (state.phase, state.batch, state.outputs, state.loss)
    length = spec.__length_of__(state.data_shard, shard_batches=True)
    phase.loader, phase.label, phase.timestamp = spec, label, Timestamp()
    phase.length = length if subset == -1 else min(subset, length or subset)
    if subset == -1:
        refuse_endless(f"A pass over the data {label!r}", spec.dataloader, _REMEDY)
    state.phase = phase
    try:
        with model_eval_mode(state.model), rng.preserve_rng_state(), torch.no_grad():
            yield EvaluationPass(run, phase)
    finally:
        state.phase, state.batch, state.outputs, state.loss = before
        state.metric_outputs = {}


def _watch(phase: Phase) -> LongEpochWatch:
    """Watch an iteration of which it cannot be known whether it has an end."""
    return LongEpochWatch(
        f"A pass over the data {phase.label!r} has become very long, and {phase.loader.dataloader!r} has no length. If "
        f"it yields without end, the pass never ends. {_REMEDY}"
    )


def _begin(run: Run, spec: DataSpec) -> Iterator[Batch]:
    state, loader = run.state, spec.dataloader
    passes = spec.__epoch_iterators__(state.rank_zero_seed, state.data_shard)

    def begin() -> Iterator[Batch]:
        batches = iterate(loader) if state.data_shard.size == 1 else passes.begin(epoch=0)
        if state.phase.length is None:
            source = batches.source if isinstance(batches, EpochIterator) else batches
            refuse_endless(f"A pass over the data {state.phase.label!r}", source, _REMEDY)
        return batches

    if not passes.can_prefetch:
        return begin()
    first = state.phase.first_batch_rng[str(state.phase.label)]
    first.repeat(loader, begin)
    return first.noting(loader, begin())
