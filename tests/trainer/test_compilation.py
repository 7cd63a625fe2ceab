"""CompileMatrix: compiled training gives the losses of eager training, under the same names."""

from __future__ import annotations

import inspect
import math
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from composer import Algorithm, Callback, Trainer, trees
from composer.algorithms import EMA, BlurPool, ChannelsLast, LabelSmoothing, MixUp, ProgressiveResizing
from composer.loggers import InMemoryLogger
from composer.models import ComposerClassifier
from composer.trainer.compilation import _has_cuda_graphs
from tests.common import Received, Recorder, Regression, regression_data, trainer_of, weights_of

METHODS: dict[str, Any] = {
    "none": list,
    "BlurPool": lambda: [BlurPool()],
    "ChannelsLast": lambda: [ChannelsLast()],
    "EMA": lambda: [EMA(half_life="2ba")],
    "LabelSmoothing": lambda: [LabelSmoothing(0.1)],
    "MixUp": lambda: [MixUp(0.2)],
    "ProgressiveResizing": lambda: [ProgressiveResizing(delay_fraction=0.0, finetune_fraction=0.0, size_increment=4)],
    "all": lambda: [BlurPool(), ChannelsLast(), EMA(half_life="2ba"), LabelSmoothing(0.1), MixUp(0.2)],
}


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A backend that hands on to another one, and counts the graphs that it is given."""

    def __init__(self, backend: str) -> None:
        self.graphs = 0
        self.backend = torch._dynamo.lookup_backend(backend)

    def __call__(self, graph, inputs, **more):
        self.graphs += 1
        return self.backend(graph, inputs, **more)


def network() -> ComposerClassifier:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return ComposerClassifier(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)), 3)


def images(num_batches: int = 4) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(4, 1, 16, 16, generator=generator), torch.randint(3, (4,), generator=generator))
        for _ in range(num_batches)
    ]


def train(method: str, compile_config: dict[str, Any] | None, **more: Any) -> tuple[Trainer, list[float], list[float]]:
    model, log = network(), Received()
    trainer = trainer_of(
        model,
        images(),
        algorithms=METHODS[method](),
        max_duration="2ep",
        compile_config=compile_config,
        loggers=log,
        eval_dataloader=images(2),
        seed=3,
        **more,
    )
    trainer.fit()
    return (
        trainer,
        [value for _, value in log.series("loss/train/total")],
        [value for _, value in log.series("metrics/eval/CrossEntropy")],
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("method", METHODS)
def test_CompileMatrix(method, backend) -> None:
    compiler = Counting(backend)
    eager, losses, evaluations = train(method, None)
    compiled, compiled_losses, compiled_evaluations = train(method, {"backend": compiler})
    assert compiler.graphs > 0
    assert compiled_losses == pytest.approx(losses, rel=1e-4)
    assert compiled_evaluations == pytest.approx(evaluations, rel=1e-4)
    names = compiled.state.model.state_dict().keys()
    assert names == eager.state.model.state_dict().keys()
    assert not any("_orig_mod" in name for name in names)
    assert not any("_orig_mod" in name for name, _ in compiled.state.model.named_modules())
    assert compiler.graphs <= 2  # training and evaluation


def test_predictions_match_eager_mode() -> None:
    trainer, *_ = train("none", {"backend": "eager"})
    compiled = trainer.predict(images(1))[0]
    with torch.no_grad():
        eager = trainer.state.model.eval().module(images(1)[0][0])
    torch.testing.assert_close(compiled, eager)


# ---------------------------------------------------------------------------------------------------- one graph or two


class LossWatch(Callback):
    def __init__(self) -> None:
        self.seen: list[tuple[Any, Any]] = []

    def before_loss(self, state, logger):
        self.seen.append((state.outputs.clone(), state.loss))


@pytest.mark.parametrize("listens", [False, True])
def test_forward_and_loss_are_one_graph_without_readers(listens) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    watch = LossWatch()
    model = Regression()
    trainer_of(model, lr=0.0, compile_config={"backend": keep}, callbacks=[watch] if listens else []).fit()
    (graph,) = graphs
    has_loss = "mse_loss" in graph.code
    assert has_loss is not listens
    if listens:
        for (outputs, loss), batch in zip(watch.seen, regression_data(), strict=True):
            torch.testing.assert_close(outputs, model.linear(batch[0]))
            assert loss is None


class Overwritten:
    """``torch.compile`` as if with CUDA graphs: each run of a function destroys what its run before returned."""

    def __init__(self) -> None:
        self.runs = 0
        self.__signature__ = inspect.signature(torch.compile)

    def __call__(self, function=None, **config):
        before: list[torch.Tensor] = []

        def run(*arguments):
            self.runs += 1
            for tensor in before:
                tensor.data.fill_(float("nan"))
            results = function(*arguments)
            before[:] = [leaf for leaf in trees.leaves(results) if isinstance(leaf, torch.Tensor)]
            return results

        return run


class Keeping(Callback):
    """Keeps outputs and losses, as metrics with lists of predictions and users do."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []

    def batch_end(self, state, logger):
        self.found += [state.outputs, state.loss, *state.total_loss_dict.values()]

    def eval_batch_end(self, state, logger):
        self.found.append(state.outputs)

    def predict_batch_end(self, state, logger):
        self.found.append(state.outputs)


@pytest.mark.parametrize(
    "config", [{"mode": "reduce-overhead"}, {"mode": "max-autotune"}, {"options": {"triton.cudagraphs": True}}]
)
@pytest.mark.parametrize("listens", [False, True], ids=["one graph", "two graphs"])
@pytest.mark.parametrize("size", [None, 1])
def test_tensors_that_outlive_a_step_are_not_in_cuda_graph_memory(config, listens, size, monkeypatch) -> None:
    compiling = Overwritten()
    monkeypatch.setattr(torch, "compile", compiling)
    monkeypatch.setattr(
        torch.nn.Module,
        "compile",
        lambda self, **config: setattr(self, "_compiled_call_impl", compiling(self._call_impl)),
    )
    kept, log = Keeping(), InMemoryLogger()
    trainer = trainer_of(
        Regression(),
        compile_config=config,
        callbacks=[kept, *([LossWatch()] if listens else [])],
        loggers=log,
        eval_dataloader=regression_data(),
        device_train_microbatch_size=size,
    )
    trainer.fit()
    predicted = trainer.predict(regression_data())
    assert compiling.runs > 8
    assert all(value.isfinite().all() for value in [*kept.found, *predicted])
    losses = [float(value) for _, value in log.data["loss/train/total"]]
    assert all(math.isfinite(loss) for loss in losses)


class StaticGradient(torch.autograd.Function):
    """The identity; its gradient is in the same memory each time, as that of the CUDA graph of a backward pass."""

    memory: ClassVar[dict[str, torch.Tensor]] = {}

    @staticmethod
    def forward(context, weight, name):
        context.name = name
        for tensor in StaticGradient.memory.values():
            tensor.fill_(float("nan"))  # a new run of the graphs: what they have returned is not to be read any more
        return weight.view_as(weight)

    @staticmethod
    def backward(context, gradient):
        memory = StaticGradient.memory.setdefault(context.name, torch.empty_like(gradient))
        return memory.copy_(gradient).detach(), None


class StaticRegression(Regression):
    """Computes as with CUDA graphs, and its metrics by a pass of their own."""

    def forward(self, batch):
        weight, bias = (StaticGradient.apply(p, name) for name, p in self.linear.named_parameters())
        return nn.functional.linear(batch[0], weight, bias)

    def eval_forward(self, batch, outputs=None):
        return self.forward(batch)


@pytest.mark.parametrize("size", [None, 1, 2, "auto"])
@pytest.mark.parametrize("measured", [False, True])
def test_gradients_outlive_the_next_cuda_graph_replay(size, measured, monkeypatch) -> None:
    monkeypatch.setattr("composer.trainer.compilation._has_cuda_graphs", lambda config: True)
    monkeypatch.setattr(StaticGradient, "memory", {})
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(nn.Module, "compile", lambda self, **config: None)
    found = []
    for kind, arguments in ((Regression, {}), (StaticRegression, {"compile_config": {}})):
        torch.manual_seed(0)
        model = kind(metrics=measured)
        trainer_of(model, regression_data(4, 4), device_train_microbatch_size=size, **arguments).fit()
        found.append(weights_of(model))
    assert StaticGradient.memory
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_cuda_graphs_are_detected_in_every_setting() -> None:
    import torch._inductor.config as inductor

    wrapped = torch.compile(Regression(), mode="reduce-overhead")
    assert trainer_of(wrapped)._run.reuses_outputs
    assert not trainer_of(torch.compile(Regression(), backend="eager"))._run.reuses_outputs
    assert _has_cuda_graphs({"backend": "cudagraphs"})
    assert not _has_cuda_graphs({})
    with inductor.patch({"triton.cudagraphs": True}):
        assert _has_cuda_graphs({})


@pytest.mark.parametrize(
    "config", [{"backend": "eager"}, {"backend": "eager", "options": {"triton.cudagraphs": False}}]
)
def test_without_cuda_graphs_nothing_is_copied(config) -> None:
    assert not trainer_of(compile_config=config)._run.reuses_outputs


@pytest.mark.parametrize("event", [None, "after_loss", "before_backward"])
def test_fused_graph_outputs_require_grad_only_with_listeners(event) -> None:
    seen: list[bool] = []

    class Adds(Algorithm):
        """A term of the outputs, added to the loss after it was computed."""

        def match(self, event_, state):
            return event_.value == event

        def apply(self, event_, state, logger):
            seen.append(state.outputs.requires_grad)
            state.loss = state.loss + state.outputs.square().mean()

    class Ends(Algorithm):
        def after_backward(self, state, logger):
            seen.append(state.outputs.requires_grad)

    gradients = []
    for config in (None, {"backend": "aot_eager"}):
        torch.manual_seed(0)
        model = Regression()
        trainer_of(model, lr=0.1, compile_config=config, algorithms=[Adds() if event else Ends()]).fit()
        gradients.append(weights_of(model))
    assert torch.allclose(*gradients, atol=1e-6)
    assert seen[-1] is (event is not None)


def test_first_listener_may_be_added_while_training() -> None:
    class Late(Algorithm):
        def after_forward(self, state, logger):
            state.outputs = state.outputs * 0

    log = Received()
    trainer = trainer_of(lr=0.0, compile_config={"backend": "eager"}, loggers=log)
    trainer.fit()
    trainer.state.algorithms.append(Late())
    trainer.fit(duration="1ep")
    losses = [value for _, value in log.series("loss/train/total")]
    model = trainer.state.model
    expected = [model.loss(model.linear(b[0]), b).item() for b in regression_data()]
    expected += [b[1].square().mean().item() for b in regression_data()]
    assert losses == pytest.approx(expected, rel=1e-5)


def test_microbatches_and_a_short_last_batch() -> None:
    data = [*regression_data(3, 6), *regression_data(1, 5, seed=3)]
    losses = []
    for config in (None, {"backend": "aot_eager"}):
        torch.manual_seed(0)
        log = Received()
        trainer_of(Regression(), data, compile_config=config, device_train_microbatch_size=2, loggers=log).fit()
        losses.append([value for _, value in log.series("loss/train/total")])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_bfloat16() -> None:
    _, losses, _ = train("none", None, precision="amp_bf16")
    _, compiled, _ = train("none", {"backend": "eager"}, precision="amp_bf16")
    assert compiled == pytest.approx(losses, rel=1e-3)


# ---------------------------------------------------------------------------------------------------- a compiled model


def test_a_model_that_was_compiled_before() -> None:
    compiler = Counting("eager")
    model = network()
    compiled = torch.compile(model, backend=compiler)
    log, recorder = Received(), Recorder()
    trainer = Trainer(
        model=compiled,
        train_dataloader=images(),
        max_duration="2ep",
        optimizers=torch.optim.SGD(compiled.parameters(), lr=0.1),
        loggers=log,
        callbacks=recorder,
        eval_dataloader=images(2),
        progress_bar=False,
        seed=3,
    )
    assert trainer.state.model is model
    trainer.fit()
    assert compiler.graphs == 2  # training and evaluation, however many steps
    assert "after_forward" in recorder.events
    _, losses, _ = train("none", None)
    assert [value for _, value in log.series("loss/train/total")] == pytest.approx(losses, rel=1e-4)
    assert not any("_orig_mod" in name for name in trainer.state.model.state_dict())


@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
@pytest.mark.slow
def test_CompileMatrix_inductor() -> None:
    """The default compiler, once; it needs a C++ compiler on the CPU."""
    import shutil

    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("needs a C++ compiler")
    losses = []
    for config in (None, {}):
        torch.manual_seed(0)
        log = Received()
        trainer_of(Regression(), compile_config=config, loggers=log).fit()
        losses.append([value for _, value in log.series("loss/train/total")])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_each_trainer_of_a_process_is_compiled() -> None:
    """Of one function, torch compiles 8 versions, and runs further ones eagerly."""
    for width in range(4, 14):
        backend = Counting("eager")
        net = nn.Sequential(nn.Flatten(), nn.Linear(256, width), nn.ReLU(), nn.Linear(width, 3))
        trainer = trainer_of(ComposerClassifier(net, 3), images(2), compile_config={"backend": backend})
        trainer.fit(duration="2ba")
        trainer.eval(images(1))
        trainer.close()
        assert backend.graphs == 2  # with the loss, and the forward pass alone
