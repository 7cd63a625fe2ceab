"""The peak memory of a run is that of a hand-written loop, to the byte, except for what resuming needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.allocations import Allocations
from composer import Algorithm, Trainer
from composer.algorithms import EMA, SWA, PostHocEMA
from composer.models import ComposerClassifier
from tests.common import At

CLASSES = 1000
SIZE = 96
RNG = 5056  # bytes of the state of the CPU's generator
SCALARS = 192  # losses, weights of microbatches and counts of metrics; the smallest activation has more


@dataclass
class Fresh:
    """Batches that are made when they are asked for, so that it shows how many are kept."""

    features: int
    number: int = 3

    def __len__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.number):
            yield torch.randn(SIZE, 1, self.features), torch.randint(CLASSES, (SIZE,))


def make_module(features: int) -> nn.Module:
    """With activations, statistics, random numbers and, for few features, outputs larger than the weights."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(1, 4, 3, padding=1),
        nn.BatchNorm1d(4),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.Linear(4 * features, CLASSES),
    )


@dataclass(frozen=True)
class Setting:
    """What is trained how."""

    features: int = 64
    precision: str = "fp32"
    microbatch: int = SIZE
    optimizer: str = "adamw"
    metrics: bool = False
    evaluation: bool = False

    def make_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        if self.optimizer == "sgd":
            return torch.optim.SGD(module.parameters(), lr=0.01)
        return torch.optim.AdamW(module.parameters(), lr=0.01)

    def autocast(self) -> Any:
        return torch.autocast("cpu", torch.bfloat16) if self.precision == "amp_bf16" else nullcontext()


def train_by_hand(setting: Setting, module: nn.Module, data: Fresh) -> None:
    """As the tutorials have it; the graph of a part is let go before the next one, and the gradients before a step."""
    optimizer = setting.make_optimizer(module)
    correct = torch.zeros((), dtype=torch.long)
    for inputs, target in data:
        optimizer.zero_grad()
        for x, y in zip(inputs.split(setting.microbatch), target.split(setting.microbatch), strict=True):
            with setting.autocast():
                outputs = module(x)
                loss = cross_entropy(outputs, y)
            if len(x) < SIZE:
                loss = loss * (len(x) / SIZE)
            loss.backward()
            if setting.metrics:
                correct += (outputs.detach().argmax(1) == y).sum()
            del outputs, loss
        optimizer.step()
        if setting.evaluation:
            evaluate_by_hand(setting, module, data)


def evaluate_by_hand(setting: Setting, module: nn.Module, data: Fresh) -> None:
    module.eval()
    correct, total = torch.zeros((), dtype=torch.long), torch.zeros(())
    with torch.no_grad():
        for x, y in data:
            with setting.autocast():
                outputs = module(x)
                if setting.metrics:
                    correct += (outputs.argmax(1) == y).sum()
                    total += cross_entropy(outputs, y)
    module.train()


def train(setting: Setting, module: nn.Module, data: Fresh, **arguments: Any) -> None:
    metrics = None if setting.metrics else {}
    model = ComposerClassifier(module, CLASSES, train_metrics=metrics, val_metrics=metrics, loss_fn=cross_entropy)
    trainer = Trainer(
        model=model,
        train_dataloader=data,
        max_duration="1ep",
        optimizers=setting.make_optimizer(model),
        precision=setting.precision,
        device_train_microbatch_size=setting.microbatch,
        eval_dataloader=data if setting.evaluation else None,
        eval_interval="1ba",
        progress_bar=False,
        **arguments,
    )
    trainer.fit()
    trainer.close()


def peak(run: Any, setting: Setting, **arguments: Any) -> int:
    """The most bytes given out at once, of a run after another that has loaded whatever is loaded when first used."""
    run(setting, make_module(1), Fresh(1), **arguments)
    module = make_module(setting.features)
    with Allocations("cpu") as allocations:
        run(setting, module, Fresh(setting.features), **arguments)
    return allocations.whole.peak


OUTPUTS, INPUTS = 4, 256  # numbers of features: outputs dominate, inputs and weights do

SETTINGS = [
    Setting(OUTPUTS),
    Setting(INPUTS),
    Setting(INPUTS, optimizer="sgd"),
    Setting(OUTPUTS, precision="amp_bf16"),
    Setting(INPUTS, microbatch=32),
    Setting(OUTPUTS, microbatch=32, precision="amp_bf16", optimizer="sgd"),
    Setting(OUTPUTS, metrics=True, microbatch=32, optimizer="sgd"),
    Setting(INPUTS, metrics=True),
    Setting(INPUTS, evaluation=True, optimizer="sgd"),
    Setting(OUTPUTS, evaluation=True, metrics=True, precision="amp_bf16"),
    Setting(INPUTS, evaluation=True, metrics=True, microbatch=32),
]
"""Each value of each argument with few and with many features."""


@pytest.mark.parametrize("setting", SETTINGS, ids=repr)
def test_peak_matches_a_manual_loop(setting: Setting) -> None:
    """Over it are the generator's states: at the begin of the epoch, of an evaluation, and what follows each."""
    by_hand, ours = peak(train_by_hand, setting), peak(train, setting)
    assert ours - by_hand <= (4 if setting.evaluation else 2) * RNG + SCALARS
    assert by_hand > 40 * RNG


@pytest.mark.parametrize("mode", ["eval", "predict"])
@pytest.mark.parametrize("features", [4, 4096])
def test_peak_of_an_evaluation_pass_matches_a_manual_loop(mode: str, features: int) -> None:
    def by_hand(setting: Setting, module: nn.Module, data: Fresh) -> None:
        evaluate_by_hand(setting, module, data)

    def ours(setting: Setting, module: nn.Module, data: Fresh) -> None:
        model = ComposerClassifier(module, CLASSES, val_metrics=None if setting.metrics else {})
        with Trainer(model=model, progress_bar=False) as trainer:
            trainer.eval(data) if mode == "eval" else trainer.predict(data, return_outputs=False)

    for metrics in (False, True)[: 1 + (mode == "eval")]:
        setting = Setting(features=features, metrics=metrics)
        assert peak(ours, setting) - peak(by_hand, setting) <= 2 * RNG + SCALARS


def test_retained_memory_is_measured() -> None:
    """The comparison finds outputs that somebody keeps over the next step."""
    kept = At("after_forward", lambda state: state.outputs.detach())
    setting = Setting(features=4, microbatch=32)
    assert peak(train, setting, callbacks=kept) - peak(train_by_hand, setting) > 32 * CLASSES * 4


# ---------------------------------------------------------------------------------------------------- kept


def kept(setting: Setting, *algorithms: Algorithm, number: int = 4) -> list[int]:
    """The bytes given out at the end of each step, over those before the training."""
    train(setting, make_module(1), Fresh(1))
    module = make_module(setting.features)
    with Allocations("cpu") as allocations:
        mark = At("batch_end", lambda state: allocations.mark("step"))
        train(setting, module, Fresh(setting.features, number), algorithms=list(algorithms), callbacks=mark)
    return [stretch.end for stretch in allocations.all("step")]


@pytest.mark.parametrize(
    ("algorithm", "copies", "statistics"),
    [
        (lambda: EMA(half_life="2ba"), 1, True),
        (lambda: SWA(swa_start="0.1dur", swa_end="0.9dur", update_interval="1ba"), 1, False),
        (lambda: PostHocEMA(lengths=(0.05, 0.1, 0.2), snapshot_interval="100ba"), 3, True),
    ],
    ids=["EMA", "SWA", "PostHocEMA"],
)
def test_averages_hold_the_documented_number_of_copies(algorithm: Any, copies: int, statistics: bool) -> None:
    setting = Setting(optimizer="sgd")
    module = make_module(setting.features)
    one = sum(tensor.nbytes for tensor in (*module.parameters(), *(module.buffers() if statistics else ())))
    assert kept(setting, algorithm())[2] - kept(setting)[2] == copies * one


@pytest.mark.parametrize("setting", SETTINGS[2::3], ids=repr)
def test_memory_does_not_grow_with_steps(setting: Setting) -> None:
    ends = kept(setting, number=8)
    assert len(set(ends[2:])) == 1
