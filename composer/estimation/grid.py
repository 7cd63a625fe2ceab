"""A table over devices and numbers of processes: where a training program fits, with which microbatch."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from composer.estimation.configuration import Configuration
from composer.estimation.devices import COMMON_DEVICES, Device
from composer.estimation.estimate import as_configuration, as_device, find_largest, measurements
from composer.estimation.memory import Memory, size_text
from composer.trials import Record, Target

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["Column", "Grid", "estimate_grid"]


class Column(NamedTuple):
    """How a program trains in a column of a table.

    Attributes:
        processes: Number of processes.
        strategy: The strategy; empty for that of the program.

    >>> str(Column(8, "fsdp")), str(Column(8))
    ('8 fsdp', '8')
    """

    processes: int
    strategy: str = ""

    def __str__(self) -> str:
        """The column in a few characters."""
        return f"{self.processes} {self.strategy}".rstrip()


@dataclass(frozen=True)
class Grid:
    """The largest microbatch that surely fits, for each device, number of processes and strategy.

    Args:
        devices: The devices.
        columns: The numbers of processes, each with a strategy.
        memory: The memory by column, with the microbatch of the program; a text if the trial failed.
        largest: The largest microbatch that surely fits by name of the device and column; 0 if none does.
        seconds: Wall time of all trials.
        unsure: The cells in which some microbatch may fit, but none surely.

    >>> memory, one = Memory(2**30, facts={"batch_size": 8, "microbatch": 8}), Column(1)
    >>> grid = Grid([Device("2GiB", 2**31)], [one], {one: memory}, {("2GiB", one): 8})
    >>> grid.ok
    True
    """

    devices: Sequence[Device]
    columns: Sequence[Column]
    memory: Mapping[Column, Memory | str]
    largest: Mapping[tuple[str, Column], int]
    seconds: float = 0.0
    unsure: Collection[tuple[str, Column]] = ()

    @property
    def ok(self) -> bool:
        """Whether the program surely fits somewhere."""
        return any(self.largest.values())

    def to_json(self) -> dict[str, Any]:
        """Return the table in JSON types."""
        cells: list[dict[str, Any]] = []
        for device in self.devices:
            for column in self.columns:
                memory = self.memory[column]
                is_known = isinstance(memory, Memory)
                cells.append(
                    {
                        "device": device.name,
                        "memory": device.memory,
                        "processes": column.processes,
                        "strategy": column.strategy,
                        "peak": memory.needed + device.overhead if is_known else None,
                        "fits": is_known and device.outcome(memory.needed) == "fits",
                        "outcome": device.outcome(memory.needed) if is_known else None,
                        "safety_margin": device.safety_margin,
                        "largest_microbatch": self.largest.get((device.name, column)) or None,
                        "error": "" if is_known else memory,
                    }
                )
        return {"fits": self.ok, "cells": cells, "seconds": round(self.seconds, 1)}

    def __str__(self) -> str:
        """The table as text."""
        peaks = [self.memory[column] for column in self.columns]
        rows = [
            ["processes", "", *map(str, self.columns)],
            [
                "tensors" if self._overheads else "peak",
                "",
                *(size_text(each.needed) if isinstance(each, Memory) else "failed" for each in peaks),
            ],
        ]
        for device in self.devices:
            found = [self._entry(device, column) for column in self.columns]
            rows.append([device.name, size_text(device.memory), *found])
        return "\n".join([*_aligned(rows), "", *self._notes()])

    def _entry(self, device: Device, column: Column) -> str:
        cell = device.name, column
        return str(self.largest.get(cell) or ("?" if cell in self.unsure else "-"))

    @property
    def _overheads(self) -> list[int]:
        """Return what contexts and libraries take of each device that has them."""
        return [device.overhead for device in self.devices if device.overhead]

    def _notes(self) -> Iterator[str]:
        batches: dict[int, dict[int, None]] = {}
        for column, memory in self.memory.items():
            if isinstance(memory, Memory):
                batches.setdefault(memory.facts["batch_size"], {})[column.processes] = None
        shares = sorted({f"{100 * device.safety_margin:.0f} %" for device in self.devices if device.is_accelerator})
        yield "entries: largest microbatch that fits; - if none fits"
        if shares:
            yield f"{shares[0]} of accelerators is left for errors; ? if some may fit with less"
        sizes = [f"{size} (processes: {', '.join(map(str, batches[size]))})" for size in sorted(batches, reverse=True)]
        yield f"batches of each process: {', '.join(sizes if len(batches) > 1 else map(str, batches))}"
        if self._overheads:
            least, most = size_text(min(self._overheads)), size_text(max(self._overheads))
            size = least if least == most else f"{least} to {most}"
            yield f"tensors: the peak without context and libraries ({size})"
        for column, memory in self.memory.items():
            if isinstance(memory, str):
                yield f"{column}: {memory}"
        yield f"measured in {self.seconds:.0f} s"


def estimate_grid(
    program: Callable[[], Trainer] | Target | Sequence[str],
    *,
    devices: Sequence[str | Device] = (),
    processes: Sequence[int] = (1, 8, 64),
    local_processes: int | None = None,
    strategy: str | Sequence[str] | None = None,
    microbatch: int | None = None,
    precision: str | None = None,
    changes: Sequence[str] = (),
    folder: str | Path | None = None,
    parallel: int | None = None,
    time_limit: float = 600.0,
    fit: int = 1,
    progress: bool = True,
) -> Grid:
    """Estimate where a training program fits: on which devices, with how many processes, and which microbatch.

    Args:
        program: A function that returns a trainer which is not fitted yet, or a command line.
        devices: Names or sizes of devices; those of :data:`.COMMON_DEVICES` by default.
        processes: Numbers of processes.
        local_processes: Number of processes on each node; None for at most 8.
        strategy: How several processes train, or several of these to compare them; see :func:`.estimate`, like for the
            following arguments. One process trains alone, and "hsdp" on a single node is "fsdp".
        microbatch: Number of samples in a microbatch.
        precision: Precision to train in.
        changes: Assignments to arguments of the trainer.
        folder: Folder for the records of the trials.
        parallel: Number of trials that run at the same time.
        time_limit: Seconds after which a trial is terminated.
        fit: Which call of ``fit`` of the program is meant, from 1.
        progress: Whether to show the progress on stderr.

    Raises:
        ValueError: An argument is out of range, or does not exist.
        RuntimeError: The program trains with none of the numbers of processes.

    >>> estimate_grid(["train.py"], devices=["H1000-80GB"])
    Traceback (most recent call last):
    ValueError: device must be ..., but got 'H1000-80GB'. Did you mean 'H100-80GB'?
    """
    start = time.monotonic()
    on = [as_device(each) for each in devices or COMMON_DEVICES]
    bases: dict[Column, Configuration] = {}
    for number in processes:
        node = None if local_processes is None else min(number, local_processes)
        for each in [strategy] if strategy is None or isinstance(strategy, str) else dict.fromkeys(strategy):
            own = _strategy(each, number, node)
            shown = "" if number == 1 or own is None else own
            bases[Column(number, shown)] = as_configuration(number, own, microbatch, precision, changes, node)
    memory: dict[Column, Memory | str] = {}
    largest: dict[tuple[str, Column], int] = {}
    unsure: set[tuple[str, Column]] = set()
    with measurements(program, on[0], folder, parallel, time_limit, fit, progress) as measured:
        records = measured(list(bases.values()))
        for column, base in bases.items():
            found = records[base]
            memory[column] = found.error if isinstance(found, Record) else found
            if isinstance(found, Memory):
                for device in on:
                    best = find_largest(measured, base, device)
                    largest[device.name, column] = 0 if best is None else best[0]
                    tried = [each for each in measured.microbatches(base).values() if each is not None]
                    if best is None and any(device.outcome(each.needed) == "may not fit" for each in tried):
                        unsure.add((device.name, column))
        if not largest:
            measured.measure(next(iter(bases.values())))  # raises the error of the program
    return dataclasses.replace(Grid(on, list(bases), memory, largest, unsure=unsure), seconds=time.monotonic() - start)


def _strategy(strategy: str | None, processes: int, node: int | None) -> str | None:
    """Return the strategy for a number of processes: one process is alone, and hybrid sharding on one node is FSDP."""
    if strategy is None or processes == 1:
        return None if strategy is None else "single"
    return "fsdp" if strategy == "hsdp" and processes == (node or Configuration(8).node) else strategy


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows of a table, the first two columns aligned to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [f"{cell:<{widths[i]}}" if i < 2 else f"{cell:>{widths[i]}}" for i, cell in enumerate(row)]
        yield "  ".join(cells).rstrip()
