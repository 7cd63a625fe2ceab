"""The number of compilations: one, and one more for dynamic batch sizes; none because a number changes."""

from __future__ import annotations

import collections
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from composer import Algorithm, Trainer, trees
from composer.algorithms import EMA, LabelSmoothing, ProgressiveResizing, SeqLengthWarmup, StochasticDepth
from composer.functional import register_residual_block
from composer.models import ComposerClassifier
from composer.optim import LinearScheduler
from tests.algorithms.cases import Case, all_cases, make_batches, make_model
from tests.algorithms.text import make_text_batches, make_text_model
from tests.common import Received, Regression, labeled_data, trainer_of
from tests.trainer.test_sync_free import Step

ALIKE = {"ColOut", "CutOut", "ProgressiveResizing", "StochasticDepth"}
"""Methods whose cases differ in what happens before the model only, or that are below in each form."""
CASES = [case for case in all_cases() if case.name not in ALIKE]
CASES += {case.name: case for case in reversed(all_cases()) if case.name in ALIKE}.values()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)

# The first batch of another size is the 7th; more follow, in a second epoch too.
USUAL = [1, 7]

FEWER: dict[str, str] = {
    "BatchSizeWarmup": "It declares that the number of samples changes, so that any number is compiled."
}
"""Methods with which a model is compiled once for all sizes of batches, and why."""

MORE: dict[str, dict[int, str]] = {
    "GhostBatchNorm": {8: "One graph for each number of ghost batches: 4 samples make two, 5 and 6 make three."},
    "GyroDropout": {
        2: "The masks, of which there are none in the first pass, are then a tensor.",
        8: "The samples cannot be divided evenly among the masks.",
    },
    "LayerFreezing": {
        13: "The first layers are frozen, and their gradients left out of the graph.",
        15: "So are those after them.",
    },
    "SelectiveBackprop": {1: "Losses without gradients, by which samples are selected."},
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

    @property
    def is_unsharded(self) -> bool:
        """Whether all that was compiled is one graph, and nothing was left to Python."""
        frames = counters["frames"]
        return not counters["graph_break"] and frames["total"] == frames["ok"] == len(self.steps)

    def tell(self, step: int | None) -> None:
        self.step = step or self.step


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    # Dynamo counts a function that a collection calls in a step, such as a finalizer of what another test has left.
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    torch._dynamo.reset()
    counters.clear()


def cut(batch: Any, number: int) -> Any:
    """The first samples of a batch."""
    return trees.map_tensors(lambda tensor: tensor[:number], batch)


def compiled(model: nn.Module, data: list[Any], *algorithms: Algorithm, **more: Any) -> Compiled:
    """Train two epochs with a learning rate that changes in each step; return what was compiled."""
    found = Compiled()
    more.setdefault("max_duration", "2ep")
    more.setdefault("optimizers", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    trainer = Trainer(
        model=model,
        train_dataloader=data,
        schedulers=LinearScheduler(),
        algorithms=list(algorithms),
        callbacks=Step(found.tell),
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
    assert sorted(found.steps) == sorted([*(USUAL[:1] if case.name in FEWER else USUAL), *MORE.get(case.name, {})])
    noted = {name: dict(counters[name]) for name in ("graph_break", "frames", "unimplemented")}
    noted["functions"] = [(one.co_filename, one.co_name) for one in torch._dynamo.utils.get_compilation_metrics()]
    assert found.is_unsharded is (case.name not in BREAKS), (noted, found.steps)


def test_declaration_tables_name_existing_methods() -> None:
    assert {*FEWER, *MORE, *BREAKS} <= {case.name for case in CASES}


def test_functions_that_collections_call_are_not_counted() -> None:
    before = gc.get_threshold()
    gc.callbacks.append(lambda phase, info: None)
    gc.set_threshold(1)
    try:
        found = compiled(dense(), labeled_data(8))
    finally:
        gc.set_threshold(*before)
        gc.callbacks.pop()
    assert found.is_unsharded


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_graph_break_is_detected() -> None:
    class Breaks(nn.Module):
        def forward(self, x):
            torch._dynamo.graph_break()
            return nn.functional.relu(x)

    model = make_model()
    model.net.append(Breaks())
    model.seen = collections.deque(maxlen=0)
    assert not compiled(model, make_batches()).is_unsharded


# ------------------------------------------------------------------------------------------- numbers that change


def dense() -> ComposerClassifier:
    return ComposerClassifier(nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 3)), 3)


def pictures(size: int = 32) -> list[Any]:
    return [(nn.functional.interpolate(x, size=(size, size)), y) for x, y in make_batches(8)]


def pooled() -> ComposerClassifier:
    layers = [nn.Conv2d(2, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)]
    return ComposerClassifier(nn.Sequential(*layers), 4)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return x + torch.relu(self.layer(x))


def residual() -> ComposerClassifier:
    register_residual_block(Residual)
    return ComposerClassifier(nn.Sequential(Residual(), Residual(), nn.Linear(4, 3)), 3)


CHANGING: dict[str, tuple[Callable[[], Any], Callable[[], list[Any]], Callable[[], list[Any]], list[int]]] = {
    # The learning rate changes in all of them.
    "nothing else": (dense, lambda: labeled_data(8), list, [1]),
    "sizes of images": (
        pooled,
        pictures,
        lambda: [ProgressiveResizing(initial_scale=0.25, delay_fraction=0.0, finetune_fraction=0.0, size_increment=2)],
        [1],
    ),
    "lengths of sequences": (
        make_text_model,
        lambda: make_text_batches() * 2,
        lambda: [SeqLengthWarmup(duration=1.0, min_seq_length=4, max_seq_length=16, step_size=2)],
        [1],
    ),
    "the drop rate of samples": (
        residual,
        lambda: labeled_data(8),
        lambda: [StochasticDepth("Residual", stochastic_method="sample", drop_rate=0.5, drop_warmup="1dur")],
        [1, 2],  # a number of the module, which is a symbol as soon as it has changed
    ),
    "the drop rate of blocks": (
        residual,
        lambda: labeled_data(8),
        lambda: [StochasticDepth("Residual", stochastic_method="block", drop_rate=0.5, drop_warmup="1dur")],
        [1],
    ),
    "smoothed labels and averages": (
        dense,
        lambda: labeled_data(8),
        lambda: [LabelSmoothing(0.1), EMA(half_life="2ba")],
        [1],
    ),
}


@pytest.mark.parametrize("what", CHANGING)
def test_changing_scalars_recompile_at_most_once(what: str) -> None:
    torch.manual_seed(0)
    make, data, methods, steps = CHANGING[what]
    found = compiled(make(), data(), *methods(), max_duration="4ep")
    assert found.steps == steps
    assert found.is_unsharded


def test_batch_of_one_sample_has_a_separate_graph() -> None:
    """As PyTorch always has it: sizes of 1 are not generalized."""
    data = [cut(batch, size) for batch, size in zip(labeled_data(6, 8), (8, 8, 4, 5, 1, 3), strict=True)]
    assert compiled(dense(), data).steps == [1, 3, 5]


# torch hides this warning of its compiler, but not from what makes warnings errors.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("where", ["forward", "loss"])
def test_a_model_that_logs_is_not_compiled_in_each_step(where: str) -> None:
    """Its values are those of each step, and the calls of the logger split the graph."""

    def logging(self, *given):
        result = getattr(ComposerClassifier, where)(self, *given)
        self.logger.log_metrics({"mine": result.detach().sum(), "size": len(result) if result.ndim else 1})
        return result

    logs = []
    for backend in (None, Compiled()):
        torch.manual_seed(0)
        model = dense()
        model.__class__ = type("Logging", (ComposerClassifier,), {where: logging})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        logs.append(Received())
        config = None if backend is None else {"backend": backend}
        data = labeled_data(12, 8)
        Trainer(
            model=model, train_dataloader=data, max_duration="1ep", optimizers=optimizer, seed=1, progress_bar=False,
            loggers=logs[-1], compile_config=config, callbacks=[] if backend is None else [Step(backend.tell)],
        ).fit()  # fmt: skip
    assert set(backend.steps) == {1}
    eager, found = (dict(log.series("mine")) for log in logs)
    assert list(found) == list(range(12))
    assert found == pytest.approx(eager, rel=1e-4)


def test_the_error_for_a_full_graph_of_a_model_that_logs_tells_what_to_do() -> None:
    class Logging(Regression):
        def forward(self, batch):
            self.logger.log_metrics({"mine": 1.0})
            return super().forward(batch)

    trainer = trainer_of(Logging(), compile_config={"fullgraph": True, "backend": "eager"})
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"self\.logger .* Log in a callback"):
        trainer.fit()
