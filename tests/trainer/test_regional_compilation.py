"""Regional compilation: each class of repeated blocks is compiled once, and a run is otherwise as without."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from composer import Trainer
from composer.algorithms import EMA, LayerFreezing, StochasticDepth
from composer.checkpoint.file_format import read
from composer.export import ExportFormat
from composer.functional import register_residual_block
from composer.models import ComposerClassifier
from composer.parallel.activation_checkpointing import apply_activation_checkpointing
from composer.parallel.wrapping import repeated_blocks
from composer.trainer.regional_compilation import compile_blocks
from composer.warnings import ComposerWarning
from tests.common import Received, trainer_of, weights_of

WIDTH = 8
# torch hides it by its function that shows warnings, which is not called where warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    counters.clear()


class Graphs:
    """A backend that keeps the graphs that it is given, and runs them eagerly."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs.append(graph)
        return graph.forward

    def __len__(self) -> int:
        return len(self.graphs)


class Block(nn.Module):
    def __init__(self, width: int = WIDTH, scale: float = 1.0) -> None:
        super().__init__()
        self.norm, self.layer, self.scale = nn.LayerNorm(width), nn.Linear(width, width), scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * torch.relu(self.layer(self.norm(x)))


class Entry(nn.Module):
    """A linear layer whose outputs have no base, as those of embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


def classifier(*blocks: nn.Module) -> ComposerClassifier:
    torch.manual_seed(0)
    chosen = blocks or tuple(Block() for _ in range(4))
    return ComposerClassifier(nn.Sequential(Entry(), *chosen, nn.Linear(WIDTH, 3)), 3)


def rows(batches: int = 4, size: int = 6) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 4, generator=generator), torch.randint(3, (size,), generator=generator))
        for _ in range(batches)
    ]


def train(compile_config: Any, model: Any = None, **more: Any) -> tuple[Trainer, list[float]]:
    log = Received()
    more = {"data": rows(), "max_duration": "2ep", "seed": 3, **more}
    trainer = trainer_of(model or classifier(), more.pop("data"), compile_config=compile_config, loggers=log, **more)
    trainer.fit()
    return trainer, [value for _, value in log.series("loss/train/total")]


def regional(backend: Any = "aot_eager", **more: Any) -> dict[str, Any]:
    return {"regional": True, "backend": backend, **more}


# ----------------------------------------------------------------------------------------------------- what is compiled


def test_equal_blocks_are_compiled_once() -> None:
    backend = Graphs()
    trainer, losses = train(regional(backend, fullgraph=True))
    assert len(backend) == 1
    assert losses == pytest.approx(train(None)[1], rel=1e-5)
    assert not counters["graph_break"]
    trainer.eval(rows(2))
    assert len(backend) == 2  # without gradients
    trainer.eval(rows(2))
    assert len(backend) == 2


def test_each_class_and_shape_has_a_function() -> None:
    backend = Graphs()
    encoder = nn.TransformerEncoderLayer(WIDTH, 2, 4, dropout=0.0, batch_first=True)
    wide = nn.ModuleList([Block(4), Block(4)])
    model = nn.Sequential(Block(), Block(), encoder, copy.deepcopy(encoder), wide)
    groups = compile_blocks(model, {"backend": backend, "fullgraph": True})
    assert [len(group) for group in groups] == [2, 2, 2]
    x = torch.randn(2, 3, WIDTH).tanh().requires_grad_()
    for module in model[:4]:
        x = module(x)
    y = torch.randn(2, 4).requires_grad_()
    for module in wide:
        y = module(y)
    assert len(backend) == 3  # torch leaves TransformerEncoderLayer.compile() out without a word


def test_sizes_of_one_group_are_not_dynamic_in_another() -> None:
    backend = Graphs()
    model = nn.ModuleList([*[Block(4) for _ in range(3)], *[Block(6) for _ in range(3)]])
    compile_blocks(model, {"backend": backend})
    for block in model:
        block(torch.randn(5, block.norm.normalized_shape[0]).requires_grad_())
    assert len(backend) == 2
    assert not any("s" in str(node.meta.get("example_value")) and "Sym" in str(node.meta.get("example_value"))
                   for graph in backend.graphs for node in graph.graph.nodes)  # fmt: skip


def test_blocks_that_differ_in_a_number_are_all_compiled() -> None:
    class Drops(Block):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.norm = nn.Dropout(rate)

    backend = Graphs()
    train(regional(backend), classifier(*[Drops(number / 100) for number in range(10)]), max_duration="1ba")
    assert len(backend) == 10  # more than torch's limit of 8, beyond which blocks are not compiled


@pytest.mark.parametrize(
    "net",
    [
        lambda: nn.Linear(4, 3),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)),  # single operations
        lambda: nn.Sequential(Entry(), Block(), nn.Linear(WIDTH, 3)),
    ],
)
def test_model_without_repeated_blocks_is_an_error(net: Any) -> None:
    model = ComposerClassifier(net(), 3)
    message = r"ComposerClassifier has none\. Leave 'regional' out .* module._fsdp_wrap = True on each"
    with pytest.raises(ValueError, match=message):
        trainer_of(model, rows(), compile_config=regional())


def tied(wrapped: bool = False) -> nn.Module:
    blocks = [Block() for _ in range(3)]
    for block in blocks:
        block.layer.weight = blocks[0].layer.weight
        if wrapped:
            block._fsdp_wrap = True
    return nn.Sequential(Entry(), *blocks, nn.Linear(WIDTH, 3))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (tied, r"the blocks of ComposerClassifier share \S*1.layer.weight. Leave 'regional' out"),
        (lambda: tied(wrapped=True), "cannot compile the blocks .* shares .*1.layer.weight with.*leave 'regional' out"),
        (
            lambda: nn.Sequential(Entry(), nn.Sequential(*[Block()] * 3), nn.Linear(WIDTH, 3)),
            r"the blocks of ComposerClassifier share \S*1.0.norm.weight, .*1.0.layer.bias. Leave 'regional' out",
        ),
    ],
)
def test_blocks_that_share_weights_are_an_error(net: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"compile_config: regional=True .*{message}") as caught:
        trainer_of(ComposerClassifier(net(), 3), rows(), compile_config=regional())
    assert "_fsdp_wrap = True" not in str(caught.value)
    trainer_of(ComposerClassifier(net(), 3), rows(), compile_config={"backend": Graphs()})


def test_blocks_that_run_eagerly_because_they_share_weights_are_named() -> None:
    blocks = [Block() for _ in range(4)]
    blocks[3].layer.weight = blocks[2].layer.weight
    net = nn.Sequential(Entry(), *blocks, nn.Linear(WIDTH, 3))
    message = r"compiles 2 blocks of ComposerClassifier. The others share \S*3.layer.weight, and run eagerly"
    with pytest.warns(ComposerWarning, match=message):
        train(regional("eager"), ComposerClassifier(net, 3), max_duration="1ba")


def test_remedy_of_that_error() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Block(), Block()
            self.first._fsdp_wrap = self.second._fsdp_wrap = True

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.first(x))

    assert len(repeated_blocks(Pair())) == 2


@pytest.mark.parametrize("value", ["True", 1, None, "blocks"])
def test_unknown_value_is_an_error(value: Any) -> None:
    with pytest.raises(ValueError, match=f"compile_config: regional must be True, .* or False, .*; got {value!r}"):
        trainer_of(classifier(), compile_config={"regional": value})


def test_misspelled_argument_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no argument 'regionl'. Did you mean 'regional'"):
        trainer_of(classifier(), compile_config={"regionl": True})


def test_false_compiles_the_full_model() -> None:
    backend = Graphs()
    train({"regional": False, "backend": backend})
    assert any("cross_entropy" in graph.code for graph in backend.graphs)


# --------------------------------------------------------------------------------------- as without, in everything else


def test_names_copies_and_pickles_are_those_of_the_model() -> None:
    compiled, plain = train(regional())[0].state.model, train(None)[0].state.model
    assert list(compiled.state_dict()) == list(plain.state_dict())
    assert [(name, type(one)) for name, one in compiled.named_modules()] == [
        (name, type(one)) for name, one in plain.named_modules()
    ]
    x = rows(1)[0]
    with torch.no_grad():
        expected = compiled(x)
        for other in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
            assert not any(module._compiled_call_impl for module in other.modules())
            assert not any("forward" in vars(module) for module in other.modules())
            for parameter in other.parameters():
                parameter.mul_(2)  # its own, not those of the original
            assert not torch.equal(other(x), expected)
            torch.testing.assert_close(compiled(x), expected)


def test_hooks_of_blocks_run_outside_of_the_graph() -> None:
    backend, seen = Graphs(), []
    model = classifier()
    for block in repeated_blocks(model):
        block.register_forward_hook(lambda module, args, output: seen.append(type(output).__name__))
        block.register_full_backward_hook(lambda module, before, after: seen.append("backward"))
    train(regional(backend, fullgraph=True), model, max_duration="1ba")
    assert seen == ["Tensor"] * 4 + ["backward"] * 4
    assert len(backend) == 1


@pytest.mark.parametrize("register", ["pre", "forward", "backward"])
@pytest.mark.parametrize("which", range(4))
def test_hooks_of_layers_in_one_block(which: int, register: str) -> None:
    """torch does not check them at a call: another block must not run a function without them, or with them."""

    def hook(*args: Any) -> Any:
        if register == "backward":
            return tuple(None if one is None else 0.5 * one for one in args[1])
        return tuple(0.5 * one for one in args[1]) if register == "pre" else 0.5 * args[2]

    def model() -> ComposerClassifier:
        made = classifier()
        layer = repeated_blocks(made)[which].layer
        attach = {
            "pre": layer.register_forward_pre_hook,
            "forward": layer.register_forward_hook,
            "backward": layer.register_full_backward_hook,
        }[register]
        attach(hook)
        return made

    compiled, plain = (train(config, model())[0].state.model for config in (regional(), None))
    assert all(torch.equal(a, b) for a, b in zip(compiled.parameters(), plain.parameters(), strict=True))


def test_blocks_with_the_same_hooks_in_their_layers_share_a_function() -> None:
    backend, seen = Graphs(), list[int]()
    model = classifier()

    def hook(*args: Any) -> None:
        seen.append(1)

    for block in repeated_blocks(model)[1:]:
        block.layer.register_forward_hook(hook)
    model.eval()
    compile_blocks(model, {"backend": backend})
    with torch.no_grad():
        for _ in range(2):
            model(rows(1)[0])
    assert len(seen) == 6
    assert len({id(vars(block)["_compiled_call_impl"]._compiled) for block in repeated_blocks(model)}) == 2


def test_an_error_in_a_block_leaves_it_as_it_was() -> None:
    model = classifier()
    blocks = repeated_blocks(model)
    compile_blocks(model, {"backend": "eager"})
    with pytest.raises(Exception, match="shape"):
        blocks[0](torch.zeros(2, WIDTH + 1))
    assert "forward" not in vars(blocks[0])
    assert blocks[0](torch.zeros(2, WIDTH)).shape == (2, WIDTH)


@pytest.mark.parametrize("options", [{}, {"selective": True}])
def test_activation_checkpointing(options: Any) -> None:
    def run(config: Any) -> tuple[dict[str, Tensor], Any]:
        torch._dynamo.reset()
        model = classifier()
        apply_activation_checkpointing(repeated_blocks(model), **options)
        trainer, losses = train(config, model)
        return weights_of(trainer.state.model), losses

    backend = Graphs()
    expected, losses = run(None)
    found, compiled = run(regional(backend, fullgraph=True))
    assert compiled == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(found, expected)
    assert len(backend) == 1
    torch.testing.assert_close(run(regional())[0], expected, rtol=1e-4, atol=1e-6)


def test_checkpoints_resume_bit_for_bit(tmp_path: Path) -> None:
    def build(**more: Any) -> Trainer:
        torch._dynamo.reset()
        methods = [EMA(half_life="2ba")]
        return trainer_of(classifier(), rows(), max_duration="2ep", compile_config=regional(), algorithms=methods,
                          seed=3, **more)  # fmt: skip

    straight = build(save_folder=str(tmp_path), save_interval="1ba")
    straight.fit()
    path = next(tmp_path.glob("ep0-ba3-*.pt"))
    resumed = build(load_path=str(path))
    resumed.fit()
    torch.testing.assert_close(weights_of(resumed.state.model), weights_of(straight.state.model), rtol=0, atol=0)
    names = read(path)["state"]["model"]
    assert list(names) == list(classifier().state_dict())
    # Checkpoints of runs that compile otherwise load.
    trainer_of(classifier(), rows(), load_path=str(path), algorithms=[EMA(half_life="2ba")]).fit(duration="1ba")


def test_export(tmp_path: Path) -> None:
    trainer, _ = train(regional())
    batch = rows(1)[0]
    trainer.export_for_inference(ExportFormat.TORCH_EXPORT, tmp_path / "model.pt2")
    exported = torch.export.load(tmp_path / "model.pt2").module()
    with torch.no_grad():
        torch.testing.assert_close(exported(batch), trainer.state.model.eval()(batch))


def test_microbatches_and_precision() -> None:
    for more in ({"device_train_microbatch_size": 2}, {"precision": "amp_bf16"}):
        losses = train(None, **more)[1]
        torch._dynamo.reset()
        assert train(regional(), **more)[1] == pytest.approx(losses, rel=1e-2 if "precision" in more else 1e-5)


# -------------------------------------------------------------------------------------------------- methods, and shapes


def test_methods_that_replace_modules_change_what_is_compiled() -> None:
    register_residual_block(Block)
    methods = [StochasticDepth("Block", stochastic_method="sample", drop_rate=0.5)]
    backend = Graphs()
    _, losses = train(regional(backend), algorithms=methods)
    assert len(losses) == 8
    assert len(backend) <= 4
    assert any("rand" in graph.code or "bernoulli" in graph.code for graph in backend.graphs)


def test_frozen_blocks() -> None:
    backend = Graphs()
    runs = [train(config, algorithms=[LayerFreezing(0.2, 0.6)])[1] for config in (regional(backend), None)]
    assert runs[0] == pytest.approx(runs[1], rel=1e-4)
    assert len(backend) <= 3
