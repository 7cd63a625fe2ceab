"""Read the records of a ``torch.save`` file into memory and compute their checksums, by several threads.

Each block is read and hashed while it is in the CPU cache of one thread. Both release the GIL, and so do the page
faults of memory that is written for the first time, which can take longer than reading and hashing together.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from torch import UntypedStorage

from composer import dist
from composer._cpus import cpu_quota, usable_cpus
from composer._raw_memory import memory_at
from composer.checkpoint.zip_layout import Record, crc32_of

__all__ = ["read_records"]

_MOST_THREADS = 8
_BYTES_PER_THREAD = 4 << 20  # starting a thread takes as long as reading some hundred kilobytes


def read_records(
    path: Path, records: Sequence[Record], into: Mapping[str, UntypedStorage], threads: int | None = None
) -> list[int]:
    """Return the CRC-32 of each record, computed from what was read; -1 for a record beyond the end of the file.

    No thread is left when this returns or raises.

    Args:
        path: The file.
        records: Its records.
        into: The storages that receive the content of records, by name; they have the size of the record.
        threads: How many threads read; None is a thread for each CPU of this rank, at most eight, and fewer for little
            data.

    Raises:
        OSError: The file could not be read.

    >>> torch.save({"weight": torch.ones(2)}, tmp_path / "a.pt")
    >>> found = [Record("data/0", 704, 8, 0)]
    >>> storage = torch.UntypedStorage(8)
    >>> len(read_records(tmp_path / "a.pt", found, {"data/0": storage}))
    1
    """
    checksums = [-1] * len(records)
    # The largest first, so that all threads end at the same time.
    left = deque(sorted(range(len(records)), key=lambda number: records[number].size))

    def work() -> None:
        try:
            with path.open("rb", buffering=0) as file:
                while left:
                    try:
                        number = left.pop()
                    except IndexError:  # another thread was faster
                        return
                    record = records[number]
                    storage = into.get(record.name)
                    view = None if storage is None or not record.size else memory_at(storage.data_ptr(), record.size)
                    checksums[number] = crc32_of(file, record, view)
        except BaseException:
            left.clear()  # nobody needs the rest
            raise

    count = _num_threads(sum(record.size for record in records)) if threads is None else threads
    if count < 2:
        work()
        return checksums
    with ThreadPoolExecutor(count - 1, "checkpoint-reader") as pool:
        others = [pool.submit(work) for _ in range(count - 1)]
        work()
        for other in others:
            other.result()
    return checksums


def _num_threads(num_bytes: int) -> int:
    """Return how many threads this rank may use for some data."""
    if num_bytes < 2 * _BYTES_PER_THREAD:
        return 1
    quota = cpu_quota()
    cpus = len(usable_cpus()) if quota is None else min(len(usable_cpus()), math.ceil(quota))
    return max(1, min(cpus // dist.get_local_world_size(), _MOST_THREADS, num_bytes // _BYTES_PER_THREAD))
