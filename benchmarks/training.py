"""A single training run of the time-to-target benchmark, and its recorded metric curve."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler

from composer import Algorithm, Callback, ComposerModel, Evaluator, Trainer

WARM_UP = 0.1  # fraction of the steps in which the learning rate rises

Methods = Mapping[str, Callable[[], Algorithm]]


@dataclass(frozen=True)
class Setting:
    """The tuned hyperparameters.

    Attributes:
        rate: The peak learning rate.
        steps: Duration of training, and of its schedule.
    """

    rate: float
    steps: int


@dataclass
class Curve:
    """The training time and metric of a run at each evaluation.

    Attributes:
        cpu: CPU seconds spent in training so far, without evaluations.
        wall: The same in wall-clock time.
        values: The metric.
    """

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def time_to(self, is_reached: Callable[[float], bool], clock: str = "cpu") -> float | None:
        """Return the seconds until the first evaluation at which the target was reached, None if it never was."""
        times: list[float] = getattr(self, clock)
        return next((seconds for seconds, value in zip(times, self.values, strict=True) if is_reached(value)), None)


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


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        name: How the tables name it.
        about: Data and model in a sentence.
        metric: Name of the metric.
        target: The value to reach.
        margin: By how much the target is harder where settings are chosen.
        higher: Whether higher is better.
        methods: What the recipe consists of, made anew for each run.
        grid: The settings among which each of baseline and recipe gets its own.
        splits: Returns the data under "train", "validation" and "test".
        make_model: Returns the model.
        make_optimizer: Returns the optimizer of some parameters at a learning rate.
        batch_size: Number of examples in a batch.
    """

    name: str
    about: str
    metric: str
    target: float
    margin: float
    higher: bool
    methods: Methods
    grid: tuple[Setting, ...]
    splits: Callable[[], dict[str, Table]]
    make_model: Callable[[], ComposerModel]
    make_optimizer: Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer]
    batch_size: int

    def harder(self) -> Task:
        """Return the task with the target by which settings are chosen."""
        return replace(self, target=self.target + (self.margin if self.higher else -self.margin))

    def is_reached(self, value: float) -> bool:
        """Tell whether a value of the metric is at the target or better."""
        return value >= self.target if self.higher else value <= self.target

    def train(
        self, methods: Methods, setting: Setting, seed: int, split: str = "test", num_evaluations: int = 12
    ) -> Curve:
        """Train once.

        Args:
            methods: Those to use.
            setting: Learning rate and length.
            seed: Of the weights and of the order of the data: the same for every choice of methods.
            split: What is evaluated on.
            num_evaluations: How often.
        """
        data = self.splits()
        torch.manual_seed(seed)
        model = self.make_model()
        optimizer = self.make_optimizer(model.parameters(), setting.rate)
        watch = Watch(self.metric)
        with Trainer(
            model=model,
            train_dataloader=_loader(data["train"], self.batch_size, seed),
            eval_dataloader=Evaluator(label="eval", dataloader=_loader(data[split], 250)),
            eval_interval=f"{max(setting.steps // num_evaluations, 1)}ba",
            max_duration=f"{setting.steps}ba",
            optimizers=optimizer,
            schedulers=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: trapezoid(step, setting.steps)),
            step_schedulers_every_batch=True,
            algorithms=[make() for make in methods.values()],
            callbacks=watch,
            device="cpu",
            precision="fp32",
            seed=seed,
            progress_bar=False,
        ) as trainer:
            trainer.fit()
        return watch.curve


class Watch(Callback):
    """Stops two clocks before each evaluation, notes its result, and starts them again.

    Args:
        metric: Which of the metrics is noted.
    """

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.curve = Curve()
        self._spent = (0.0, 0.0)
        self._began = (0.0, 0.0)

    def fit_start(self, state: Any, logger: Any) -> None:
        self._began = self._now()

    def eval_before_all(self, state: Any, logger: Any) -> None:
        cpu, wall = (
            spent + now - began for spent, now, began in zip(self._spent, self._now(), self._began, strict=True)
        )
        self._spent = (cpu, wall)

    def eval_after_all(self, state: Any, logger: Any) -> None:
        cpu, wall = self._spent
        self.curve.cpu.append(cpu)
        self.curve.wall.append(wall)
        self.curve.values.append(float(state.eval_metric_values[self.metric]))
        self._began = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.process_time(), time.perf_counter()


def trapezoid(step: int, steps: int) -> float:
    """Return the learning rate as a fraction of the peak: linear warmup, then linear decay to zero.

    >>> [round(trapezoid(step, 20), 2) for step in (0, 1, 2, 11, 20)]
    [0.5, 1.0, 1.0, 0.5, 0.0]
    """
    rising = max(int(WARM_UP * steps), 1)
    return min((step + 1) / rising, (steps - step) / (steps - rising)) if step < steps else 0.0


def _loader(table: Table, batch_size: int, seed: int | None = None) -> DataLoader[Any]:
    """Batches in a random order under a seed, or in the given order without one."""
    if seed is None:
        order: Any = SequentialSampler(table)
    else:
        order = RandomSampler(table, generator=torch.Generator().manual_seed(seed))
    # Index the tensors once per batch, instead of stacking single examples.
    return DataLoader(table, batch_size=None, sampler=BatchSampler(order, batch_size, drop_last=seed is not None))
