"""Start DataLoader workers so that they ignore SIGTERM and SIGINT until the parent stops them, and end them at exit."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import signal
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch.utils.data import DataLoader

from composer import rng
from composer.core.types import Batch

__all__ = ["is_finished", "iterate", "lend", "restore_end", "take_back"]

# Signals by which cluster schedulers and terminals request an exit, as far as this system supports them.
_SIGNALS = [
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if name in signal.Signals.__members__
]


def iterate(
    loader: Iterable[Batch], *, resumed: bool = False, restarted: bool = False, owner: object = None
) -> Iterator[Batch]:
    """Return an iterator over a loader, whose workers survive a signal that is sent to all processes of the job.

    The parent process decides when to stop: without its workers it could not finish the current step.

    Args:
        loader: Any iterable; only workers of torch DataLoaders are supported.
        resumed: Whether an epoch is resumed, so that starting the iterator must not sample random values.
        restarted: Whether persistent workers were started before in this run, so that starting them in a resumed one
            must not sample their seed.
        owner: The object whose lifetime determines that of persistent workers; the loader by default.

    Raises:
        ValueError: The loader is None: a :class:`.DataSpec` or :class:`.Evaluator` was created with None.

    >>> list(iterate([1, 2]))
    [1, 2]
    """
    if loader is None:
        raise ValueError("A DataSpec or Evaluator has dataloader=None; set its dataloader before it is used.")
    if isinstance(loader, DataLoader) and loader._iterator is not None:
        _drop_unknown_workers(loader)
    if isinstance(loader, DataLoader) and inspect.isgeneratorfunction(type(loader).__iter__):
        return _GeneratorIterator(loader, resumed or (restarted and loader.persistent_workers))
    if not isinstance(loader, DataLoader) or not loader.num_workers:
        return iter(loader)
    with _starting(loader), _own_seed(loader) if restarted else contextlib.nullcontext(), _recorded(loader) as made:
        iterator = iter(loader)
    wrapper = _OwningIterator(iterator, loader)
    # A subclass may return another iterator over that with the workers, or one that it had made before.
    for one in [*made, *([iterator] if hasattr(iterator, "_shutdown_workers") else [])]:
        # Persistent workers also serve the next epoch of their loader.
        _end_with((owner or loader) if loader.persistent_workers else wrapper, one)
    return wrapper


@contextlib.contextmanager
def _recorded(loader: Any, *, preserves_rng: bool = False) -> Generator[list[Any]]:
    """Record the iterators of torch that a loader creates, which have the workers."""
    make, made = loader._get_iterator, []

    def recorded() -> Any:
        with rng.preserve_rng_state() if preserves_rng else contextlib.nullcontext():
            made.append(make())
        return made[-1]

    loader._get_iterator = recorded
    try:
        yield made
    finally:
        del loader._get_iterator


def is_finished(state: Any) -> bool:
    """Return whether a state is that of a torchdata loader at the end of an epoch, of which it yielded the last batch.

    Args:
        state: The state of a loader.

    >>> is_finished({"_iterator_finished": True}), is_finished({"place": 3})
    (True, False)
    """
    return isinstance(state, Mapping) and bool(cast("Mapping[str, Any]", state).get("_iterator_finished"))


def restore_end(loader: DataLoader[Any], state: Any) -> Iterator[Batch]:
    """Bring a loader, into which its state at the end of an epoch was loaded, to that end; return an empty iterator.

    Args:
        loader: The loader.
        state: Its state.

    >>> list(restore_end(DataLoader([1]), {}))
    []
    """
    ended: Iterator[Batch] = (batch for batch in ())
    if not is_finished(state):
        iterate(loader)
        return ended
    # An iterator over a torchdata loader would already be that of the next epoch, and its sampler would have drawn the
    # order of that. Asked for its state, the loader creates only the one that has ended.
    stateful: Any = loader
    with _starting(loader):
        stateful.state_dict()
    if loader.num_workers:
        _end_with(loader if loader.persistent_workers else ended, stateful._iterator)
    return ended


@contextlib.contextmanager
def _own_seed(loader: DataLoader[Any]) -> Generator[None]:
    """Start persistent workers without an effect on the random state, from which the sampler may sample as well."""
    if not loader.persistent_workers or loader._iterator is not None or loader.generator is not None:
        yield
        return
    with rng.preserve_rng_state():
        seed = int(torch.empty((), dtype=torch.int64).random_())
    loader.generator = torch.Generator().manual_seed(seed)
    try:
        yield
    finally:
        loader.generator = None


def _drop_unknown_workers(loader: Any) -> None:
    """Make a loader start new workers if the existing ones have ended or were started by a script.

    Workers of a script hold copies of the dataset from before algorithms changed it, and exit on signals. An iterator
    that a torchdata loader created to return its state is the one to begin with: it holds the loaded position.
    """
    if getattr(loader, "_initial_iter_for_state_dict", False):
        return
    if id(loader._iterator) not in _ends or not _ends[id(loader._iterator)].alive or loader._iterator._shutdown:
        loader._iterator = None


def lend(copy: Any, loader: Any) -> bool:
    """Move the persistent workers of a copied loader to the user's loader; return whether they exist.

    So between two fits, scripts can iterate over their loader with these workers, or shut them down.

    Args:
        copy: The copy of the user's loader, which has workers.
        loader: The user's loader, unless it has separate workers.

    >>> loader = DataLoader(torch.arange(4))
    >>> lend(DataLoader(torch.arange(4)), loader)
    False
    """
    iterator = copy._iterator
    if iterator is None or iterator._shutdown or loader._iterator is not None:
        return False
    iterator._index_sampler = loader._index_sampler  # which determines the order when the iterator is reset
    loader._iterator = iterator
    return True


def take_back(copy: Any, loader: Any) -> None:
    """Undo :func:`lend`, so that a script that iterates over its loader in the middle of an epoch gets new workers.

    Args:
        copy: As for :func:`lend`.
        loader: As for :func:`lend`.

    >>> take_back(DataLoader(torch.arange(4)), DataLoader(torch.arange(4)))
    """
    if copy._iterator is not None:
        copy._iterator._index_sampler = copy._index_sampler
        if loader._iterator is copy._iterator:  # a script may have replaced it
            loader._iterator = None


class _OwningIterator:
    """An iterator whose workers end when it is garbage-collected; keeps the loader alive until then."""

    def __init__(self, iterator: Iterator[Batch], loader: DataLoader[Any]) -> None:
        self._iterator, self._loader = iterator, loader

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._iterator)


class _GeneratorIterator:
    """An iterator over a loader whose ``__iter__`` is a generator, as in streaming, which starts at the first request.

    Args:
        loader: The loader.
        resumed: Whether to preserve the random state when torch's iterator starts. Other iterators start before the
            random state of the checkpoint is restored; this one starts afterwards.
    """

    def __init__(self, loader: DataLoader[Any], resumed: bool) -> None:
        self._loader, self._resumed = loader, resumed
        self._iterator: Iterator[Batch] | None = None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._iterator is not None:
            return next(self._iterator)
        self._iterator = iter(self._loader)
        with _starting(self._loader), _recorded(self._loader, preserves_rng=self._resumed) as made:
            batch = next(self._iterator)
        for iterator in made:
            if self._loader.num_workers:
                _end_with(self._loader if self._loader.persistent_workers else self, iterator)
        return batch


# Finalizers that shut down workers, by the id of their iterator.
_ends: dict[int, weakref.finalize[..., Any]] = {}


def _end_with(owner: Any, iterator: Any) -> None:
    """Shut down the workers when an object is garbage-collected, or at exit.

    An iterator that is collected in a reference cycle loses its queues before it can notify its workers, and at exit
    nothing notifies them but the one signal that they ignore: in both cases the process would hang, waiting for them.
    """
    if not _ends:
        atexit.unregister(_end_all)
        atexit.register(_end_all)  # registered after multiprocessing's handler, so that it runs before that one waits
    for key in [key for key, end in _ends.items() if not end.alive]:
        del _ends[key]
    if id(iterator) not in _ends:
        _ends[id(iterator)] = end = weakref.finalize(owner, _end, iterator, os.getpid())
        end.atexit = False


def _end(iterator: Any, process: int) -> None:
    if os.getpid() == process:  # and not in a forked worker, which has copies of all finalizers
        iterator._shutdown_workers()
        # Workers that hang ignore its SIGTERM; it has already waited for them.
        for worker in iterator._workers:
            if worker.is_alive():
                worker.kill()
                worker.join()


def _end_all() -> None:
    for end in list(_ends.values()):
        end()


class _WorkerInit:
    """Installs signal handlers in a worker when it starts."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then
        self._got_sigterm = False

    def __call__(self, worker: int) -> None:
        for signum in _SIGNALS:
            signal.signal(signum, self._terminate if signum == signal.SIGTERM else signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if self._then is not None:
            self._then(worker)

    def _terminate(self, signum: int, frame: object) -> None:
        # The first SIGTERM may have been sent to all processes; the parent sends a second one when it shuts down.
        if self._got_sigterm:
            os._exit(0)
        self._got_sigterm = True


@contextlib.contextmanager
def _starting(loader: DataLoader[Any]) -> Generator[None]:
    """Run :class:`_WorkerInit` in the workers that start inside this context."""
    given: Any = loader.worker_init_fn
    loader.worker_init_fn = _WorkerInit(given)
    try:
        with _signals_blocked():
            yield
    finally:
        loader.worker_init_fn = given


@contextlib.contextmanager
def _signals_blocked() -> Generator[None]:
    """Block signals while workers start, which inherit the mask until their signal handlers are installed."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
