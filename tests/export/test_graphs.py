"""torch.jit.script, torch.fx.symbolic_trace and torch.export.export of classifiers changed by algorithms."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torchmetrics.classification import MulticlassAccuracy

from composer import ComposerModel, algorithms, functional
from composer.core.algorithm_order import Slot
from composer.core.traits import traits_of
from composer.models import ComposerClassifier, composer_resnet_cifar
from composer.nn import GatedLinear, StochasticBlock
from composer.nn.alibi import add_alibi
from composer.nn.gyro_dropout import GyroDropoutLayer
from composer.nn.stochastic_depth import register_residual_block
from composer.utils import export_for_inference
from tests.common import CLASSES, classifier, labeled_data, trainer_of
from tests.export.reading import load_script
from tests.export.test_methods import SURGERY, convolutions
from tests.nn.blocks import BasicBlock, Bottleneck, TimmBasicBlock, TimmBottleneck

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.*:DeprecationWarning",
    "ignore:.*torch.jit.script.*:DeprecationWarning",
    "ignore::torch.jit.TracerWarning",
)

Batch = tuple[Tensor, Tensor]


def batch(samples: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(samples, 3, 16, 16, generator=generator), torch.arange(samples) % 3


def blocks(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), kind(8, 4, 8), kind(8, 4, 12), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3)
    )


def stochastic(kind: type[nn.Module], method: str) -> nn.Module:
    net = functional.apply_stochastic_depth(blocks(kind), kind, method, drop_rate=0.5)
    assert sum(isinstance(part, StochasticBlock) for part in net.modules()) == 2
    return net


def changed(method: str) -> nn.Module:
    net = convolutions()
    SURGERY[method](net)
    net[9].p = 0.0 if isinstance(net[9], nn.Dropout) else net[9].p
    return net


NETS: dict[str, Callable[[], nn.Module]] = {
    "none": lambda: nn.Sequential(*[part for part in convolutions() if not isinstance(part, nn.Dropout)]),
    **{method: lambda method=method: changed(method) for method in SURGERY},
    "blur_after": lambda: _blurred_after(),
    "gated_linear_units": lambda: nn.Sequential(nn.Flatten(), GatedLinear(3 * 16 * 16, 3, nn.GELU())),
    **{
        f"stochastic_depth-{kind.__name__}-{method}": lambda kind=kind, method=method: stochastic(kind, method)
        for kind in (BasicBlock, Bottleneck, TimmBasicBlock, TimmBottleneck)
        for method in ("block", "sample")
    },
}
WAYS: dict[str, Callable[[nn.Module, Batch], Any]] = {
    "script": lambda model, _: torch.jit.script(model),
    "fx": lambda model, _: fx.symbolic_trace(model),
    "export": lambda model, sample: torch.export.export(model, (sample,)).module(),
}
# Where torch has no form for what the method does.
IMPOSSIBLE = {
    ("weight_standardization", "script"): "Parametrization is not working with scripting",
}


def _blurred_after() -> nn.Module:
    net = convolutions()
    functional.apply_blurpool(net, min_channels=0, blur_first=False)
    net[9].p = 0.0
    return net


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", NETS)
def test_evaluation(method: str, way: str) -> None:
    model = ComposerClassifier(NETS[method](), num_classes=3).eval()
    expected = model(batch())
    if (method, way) in IMPOSSIBLE:
        with pytest.raises(Exception, match=IMPOSSIBLE[method, way]):
            WAYS[way](model, batch())(batch())
        return
    torch.testing.assert_close(WAYS[way](model, batch())(batch()), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(model(batch()), expected)  # it has not been changed by that


NO_SCRIPT_OF_TRAINING = {
    "weight_standardization": "Parametrization is not working with scripting",
    "gyro_dropout": r"supports only evaluation: call eval\(\) first",
}


@pytest.mark.parametrize("method", NETS)
def test_scripts_train(method: str) -> None:
    model = ComposerClassifier(NETS[method](), num_classes=3)
    for part in model.modules():
        if isinstance(part, StochasticBlock):
            part.block_drop_rate = 0.0  # else each would leave out others
    twin = copy.deepcopy(model)
    if method in NO_SCRIPT_OF_TRAINING:
        with pytest.raises(Exception, match=NO_SCRIPT_OF_TRAINING[method]):
            torch.jit.script(model)(batch())
        return
    scripted = torch.jit.script(model)
    for _ in range(2):
        found, expected = scripted(batch()), twin(batch())
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    found.sum().backward()
    expected.sum().backward()
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
    for (name, ours), theirs in zip(model.named_buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


@pytest.mark.parametrize("method", ["block", "sample"])
def test_scripts_leave_out_blocks_in_training(method: str) -> None:
    block = functional.apply_stochastic_depth(nn.Sequential(BasicBlock(8, 4, 8)), BasicBlock, method, drop_rate=1.0)[0]
    x = torch.randn(4, 8, 6, 6)
    torch.testing.assert_close(torch.jit.script(block)(x), x.relu())
    block.block_drop_rate = 0.5
    scripted = torch.jit.script(block)
    torch.manual_seed(0)
    left_out = [(scripted(x) == x.relu()).flatten(1).all(1) for _ in range(20)]
    assert 0.2 < torch.stack(left_out).float().mean() < 0.8
    assert any(one.any() and not one.all() for one in left_out) == (method == "sample")


def test_every_layer_replacing_algorithm_is_tested() -> None:
    """A new one needs a row above, or a reason here."""
    elsewhere = {
        "Alibi",  # attention of transformers, which neither scripts nor fx take; see below
        "NoOpModel",  # there is no model left
    }
    names = {name for name in algorithms.__all__ if traits_of(getattr(algorithms, name)).slot is Slot.SURGERY}
    here = {re.sub("[-_]", "", method.partition("-")[0]) for method in NETS}
    assert {name for name in names if name.lower() not in here} == elsewhere


def test_attention_with_alibi_is_exported() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    model, x = Attention().eval(), torch.randn(2, 5, 8)
    add_alibi(model.attention)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))


@pytest.mark.parametrize("way", WAYS)
def test_after_training(way: str) -> None:
    """A trained model has a logger, of which no graph knows."""
    model, data = classifier(), labeled_data()
    model.val_metrics = MulticlassAccuracy(CLASSES)
    trainer_of(model, data).fit()
    assert model.logger is not None
    model.eval()
    torch.testing.assert_close(WAYS[way](model, data[0])(data[0]), model(data[0]))


class OwnModel(ComposerModel):
    """A model of a user's own, annotated as TorchScript wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.linear(batch[0])


@pytest.mark.parametrize("way", WAYS)
def test_custom_models(way: str) -> None:
    model, sample = OwnModel(), (torch.randn(3, 4), torch.zeros(3))
    model.logger = object()  # type: ignore[assignment]
    torch.testing.assert_close(WAYS[way](model, sample)(sample), model(sample))


def test_torchscript_without_a_sample(tmp_path: Path) -> None:
    model = composer_resnet_cifar("resnet_20")
    functional.apply_blurpool(model, min_channels=16)
    export_for_inference(model, "torchscript", str(tmp_path / "net.pt"))
    torch.testing.assert_close(load_script(tmp_path / "net.pt")(batch()), model.eval()(batch()))


def test_training_graph_fixes_one_choice_of_blocks() -> None:
    """As docs/migrating.md says: which blocks are left out is decided while they are traced."""

    class GraphBlock(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.body(x)

    def net(method: str) -> nn.Module:
        register_residual_block(GraphBlock)
        blocks = nn.Sequential(*(GraphBlock() for _ in range(8)))
        return functional.apply_stochastic_depth(blocks, GraphBlock, method, 0.5, "uniform").train()

    torch.manual_seed(0)
    x, blocks = torch.randn(16, 4), net("block")
    graph = fx.symbolic_trace(blocks)
    assert 0 < sum(node.op == "call_module" for node in graph.graph.nodes) < 8
    assert torch.equal(graph(x), graph(x))
    for model in (net("sample"), GyroDropoutLayer(0.5, 4, 4)):
        with pytest.raises(fx.proxy.TraceError):
            fx.symbolic_trace(model.train())
        torch.testing.assert_close(fx.symbolic_trace(model.eval())(x), model(x))
