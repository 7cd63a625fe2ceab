"""DataLoader workers survive the first signal, and the signal handlers of their parent are restored."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from composer.core.loader_workers import _ends, iterate
from tests import after_torch

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


class Process(Dataset[Any]):
    """Gives the number of the process that fetches."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return index, os.getpid()


def loader(**arguments: Any) -> DataLoader[Any]:
    return DataLoader(Process(), 2, num_workers=2, **arguments)


@pytest.mark.parametrize("signum", SIGNALS)
def test_workers_outlive_the_first_signal(signum) -> None:
    iterator = iterate(loader())
    first = next(iterator)
    workers = {int(first[1][0])} | {int(next(iterator)[1][0])}
    for worker in workers:
        os.kill(worker, signum)
    rest = [index for batch in iterator for index in batch[0].tolist()]
    assert len(rest) == 36


def test_a_second_signal_ends_a_worker() -> None:
    iterator = iterate(loader())
    worker = int(next(iterator)[1][0])
    for _ in range(2):
        os.kill(worker, signal.SIGTERM)
        time.sleep(0.05)
    # torch says that it has exited, unless a batch that it had begun to hand over comes first.
    with pytest.raises((RuntimeError, ConnectionError)):
        list(iterator)


def test_handlers_and_masks_are_restored() -> None:
    before = [signal.getsignal(signum) for signum in SIGNALS], signal.pthread_sigmask(signal.SIG_BLOCK, [])
    list(iterate(loader()))
    assert ([signal.getsignal(signum) for signum in SIGNALS], signal.pthread_sigmask(signal.SIG_BLOCK, [])) == before


def test_user_worker_init_fn_is_called(tmp_path) -> None:
    def init(worker: int) -> None:
        (tmp_path / str(worker)).touch()

    made = loader(worker_init_fn=init)
    list(iterate(made))
    assert made.worker_init_fn is init
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def script(text: str) -> str:
    """What a script prints, in a process of its own."""
    done = after_torch.run(f"from tests.core.test_loader_workers import iterate, loader\n{text}")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_from_another_thread() -> None:
    # Not in this process: what other tests have loaded may not survive to be forked by a thread.
    text = "import threading; found = []\nthread = threading.Thread(target=lambda: found.extend(iterate(loader())))\n"
    assert script(f"{text}thread.start(); thread.join(); print(len(found))") == "20\n"


def alive(iterator: Any) -> list[Any]:
    return [worker for worker in getattr(iterator, "_iterator", iterator)._workers if worker.is_alive()]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_exit_with_their_iterator_even_in_reference_cycles(persistent) -> None:
    """Collected by the garbage collector alone, in no time, and not by waiting five seconds for each of two."""
    gc.collect()

    class Node:
        pass

    node = Node()
    node.loader = loader(persistent_workers=persistent)
    node.iterator = iterate(node.loader)
    next(node.iterator)
    workers = alive(node.iterator)
    assert len(workers) == 2
    node.itself = node
    begin = time.monotonic()
    del node
    gc.collect()
    assert not any(worker.is_alive() for worker in workers)
    assert time.monotonic() - begin < 9


def test_persistent_workers_serve_the_next_epoch() -> None:
    made = loader(persistent_workers=True)
    first = {int(pid) for batch in iterate(made) for pid in batch[1]}
    assert {int(pid) for batch in iterate(made) for pid in batch[1]} == first


@pytest.mark.parametrize("persistent", [False, True])
def test_process_exit_does_not_wait_for_workers(persistent) -> None:
    assert (
        script(f"iterator = iterate(loader(persistent_workers={persistent})); next(iterator); print('end')") == "end\n"
    )


def test_without_workers_and_without_torch() -> None:
    assert list(iterate([1, 2])) == [1, 2]
    assert [batch.tolist() for batch in iterate(DataLoader(torch.arange(3), 2))] == [[0, 1], [2]]


class Generated(DataLoader[Any]):
    """Iterates by a generator, as streaming's loader does."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch.tolist()


def test_loader_with_its_own_generator() -> None:
    given = Generated(range(4), batch_size=2, num_workers=1)
    iterator = iterate(given)
    assert next(iterator) == [0, 1]
    assert given.worker_init_fn is None
    assert "_get_iterator" not in vars(given)
    (end,) = (end for end in _ends.values() if end.alive and end.peek()[0] is iterator)
    (worker,) = end.peek()[2][0]._workers
    del end
    assert list(iterator) == [[2, 3]]
    del iterator
    worker.join(60)
    assert worker.exitcode == 0


def test_resuming_samples_nothing_if_the_iterator_starts_late() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert next(iterate(Generated(range(2)), resumed=True)) == [0]
    assert torch.equal(torch.rand(2), expected)
    torch.manual_seed(3)
    assert next(iterate(Generated(range(2)))) == [0]
    assert not torch.equal(torch.rand(2), expected)


class Mapped(DataLoader[Any]):
    """Its iterators are not those of torch, which have the workers."""

    def __iter__(self) -> Any:
        return map(len, super().__iter__())


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_loader_with_other_iterators_end(persistent: bool) -> None:
    mapped = Mapped(Process(), 20, num_workers=1, persistent_workers=persistent)
    before = set(multiprocessing.active_children())
    for _ in range(2):
        iterator = iterate(mapped)
        assert list(iterator) == [2, 2]
        (worker,) = set(multiprocessing.active_children()) - before or [None]
        assert worker is None or worker.is_alive()
    assert (worker is not None) is persistent
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del iterator, mapped
        gc.collect()
    assert set(multiprocessing.active_children()) == before
