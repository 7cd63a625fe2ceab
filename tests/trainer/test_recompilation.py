"""How often training is compiled: once, and once more for batches of any size; never because a number changes."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from composer import Algorithm, Callback, Trainer, trees
from composer.algorithms import EMA, LabelSmoothing, LayerFreezing, ProgressiveResizing, SeqLengthWarmup, StochasticDepth
from composer.models import ComposerClassifier
from composer.optim import LinearScheduler
from tests.algorithms.cases import Case, all_cases, make_batches, make_model
from tests.algorithms.text import make_text_batches, make_text_model
from tests.common import Received
from tests.trainer.test_sync_free import Step

CASES = all_cases()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

# The first batch of another size is the 7th; more follow, in a second epoch too.
FIRST, OTHER_SIZE = 1, 7
USUAL = {FIRST, OTHER_SIZE}

MORE: dict[str, dict[int, str]] = {
    "GyroDropout": {2: "The masks, of which there are none in the first pass, are then a tensor."},
    "SelectiveBackprop": {6: "Until then batches were cut, and the full one is evaluated without gradients before."},
    "SeqLengthWarmup": {3: "The second length; from then on it may be any."},
}
"""Steps in which a method makes the model be compiled once more, and why."""

BREAKS: dict[str, str] = {}
"""Methods with which the model is not one graph, and why."""


class Compiled:
    """What was compiled in a run, as a backend.

    Attributes:
        steps: The step, counted from 1, of each compilation.
    """

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.step = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.steps.append(self.step)
        return graph.forward

    def tell(self, step: int | None) -> None:
        self.step = step or self.step


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


def cut(batch: Any, number: int) -> Any:
    """The first samples of a batch."""
    return trees.map_tensors(lambda tensor: tensor[:number], batch)


def compiled(
    model: nn.Module, data: list[Any], *algorithms: Algorithm, callbacks: list[Callback] | None = None, **more: Any
) -> Compiled:
    """Train two epochs with a learning rate that changes in each step; return what was compiled."""
    found = Compiled()
    more.setdefault("optimizers", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    trainer = Trainer(
        model=model,
        train_dataloader=data,
        max_duration="2ep",
        schedulers=LinearScheduler(),
        algorithms=list(algorithms),
        callbacks=[Step(found.tell), *(callbacks or [])],
        loggers=Received(50),
        progress_bar=False,
        seed=3,
        compile_config={"backend": found},
        **more,
    )
    trainer.fit()
    trainer.close()
    return found


@every_case
def test_each_method_compiles_as_often_as_declared(case: Case) -> None:
    torch.manual_seed(3)
    model = case.model()
    if hasattr(model, "seen"):
        model.seen = collections.deque(maxlen=0)  # a list that grows is another one in each step
    batches = case.batches()
    size = len(next(iter(trees.leaves(batches[0]))))
    data = [*batches, *batches[:2], cut(batches[2], size - 2), cut(batches[3], size - 1)]
    optimizer = case.optimizer(model)
    given = {} if optimizer is None else {"optimizers": optimizer}
    found = compiled(model, data, case.make(), precision=case.precision, **given)
    expected = USUAL | MORE.get(case.name, {}).keys()
    assert sorted(found.steps) == sorted(expected)
    assert bool(counters["graph_break"]) is (case.name in BREAKS), dict(counters["graph_break"])
