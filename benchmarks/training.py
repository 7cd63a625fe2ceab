"""Small training programs for benchmarks: data in memory, a trainer for it, and the metric curve of a run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from composer import Callback, Evaluator, Trainer
from composer.optim import LinearWithWarmupScheduler

__all__ = ["Curve", "Table", "Watch", "make_trainer"]


class Table(Dataset[Any]):
    """Tensors with one row for each example; a list of indices picks a batch at once.

    Args:
        columns: Tensors (N, ...), as a tuple or by name.
    """

    def __init__(self, columns: tuple[Tensor, ...] | dict[str, Tensor]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values() if isinstance(self.columns, dict) else self.columns)))

    def __getitem__(self, index: list[int]) -> Any:
        if isinstance(self.columns, dict):
            return {name: column[index] for name, column in self.columns.items()}
        return tuple(column[index] for column in self.columns)


def make_trainer(
    model: Any,
    train: Table,
    held_out: Table,
    optimizer: torch.optim.Optimizer,
    *,
    batch_size: int,
    steps: int,
    interval: int,
    eval_batch_size: int = 100,
) -> Trainer:
    """Return a trainer on the CPU whose learning rate rises for a tenth of the steps and then falls to zero.

    Args:
        model: The model.
        train: Data to train on, in random order.
        held_out: Data to evaluate on.
        optimizer: The optimizer, with the peak learning rate.
        batch_size: Number of examples in a batch.
        steps: Duration of training.
        interval: Number of steps between evaluations.
        eval_batch_size: Number of examples in a batch of an evaluation.
    """
    # CPU time is that of all threads, which wait for each other on steps of this size.
    torch.set_num_threads(1)
    evaluated = _loader(SequentialSampler(held_out), held_out, eval_batch_size)
    return Trainer(
        model=model,
        train_dataloader=_loader(RandomSampler(train), train, batch_size, drop_last=True),
        eval_dataloader=Evaluator(label="eval", dataloader=evaluated),
        eval_interval=f"{interval}ba",
        max_duration=f"{steps}ba",
        optimizers=optimizer,
        schedulers=LinearWithWarmupScheduler(t_warmup="0.1dur"),
        step_schedulers_every_batch=True,
        device="cpu",
        seed=0,
        progress_bar=False,
    )


def _loader(order: Iterable[int], table: Table, batch_size: int, drop_last: bool = False) -> DataLoader[Any]:
    """Batches that index the tensors once, instead of stacking single examples."""
    return DataLoader(table, batch_size=None, sampler=BatchSampler(order, batch_size, drop_last))


@dataclass
class Curve:
    """The training time and metric of a run at each evaluation.

    Attributes:
        cpu: CPU seconds spent in training so far, without evaluations.
        values: The metric.
    """

    cpu: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


class Watch(Callback):
    """Stops a clock before each evaluation, notes its result, and starts it again.

    Args:
        metric: Which of the metrics is noted.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.curve = Curve()
        self._spent = 0.0
        self._began = 0.0

    def fit_start(self, state: Any, logger: Any) -> None:
        self._began = time.process_time()

    def eval_before_all(self, state: Any, logger: Any) -> None:
        self._spent += time.process_time() - self._began

    def eval_after_all(self, state: Any, logger: Any) -> None:
        self.curve.cpu.append(self._spent)
        self.curve.values.append(float(state.eval_metric_values[self.metric]))
        self._began = time.process_time()
