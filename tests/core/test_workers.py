"""The workers of data loaders outlive the first signal, and their parent's handlers are as before."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from composer.core.workers import iterate

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
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(iterator)


def test_handlers_and_masks_are_as_before() -> None:
    before = [signal.getsignal(signum) for signum in SIGNALS], signal.pthread_sigmask(signal.SIG_BLOCK, [])
    list(iterate(loader()))
    assert ([signal.getsignal(signum) for signum in SIGNALS], signal.pthread_sigmask(signal.SIG_BLOCK, [])) == before


def test_what_the_user_has_workers_do_first_is_done(tmp_path) -> None:
    def init(worker: int) -> None:
        (tmp_path / str(worker)).touch()

    made = loader(worker_init_fn=init)
    list(iterate(made))
    assert made.worker_init_fn is init
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_from_another_thread() -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(iterate(loader())))
    thread.start()
    thread.join()
    assert len(found) == 20


def test_without_workers_and_without_torch() -> None:
    assert list(iterate([1, 2])) == [1, 2]
    assert [batch.tolist() for batch in iterate(DataLoader(torch.arange(3), 2))] == [[0, 1], [2]]
