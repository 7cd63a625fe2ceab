"""Begin, resume and end the epochs of the training data, and keep their position while other code iterates over it."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import warnings
from collections.abc import Generator, Iterator
from typing import Any, cast

from composer import dist, rng
from composer.core.data_sharding import parts_of
from composer.core.data_spec import DataSpec
from composer.core.epoch_iterator import EpochIterator, has_state_dict
from composer.core.epoch_iterators import EpochIterators
from composer.core.epoch_start import epoch_kept
from composer.core.phase import Phase
from composer.core.shared_data import KeptStarts, independent_copy, indexed_state
from composer.core.types import Batch
from composer.trainer.run import Run
from composer.trainer.uneven_data import UnevenInputs
from composer.warnings import ComposerWarning

__all__ = [
    "end_epoch_iterator",
    "lend_workers",
    "longest_length",
    "replay_first_batch",
    "resume_between_epochs",
    "start_epoch_iterator",
    "training_data_kept",
]

# The largest int64: larger than any length.
_UNKNOWN = 2**63 - 1


def start_epoch_iterator(run: Run) -> Iterator[Batch]:
    """Return an iterator over the epoch, at the position stored in the checkpoint if one was loaded.

    Args:
        run: The run.
    """
    phase: Phase = run.state.train_phase
    epoch_iterators = _epoch_iterators(run, phase)
    epoch, done = int(phase.timestamp.epoch), phase.batches_loaded
    saved = phase.resume_position
    phase.resume_position = phase.last_epoch = None
    if saved is not None and "begun" in saved and not epoch_iterators.accepts(saved):
        saved = None
    replay_first_batch(run)
    _follow(run)
    if not run.options.overfit_batches:
        iterator = epoch_iterators.begin(epoch, 0 if saved is None else done, saved)
        if epoch_iterators.can_prefetch:
            iterator.watch_first(phase.first_batch_rng["train"], epoch_iterators.loader)
        return iterator
    if phase.repeated is None:
        phase.repeated = _first_batches(phase, epoch_iterators, run.options.overfit_batches)
        phase.length = longest_length(len(phase.repeated))
    return itertools.islice(phase.repeated, done, None)


def _first_batches(phase: Phase, epoch_iterators: EpochIterators, count: int) -> list[Batch]:
    """Return the first batches of the data; in a resumed run, those of the run that saved the checkpoint."""
    recorded, loader = phase.first_batch_rng["train"], epoch_iterators.loader
    if (state := recorded.state_for(loader)) is None:
        first = epoch_iterators.begin(epoch=0)
        if epoch_iterators.can_prefetch:
            first.watch_first(recorded, loader)
        return list(itertools.islice(first, count))
    with rng.preserve_rng_state():
        first = epoch_iterators.begin(epoch=0)
        rng.set_local_rng_state(state)
        return list(itertools.islice(first, count))


def end_epoch_iterator(phase: Phase) -> None:
    """Stop the iterator of an epoch that has ended, and keep it until the next one begins: it knows the position.

    Args:
        phase: The training phase, before its timestamp advances to the next epoch.

    >>> from composer.core import TrainerMode
    >>> phase = Phase(TrainerMode.TRAIN, iterator=EpochIterator("indices", iter([1, 2])))
    >>> end_epoch_iterator(phase)
    >>> phase.iterator is None, len(phase.last_epoch)
    (True, 3)
    """
    iterator, phase.iterator = phase.iterator, None
    if isinstance(iterator, EpochIterator):
        iterator.stop()
        phase.last_epoch = iterator, int(phase.timestamp.sample_in_epoch), phase.batches_loaded


def replay_first_batch(run: Run) -> None:
    """Replay the random numbers that the training data used, and kept, in the run that saved the loaded checkpoint.

    Args:
        run: The run.
    """
    phase: Phase = run.state.train_phase
    epoch_iterators = _epoch_iterators(run, phase)
    if epoch_iterators.can_prefetch:
        phase.first_batch_rng["train"].repeat(epoch_iterators.loader, lambda: epoch_iterators.begin(epoch=0))


def resume_between_epochs(run: Run) -> None:
    """Resume between epochs: restore the state of the training data after an epoch, if the checkpoint has it.

    Args:
        run: The run.
    """
    phase: Phase = run.state.train_phase
    saved, phase.resume_position = phase.resume_position, None
    if saved is not None and not run.options.overfit_batches:
        _epoch_iterators(run, phase).restore_after(int(phase.timestamp.epoch) - 1, saved)
        phase.last_epoch = saved  # for checkpoints until the next epoch begins


def lend_workers(run: Run) -> None:
    """Give persistent workers back to the user's training DataLoader until the next fit.

    Args:
        run: The run, after fit.
    """
    phase: Phase = run.state.train_phase
    if phase.epoch_iterators is not None:
        current = phase.iterator if isinstance(phase.iterator, EpochIterator) else None
        phase.epoch_iterators.lend_workers(current, int(phase.timestamp.epoch), phase.batches_loaded)


@contextlib.contextmanager
def training_data_kept(run: Run, loader: Any, label: str) -> Generator[Any]:
    """Yield a loader for an evaluation, whose iteration does not affect the position in the training data.

    A loader or dataset with a ``state_dict`` has one position for all of its iterators, and persistent workers serve
    one iterator at a time. The evaluation of such data gets a copy of the loader; if that cannot be copied, its
    position is restored afterwards. A loader that is an iterator has no position to restore: its
    batches are lost to training, which warns.

    Args:
        run: The run.
        loader: The loader of the evaluation.
        label: Its label, for the warning.
    """
    phase = run.state.train_phase
    given: DataSpec | None = phase.loader
    if given is None or given.dataloader is None:
        yield loader
    elif not _reads(given.dataloader, loader):
        with _epoch_kept(phase, loader):
            yield loader
    else:
        with _position_kept(run, loader, label) as used, _epoch_kept(phase, loader):
            yield used


@contextlib.contextmanager
def _epoch_kept(phase: Phase, loader: Any) -> Generator[None]:
    """Keep the number of the current epoch, if any."""
    if not isinstance(phase.iterator, EpochIterator):
        yield
        return
    with epoch_kept(phase.loader.dataloader, loader, int(phase.timestamp.epoch)):
        yield


@contextlib.contextmanager
def _position_kept(run: Run, loader: Any, label: str) -> Generator[Any]:
    """Yield the loader that is read instead of one of the training data, or of a part of it."""
    phase = run.state.train_phase
    given: DataSpec = phase.loader
    in_epoch = isinstance(phase.iterator, EpochIterator)
    resume_by = {EpochIterators(one, seed=0).resume_by for one in (loader, given.dataloader)}
    if not resume_by & {"indices", "replay"}:
        used = independent_copy(loader, _epoch_iterators(run, phase).starts)
        if used is None:
            with _position_restored(run, loader):
                yield loader
            return
    elif "replay" in resume_by and getattr(loader, "persistent_workers", False):
        # Its workers serve one iterator at a time, and their random numbers continue from epoch to epoch.
        copied = independent_copy(loader)
        used = loader if copied is None else copied
    else:
        used = loader
        if in_epoch and any(isinstance(one, Iterator) for one in (loader, getattr(loader, "dataset", None))):
            message = (
                f"The data {label!r} is the training data, which can be read only once ({type(loader).__name__}): this "
                f"takes batches from training. Pass data that can be iterated in every epoch, such as a DataLoader "
                f"over a dataset, or separate data."
            )
            warnings.warn(message, ComposerWarning, stacklevel=2)
    with _datasets_kept(phase, loader):
        yield used


@contextlib.contextmanager
def _datasets_kept(phase: Phase, loader: Any) -> Generator[None]:
    """Restore the state of datasets with indices at the end, such as that of a generator for random transforms."""
    datasets = [one for part in parts_of(loader) if (one := indexed_state(part)) is not None]
    states = [copy.deepcopy(one.state_dict()) for one in datasets]
    current = phase.last_epoch[0] if isinstance(phase.last_epoch, tuple) else phase.iterator
    try:
        with current.state_kept() if datasets and isinstance(current, EpochIterator) else contextlib.nullcontext():
            yield
    finally:
        for dataset, state in zip(datasets, states, strict=True):
            dataset.load_state_dict(state)


def _reads(data: Any, loader: Any) -> bool:
    """Return whether data is read from a loader or its parts, or from the same dataset, if that has a position."""
    return any(_share(one, other) for one in parts_of(data) for other in parts_of(loader))


def _share(one: Any, other: Any) -> bool:
    if one is other:
        return True
    dataset = getattr(one, "dataset", None)
    if not has_state_dict(dataset) or dataset is not getattr(other, "dataset", None):
        return False
    # Workers have copies of the dataset.
    return not any(getattr(each, "num_workers", 0) for each in (one, other))


@contextlib.contextmanager
def _position_restored(run: Run, loader: Any) -> Generator[None]:
    """Restore the position in stateful training data at the end, and return a dataset to its start meanwhile."""
    phase = run.state.train_phase
    earlier, current, epoch = phase.epoch_iterators, phase.iterator, int(phase.timestamp.epoch)
    iterators = _epoch_iterators(run, phase)
    if isinstance(current, EpochIterator):
        done, uncounted = int(phase.timestamp.sample_in_epoch), phase.num_fetched if phase.in_step else 0
        batches = phase.batches_loaded
        restore = iterators.hold(current, epoch, batches, done, uncounted=uncounted, sized=phase.is_sized(batches))
    elif (ended := phase.last_epoch) is not None and iterators is earlier:
        if not isinstance(ended, dict):
            position = iterators.position_after(*ended, sized=phase.is_sized(ended[2]))
            ended = phase.last_epoch = copy.deepcopy(position)  # also for a checkpoint that is saved meanwhile
        restore = functools.partial(iterators.restore_after, epoch - 1, cast("dict[str, Any]", ended))
    else:
        starts = KeptStarts(iterators.loader, loader)
        starts.keep()
        restore = starts.restore
    iterators.return_to_start(current if isinstance(current, EpochIterator) else None)
    try:
        yield
    finally:
        _follow(run)
        with rng.preserve_rng_state():
            restore()


def _follow(run: Run) -> None:
    """Let a mixture follow the progress of the run, on which its weights may depend."""
    follow = getattr(run.state.train_phase.loader.dataloader, "__follow__", None)
    if follow is not None:
        follow(run.state)


def longest_length(length: int | None) -> int | None:
    """Return the largest number of batches of any rank; None if any rank does not know its number.

    Args:
        length: Number of batches of this rank, or None.

    >>> longest_length(3)
    3
    """
    found = dist.largest(_UNKNOWN if length is None else length)
    return None if found == _UNKNOWN else found


def _epoch_iterators(run: Run, phase: Phase) -> EpochIterators:
    """Return the epoch iterators of the current loader."""
    if phase.epoch_iterators is None or phase.epoch_iterators.loader is not phase.loader.dataloader:
        loader, evaluators = phase.loader.dataloader, run.state.evaluators
        phase.epoch_iterators = EpochIterators(loader, run.state.rank_zero_seed, run.state.data_shard)
        read = [one for each in evaluators if _reads(loader, one := each.dataloader.dataloader)]
        phase.epoch_iterators.starts = KeptStarts(*([loader, *read] if read else []))
        if run.step_sync is not None:
            run.uneven_inputs = UnevenInputs(run.step_sync)
    return phase.epoch_iterators
