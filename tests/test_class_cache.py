"""Values cached for a class are freed with the class."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from composer import Trainer
from composer._class_cache import cached_by_class
from composer.functional import apply_stochastic_depth
from tests.common import Regression, regression_data


def test_each_class_is_inspected_once() -> None:
    seen: list[type] = []
    look = cached_by_class(lambda kind: seen.append(kind))
    for _ in range(2):
        look(int)
        look(str)
    assert seen == [int, str]


def test_classes_are_not_kept_alive_and_ids_are_not_confused() -> None:
    look = cached_by_class(lambda kind: kind.__name__)
    for number in range(200):  # of which some lie where others lay
        kind = type(f"Kind{number}", (), {})
        assert look(kind) == f"Kind{number}"
        gone = weakref.ref(kind)
        del kind
        if number % 50 == 0:
            gc.collect()
            assert gone() is None


@pytest.mark.parametrize("methods", [(), ("metrics", "validate")], ids=["now", "of early versions"])
def test_run_local_classes_are_freed(methods) -> None:
    """As in a function or a notebook, whose classes hold the module that they are written around."""

    def run() -> list[weakref.ref]:
        module = nn.Linear(4, 1)

        class Model(Regression):
            def __init__(self) -> None:
                super().__init__()
                self.linear = module

            if methods:

                def metrics(self, train=False):
                    return {}

                def validate(self, batch):
                    return module(batch[0]), batch[1]

        class Optimizer(torch.optim.SGD):
            def step(self, closure=None):
                assert module is not None
                return super().step(closure)

        model = Model()
        with Trainer(
            model=model,
            train_dataloader=regression_data(),
            eval_dataloader=regression_data(1),
            optimizers=Optimizer(model.parameters(), lr=0.1),
            max_duration="1ep",
            progress_bar=False,
        ) as trainer:
            trainer.fit()
        return [weakref.ref(thing) for thing in (module, module.weight, Model, Optimizer, trainer)]

    left = run()
    gc.collect()
    assert [thing() for thing in left] == [None] * 5


def test_blocks_with_stochastic_depth_share_a_class_that_is_freed() -> None:
    def run() -> weakref.ref:
        torchvision = pytest.importorskip("torchvision")

        class Block(torchvision.models.resnet.BasicBlock):
            pass

        model = nn.Sequential(Block(4, 4), Block(4, 4))
        apply_stochastic_depth(model, Block, drop_rate=0.5)
        assert type(model[0]) is type(model[1]) is not Block
        return weakref.ref(Block)

    left = run()
    gc.collect()
    assert left() is None
