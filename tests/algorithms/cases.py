"""Test cases of the algorithms for the contract test, and small models and data."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from composer import algorithms, trees
from composer.core.algorithm import Algorithm
from composer.core.model import ComposerModel
from composer.loss import soft_cross_entropy
from composer.precision import get_precision_context
from tests.on_device import autocast_type, place

Batch = tuple[Tensor, Tensor]
Outcome = dict[str, Tensor]


class Net(ComposerModel):
    """Classifies each input of a batch against its target, and records the batches."""

    def __init__(self, inputs: Sequence[Any] = (0,), targets: Sequence[Any] = (1,)) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(16, 4),
            nn.Dropout(0.0),
        )
        self.inputs, self.targets = inputs, targets
        self.seen: list[list[Tensor]] = []

    def forward(self, batch: Any) -> Any:
        outputs = tuple(self.net(trees.batch_get(batch, key)) for key in self.inputs)
        return outputs if len(outputs) > 1 else outputs[0]

    def loss(self, outputs: Any, batch: Any, reduction: str = "mean") -> Tensor:
        inputs = [trees.batch_get(batch, key) for key in self.inputs]
        targets = [trees.batch_get(batch, key) for key in self.targets]
        self.seen.append([*inputs, *targets])
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        losses = [soft_cross_entropy(*pair, reduction=reduction) for pair in zip(outputs, targets, strict=True)]
        return torch.stack(losses).sum(0)


def make_model(**keys: Any) -> Net:
    """The same model each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return place(Net(**keys))


def make_batches(number: int = 4) -> list[Batch]:
    """The same batches each time: x (6, 2, 16, 16) and class indices (6,)."""
    generator = torch.Generator().manual_seed(2)
    batches = [
        (torch.randn(6, 2, 16, 16, generator=generator), torch.randint(4, (6,), generator=generator))
        for _ in range(number)
    ]
    return place(batches)


def weights(model: nn.Module, algorithm: Algorithm | None = None) -> Outcome:
    """The parameters and buffers after training."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def by_hand(step: Callable[[nn.Module, Batch, float], Tensor]) -> Callable[[list[Batch]], Outcome]:
    """Train in a custom loop, given the loss of a batch at an elapsed fraction of the run."""

    def train(batches: list[Batch]) -> Outcome:
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step_number, batch in enumerate(batches):
            optimizer.zero_grad()
            step(model, batch, step_number / len(batches)).backward()
            optimizer.step()
        return weights(model)

    return train


def by_surgery(
    change: Callable[[Any, torch.optim.Optimizer], object],
    make: Callable[[], Any] | None = None,
    before: Callable[[Any], object] = lambda model: None,
    precision: str = "fp32",
) -> Callable[[list[Any]], Outcome]:
    """Train in a custom loop, after model surgery, with a hook before each batch."""

    def train(batches: list[Any]) -> Outcome:
        model = (make or make_model)()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        change(model, optimizer)
        for batch in batches:
            before(model)
            optimizer.zero_grad()
            with get_precision_context(precision, device_type=autocast_type()):
                loss = model.loss(model(batch), batch)
            loss.backward()
            optimizer.step()
        return weights(model)

    return train


@dataclass(frozen=True)
class Case:
    """One method.

    Attributes:
        make: Makes it with a setting that does something in four batches.
        by_hand: Does the same with the function, in a custom loop; None requires ``why_no_function``.
        neutral: Makes it with the setting that must change nothing, bit for bit; None requires ``why_not_neutral``.
        with_keys: Makes it with other batch keys; only for methods that edit batches.
        outcome: What to compare after training; the weights by default.
        model: Makes the same model each time; by default one that classifies images.
        batches: Makes the same batches each time, four of them, which the model takes.
        graphs: Maximum number of graphs of a compiled model with constant batch shapes; 0 if the method prevents
            compilation.
        precision: Precision of the run.
        optimizer: Makes the optimizer of a model; None is SGD with momentum.
    """

    make: Callable[[], Algorithm]
    by_hand: Callable[[list[Batch]], Outcome] | None
    neutral: Callable[[], Algorithm] | None
    why_no_function: str = ""
    why_not_neutral: str = ""
    with_keys: Callable[[Any, Any], Algorithm] | None = None
    outcome: Callable[[nn.Module, Any], Outcome] = weights
    model: Callable[[], nn.Module] = make_model
    batches: Callable[[], list[Any]] = make_batches
    graphs: int = 1
    precision: str = "fp32"
    optimizer: Callable[[nn.Module], torch.optim.Optimizer | None] = lambda model: None

    @property
    def name(self) -> str:
        """The class."""
        return type(self.make()).__name__


def public_classes() -> dict[str, type[Algorithm]]:
    """Every public algorithm."""
    found = {name: getattr(algorithms, name) for name in algorithms.__all__}
    return {name: cls for name, cls in found.items() if isinstance(cls, type) and issubclass(cls, Algorithm)}


absent: dict[str, str] = {}
"""The modules of algorithms whose tests need a package that is not installed, and the package."""


def all_cases() -> list[Case]:
    """The cases in the test files of the public algorithms: ``CASE``, or ``CASES`` where a file has several."""
    cases: list[Case] = []
    for module in sorted({cls.__module__.rpartition(".")[2] for cls in public_classes().values()}):
        try:
            test = importlib.import_module(f"tests.algorithms.test_{module}")
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("tests."):  # of the others the contract test says which are missing
                absent[f"composer.algorithms.{module}"] = str(error.name)
            continue
        cases += getattr(test, "CASES", None) or [test.CASE]
    return cases


def same(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def copied(value: Any) -> Any:
    """A deep copy, to compare with later."""
    return copy.deepcopy(value)
