"""A dataset with a sample that hangs; imports little, because spawned workers import it."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import torch
from torch.utils.data import Dataset


class Items(Dataset[Any]):
    """Samples (4 features, a class of 3), one of which hangs in one of several ways."""

    def __init__(self, hangs_at: int | None = None, length: int = 8, how: str = "sleep_forever") -> None:
        self.hangs_at, self.length, self.how = hangs_at, length, how

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if index == self.hangs_at:
            WAYS[self.how]()
        return torch.ones(4), index % 3


def sleep_forever() -> None:
    time.sleep(1e6)


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def read_an_empty_pipe() -> None:
    os.read(os.pipe()[0], 1)


def compute_forever() -> None:
    while True:
        pass


def compute_forever_in_native_code() -> None:
    time.sleep(0.2)  # the thread that sends the samples before this one
    sum(range(10**18))  # which never lets another thread run


WAYS = {
    way.__name__: way
    for way in (
        sleep_forever,
        wait_for_a_lock,
        read_an_empty_pipe,
        compute_forever,
        compute_forever_in_native_code,
    )
}
