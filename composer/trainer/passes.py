"""One pass over data without training on it."""

from __future__ import annotations

import contextlib
import itertools
import time
import warnings
from collections.abc import Generator, Iterator

import torch

from composer import rng
from composer.core.data import DataSpec
from composer.core.phase import Phase
from composer.core.timestamp import Timestamp
from composer.core.types import Batch
from composer.core.workers import iterate
from composer.trainer.loaders import load
from composer.trainer.modes import eval_mode
from composer.trainer.run import Run
from composer.warnings import ComposerWarning

__all__ = ["count_batch", "one_pass"]


@contextlib.contextmanager
def one_pass(run: Run, phase: Phase, spec: DataSpec, label: str, subset: int) -> Generator[Iterator[Batch]]:
    """Make a phase active, the model evaluate and gradients not be recorded; give the batches of the data.

    Afterwards the state's phase, batch and outputs, the mode of each module and the random generators are what they
    were, so that training does not depend on how often it is evaluated.

    Args:
        run: The run.
        phase: The phase; its timestamp begins anew.
        spec: The data.
        label: Name of the data.
        subset: Number of batches; -1 is all.
    """
    state = run.state
    before = (state.phase, state.batch, state.outputs)
    phase.loader, phase.label, phase.timestamp = spec, label, Timestamp()
    phase.length = spec.length if subset == -1 else min(subset, spec.length or subset)
    state.phase = phase
    try:
        with eval_mode(state.model), rng.preserved(), torch.no_grad():
            yield _batches(run, phase)
    finally:
        state.phase, state.batch, state.outputs = before


def count_batch(phase: Phase, samples: int) -> None:
    """Count a batch of a pass.

    Args:
        phase: The active phase.
        samples: Number of samples in the batch.

    >>> from composer.core import TrainerMode
    >>> phase = Phase(TrainerMode.EVAL)
    >>> count_batch(phase, 8)
    >>> phase.timestamp.sample
    Time(8, TimeUnit.SAMPLE)
    """
    phase.timestamp = phase.timestamp.to_next_batch(samples, duration=time.perf_counter() - phase.mark)


def _batches(run: Run, phase: Phase) -> Iterator[Batch]:
    spec: DataSpec = phase.loader
    phase.mark = time.perf_counter()
    for batch in itertools.islice(iterate(spec.dataloader), phase.length):
        yield load(batch, spec, run.state.device)
        phase.mark = time.perf_counter()
    if phase.timestamp.batch.value == 0:
        message = f"The data {phase.label!r} yielded no batch, so there is nothing to report: {spec.dataloader!r}."
        warnings.warn(message, ComposerWarning, stacklevel=2)
