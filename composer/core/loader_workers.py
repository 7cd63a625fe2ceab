"""The worker processes of data loaders, and signals that are sent to all processes of a job."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import signal
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from composer import rng
from composer.core.types import Batch

__all__ = ["iterate", "lend", "take_back"]

# What schedulers of machines and terminals send to ask for an end, as far as this system has it.
_SIGNALS = [
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if name in signal.Signals.__members__
]


def iterate(loader: Iterable[Batch], *, resumed: bool = False, owner: object = None) -> Iterator[Batch]:
    """Begin to iterate over a loader, whose workers will outlive a signal that asks the whole job to end.

    Their parent decides when to stop: it could not finish its step otherwise.

    Args:
        loader: Any iterable; only those of torch have workers that we know.
        resumed: Whether this goes on in the middle of a pass, so that to begin is to draw no random number.
        owner: What persistent workers live as long as; the loader by default.

    Raises:
        ValueError: There is no loader: a :class:`.DataSpec` or :class:`.Evaluator` was made with None.

    >>> list(iterate([1, 2]))
    [1, 2]
    """
    if loader is None:
        raise ValueError("A DataSpec or Evaluator has dataloader=None; set its dataloader before it is used.")
    if isinstance(loader, DataLoader) and loader._iterator is not None:
        _leave_strangers(loader)
    if isinstance(loader, DataLoader) and inspect.isgeneratorfunction(type(loader).__iter__):
        return _Late(loader, resumed)
    if not isinstance(loader, DataLoader) or not loader.num_workers:
        return iter(loader)
    with _starting(loader):
        iterator: Any = iter(loader)
    rest = _Rest(iterator, loader)
    # Persistent workers serve the next pass of their loader too.
    _end_with((owner or loader) if loader.persistent_workers else rest, iterator)
    return rest


def _leave_strangers(loader: Any) -> None:
    """Have a loader begin with new workers, where its own have ended or were started by a script.

    Those of a script hold copies of the dataset from before methods changed it, and end at a signal.
    """
    if id(loader._iterator) not in _ends or not _ends[id(loader._iterator)].alive or loader._iterator._shutdown:
        loader._iterator = None


def lend(copy: Any, loader: Any) -> bool:
    """Give the persistent workers of a loader that stands for the user's to that one; tell whether they are there.

    Between two fits scripts find them where they are without a trainer, to iterate over the data or to end them.

    Args:
        copy: The loader that has workers.
        loader: The user's, unless it has workers of its own.

    >>> loader = DataLoader(torch.arange(4))
    >>> lend(DataLoader(torch.arange(4)), loader)
    False
    """
    iterator = copy._iterator
    if iterator is None or iterator._shutdown or loader._iterator is not None:
        return False
    iterator._index_sampler = loader._index_sampler  # from which an iterator that begins again takes its order
    loader._iterator = iterator
    return True


def take_back(copy: Any, loader: Any) -> None:
    """Undo :func:`lend`: a script that iterates over its loader in the middle of an epoch gets workers of its own.

    Args:
        copy: As given to :func:`lend`.
        loader: As given to :func:`lend`.

    >>> take_back(DataLoader(torch.arange(4)), DataLoader(torch.arange(4)))
    """
    if copy._iterator is not None:
        copy._iterator._index_sampler = copy._index_sampler
        if loader._iterator is copy._iterator:  # which a script may have let go of
            loader._iterator = None


class _Rest:
    """The batches of an iterator, whose workers end when nobody wants them any more; keeps the loader until then."""

    def __init__(self, iterator: Iterator[Batch], loader: DataLoader[Any]) -> None:
        self._iterator, self._loader = iterator, loader

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self._iterator)


class _Late:
    """The batches of a loader with a generator of its own, as streaming's, which begins when it is asked for the first.

    Args:
        loader: Such a loader.
        resumed: Whether to keep the random generators from what torch draws when it begins. Other iterators begin
            before the generators are brought to where a checkpoint left them; this one after that.
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
        with _starting(self._loader), self._noting() as made:
            batch = next(self._iterator)
        for iterator in made:
            if self._loader.num_workers:
                _end_with(self._loader if self._loader.persistent_workers else self, iterator)
        return batch

    @contextlib.contextmanager
    def _noting(self) -> Generator[list[Any]]:
        """Note the iterators of torch that the generator makes."""
        loader: Any = self._loader
        make, made = loader._get_iterator, []

        def noted() -> Any:
            with rng.preserve_rng_state() if self._resumed else contextlib.nullcontext():
                made.append(make())
            return made[-1]

        loader._get_iterator = noted
        try:
            yield made
        finally:
            del loader._get_iterator


# What ends workers, by the iterator that they work for.
_ends: dict[int, weakref.finalize[..., Any]] = {}


def _end_with(owner: Any, iterator: Any) -> None:
    """Tell the workers to end when an object goes, or the process.

    An iterator that goes in a cycle of references loses its queues before it can tell its workers, and at the end of
    the process nothing tells them but the one signal that they outlive: in both cases it would wait for them.
    """
    if not _ends:
        atexit.unregister(_end_all)
        atexit.register(_end_all)  # after multiprocessing has: so it runs before that waits
    for key in [key for key, end in _ends.items() if not end.alive]:
        del _ends[key]
    if id(iterator) not in _ends:
        _ends[id(iterator)] = end = weakref.finalize(owner, _end, iterator, os.getpid())
        end.atexit = False


def _end(iterator: Any, process: int) -> None:
    if os.getpid() == process:  # and not in a worker, which has a copy of all that there was when it was forked
        iterator._shutdown_workers()
        # It has asked those that hang, which outlive that; and it has waited long enough.
        for worker in iterator._workers:
            if worker.is_alive():
                worker.kill()
                worker.join()


def _end_all() -> None:
    for end in list(_ends.values()):
        end()


class _WorkerInit:
    """Runs in a worker when it starts."""

    def __init__(self, then: Callable[[int], object] | None) -> None:
        self._then = then
        self._asked = False

    def __call__(self, worker: int) -> None:
        for signum in _SIGNALS:
            signal.signal(signum, self._terminate if signum == signal.SIGTERM else signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        if self._then is not None:
            self._then(worker)

    def _terminate(self, signum: int, frame: object) -> None:
        # The first may have gone to all; the parent asks again when it clears up.
        if self._asked:
            os._exit(0)
        self._asked = True


@contextlib.contextmanager
def _starting(loader: DataLoader[Any]) -> Generator[None]:
    """Have the workers that start do as is said above."""
    given: Any = loader.worker_init_fn
    loader.worker_init_fn = _WorkerInit(given)
    try:
        with _held_back():
            yield
    finally:
        loader.worker_init_fn = given


@contextlib.contextmanager
def _held_back() -> Generator[None]:
    """Keep signals waiting while workers start, which inherit this until they know what to do."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
