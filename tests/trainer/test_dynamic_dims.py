"""Sizes that methods change: blocks are compiled once, in whatever layout they get activations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from composer.algorithms import ProgressiveResizing, SelectiveBackprop, SeqLengthWarmup
from composer.callbacks import RecompileMonitor
from composer.core.model import ComposerModel
from composer.models import ComposerClassifier
from composer.parallel.wrapping import repeated_blocks
from tests.algorithms.text import make_text_batches, make_text_model
from tests.trainer.test_regional_compilation import WIDTH, Block, Graphs, regional, rows, train

# torch hides it by its function that shows warnings, which is not called where warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(("dims", "number"), [((1,), 1), ((), 2)])
@pytest.mark.parametrize("masked", [True, False])
def test_lengths_that_a_method_declares_compile_once(dims: tuple[int, ...], number: int, masked: bool) -> None:
    backend = Graphs()
    method = SeqLengthWarmup(duration=1.0, min_seq_length=4, max_seq_length=16, step_size=2)
    method.__traits__ = replace(method.__traits__, dynamic_dims=dims)
    model = make_text_model(3)
    for block in repeated_blocks(model):
        if not masked:  # otherwise it gets a square mask from the model, whose first dimension is not declared
            block.register_forward_pre_hook(lambda module, args, kwargs: (args, {}), with_kwargs=True)
    train(regional(backend, fullgraph=True), model, data=make_text_batches(8), algorithms=[method])
    assert len(backend) == number


class Layout(ComposerModel):
    """Blocks on activations of some layout, which they bring into (B, N, C) themselves."""

    class Block(nn.Module):
        def __init__(self, layout: str) -> None:
            super().__init__()
            self.layer, self.layout = nn.Linear(WIDTH, WIDTH), layout

        def forward(self, x: Tensor, *more: Tensor) -> Tensor:
            y = self.layer(x)
            if self.layout == "mask":
                y = more[0] @ y
            elif self.layout == "rotary":
                y = y * more[0] + y.roll(1, -1) * more[1]
            elif self.layout == "tuple":
                return x + y * more[0][1]
            return x + torch.relu(y)

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout, self.embed = layout, nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList([self.Block(layout) for _ in range(3)])
        self.head = nn.Linear(WIDTH, 20)

    def forward(self, batch: Any) -> Tensor:
        x = torch.tanh(self.embed(batch["input_ids"]))
        length, more = x.shape[1], []
        if self.layout == "mask":
            more = [torch.ones(1, length, length).tril()]
        elif self.layout == "rotary":
            angles = torch.arange(length)[:, None] * torch.ones(WIDTH)
            more = [angles.cos(), angles.sin()]
        elif self.layout == "tuple":
            more = [(0, torch.ones(len(x), length, 1))]
        elif self.layout == "length first":
            x = x.transpose(0, 1).contiguous()
        elif self.layout == "flat":
            x = x.flatten(0, 1)
        for block in self.blocks:
            x = block(x, *more)
        return self.head(x.transpose(0, 1) if self.layout == "length first" else x)

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(outputs.flatten(0, -2), batch["labels"].flatten())


@pytest.mark.parametrize("microbatch", [None, 3])
@pytest.mark.parametrize("layout", ["", "mask", "rotary", "tuple", "length first", "flat"])
def test_lengths_compile_once_in_any_layout_of_activations(layout: str, microbatch: int | None) -> None:
    backend, method = Graphs(), SeqLengthWarmup(duration=1.0, min_seq_length=4, max_seq_length=16, step_size=2)
    options = {"data": make_text_batches(8), "algorithms": [method], "device_train_microbatch_size": microbatch}
    _, losses = train(regional(backend, fullgraph=True), Layout(layout), **options)
    assert len(backend) == 1
    torch._dynamo.reset()
    assert len(losses) == 16


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.layer(x))


class Pooled(nn.Module):
    """The mean of tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1, -2).mean(1)


class Patches(nn.Module):
    """Images to tokens (B, N, C), or to (B, H, W, C)."""

    def __init__(self, flat: bool) -> None:
        super().__init__()
        self.layer, self.flat = nn.Conv2d(1, WIDTH, 2, stride=2), flat

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.layer(x)).permute(0, 2, 3, 1)
        return x.flatten(1, 2) if self.flat else x


NETS = {
    "images": lambda: [nn.Conv2d(1, 2, 3), *(Residual() for _ in range(3)), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                       nn.Linear(2, 3)],
    "tokens": lambda: [Patches(flat=True), *(Block() for _ in range(3)), Pooled(), nn.Linear(WIDTH, 3)],
    "channels last": lambda: [Patches(flat=False), *(Block() for _ in range(3)), Pooled(), nn.Linear(WIDTH, 3)],
}  # fmt: skip


@pytest.mark.parametrize("net", NETS)
def test_sizes_of_images_that_a_method_declares_compile_once(net: str) -> None:
    backend = Graphs()
    model = ComposerClassifier(nn.Sequential(*NETS[net]()), 3)
    data = [(torch.randn(4, 1, 32, 32), y[:4]) for _, y in rows(8)]
    method = ProgressiveResizing(initial_scale=0.25, delay_fraction=0.0, finetune_fraction=0.0, size_increment=2)
    losses = train(regional(backend), model, data=data, algorithms=[method], max_duration="8ep")[1]
    assert len(backend) == 1
    assert len(losses) == 64


def test_numbers_of_samples_that_a_method_changes_do_not_make_other_sizes_dynamic() -> None:
    backend = Graphs()
    method = SelectiveBackprop(start=0.0, end=1.0, keep=0.5, interrupt=0)
    model = ComposerClassifier(nn.Sequential(Patches(flat=True), Block(), Block(), Pooled(), nn.Linear(WIDTH, 3)), 3)
    train(regional(backend), model, data=[(torch.randn(8, 1, 8, 8), torch.randint(3, (8,)))] * 3, algorithms=[method])
    dynamic = {dim for graph in backend.graphs for node in graph.graph.nodes if node.op == "placeholder"
               for dim, size in enumerate(getattr(node.meta.get("example_value"), "shape", ()))
               if not isinstance(size, int)}  # fmt: skip
    assert dynamic == {0}


def pooling_net() -> nn.Sequential:
    """In the third layer, of the first images, the number of pixels of the batch is that of channels."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 4), (4, 8), (8, 8)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))


def residual_net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 2, 3), Residual(), Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(2, 3))  # fmt: skip


@pytest.mark.parametrize(("make", "config"), [(pooling_net, {}), (residual_net, {"regional": True})])
def test_inductor_compiles_convolutions_once_for_each_size(
    make: Callable[[], nn.Module], config: dict[str, Any]
) -> None:
    """Compiled for any size, the full net ends in an error of inductor, in the first step or at the third size."""
    generator = torch.Generator().manual_seed(2)
    data = [(torch.randn(2, 1, 16, 16, generator=generator), torch.randint(3, (2,), generator=generator))] * 6
    losses = {}
    monitor = RecompileMonitor()
    for given in (None, config):
        torch.manual_seed(0)
        model = ComposerClassifier(make(), 3)
        method = ProgressiveResizing(delay_fraction=0.0, finetune_fraction=0.2, size_increment=4)
        losses[given is None] = train(given, model, data=data, algorithms=[method], callbacks=[monitor])[1]
    assert monitor.compilations == 3  # 8, 12 and 16 pixels
    assert losses[False] == pytest.approx(losses[True], abs=1e-4)
