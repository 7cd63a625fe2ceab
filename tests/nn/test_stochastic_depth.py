from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer.nn.stochastic_depth import StochasticBlock, decide_blocks, make_stochastic, register_residual_block
from tests.nn.blocks import BasicBlock, Bottleneck, Hollow, PreNorm, TimmBasicBlock, TimmBottleneck

register_residual_block(PreNorm)

BLOCKS = [
    lambda: Bottleneck(8, 4, 8),
    lambda: Bottleneck(6, 4, 8),
    lambda: BasicBlock(8, 8, 8),
    lambda: TimmBasicBlock(6, 8, 8),
    lambda: TimmBottleneck(8, 4, 8),
]


def images(block):
    return torch.randn(5, next(block.parameters()).shape[1], 6, 6)


def components(block, x):
    """The shortcut and the branch, the latter from the block itself with the last activation turned off."""
    shortcut = x if block.downsample is None else block.downsample(x)
    bare = copy.deepcopy(block)
    for name in ("act2", "act3"):
        if name in bare._modules and not (name == "act2" and "act3" in bare._modules):
            setattr(bare, name, nn.Identity())
    bare.last = nn.Identity()
    return shortcut, bare(x) - shortcut


@pytest.mark.parametrize("make", BLOCKS)
@pytest.mark.parametrize("method", ["block", "sample"])
def test_evaluation_scales_the_branch(make, method):
    block = make().eval()
    x = images(block)
    shortcut, branch = components(block, x)
    make_stochastic(block, method, 0.25)
    torch.testing.assert_close(block(x), (shortcut + 0.75 * branch).relu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["BasicBlock", "Bottleneck"])
def test_blocks_of_torchvision_are_known_without_a_trial(name):
    resnet = pytest.importorskip("torchvision.models.resnet")
    plain = getattr(resnet, name)(8, 8 // getattr(resnet, name).expansion).eval()
    block = copy.deepcopy(plain)
    calls = []
    block.conv1.register_forward_hook(lambda *_: calls.append(1))
    make_stochastic(block, "sample", 0.25)
    assert not calls
    x = images(plain)
    block.block_drop_rate = 0.0
    torch.testing.assert_close(block(x), plain(x))


@pytest.mark.parametrize("make", BLOCKS)
def test_blocks_are_left_out_or_run_as_they_were(make):
    block = make()
    x = images(block)
    shortcut, _ = components(block, x)
    plain = copy.deepcopy(block)
    make_stochastic(block, "block", 0.5)
    calls = []
    block.conv1.register_forward_hook(lambda *_: calls.append(1))
    left_out = 0
    for _ in range(20):
        calls.clear()
        expected = plain(x) if decided(block, x, calls) else shortcut.relu()
        left_out += not calls
        assert torch.equal(block.latest, expected)
    assert 3 < left_out < 17


def decided(block, x, calls):
    block.latest = block(x)
    return bool(calls)


@pytest.mark.parametrize("make", BLOCKS)
def test_samples_are_left_out_by_themselves(make):
    block = make()
    x = images(block)
    shortcut, branch = components(block, x)
    make_stochastic(block, "sample", 0.5)
    seen = set()
    for _ in range(20):
        out = block(x)
        for index in range(len(x)):
            without, full = shortcut[index].relu(), (shortcut + branch)[index].relu()
            is_full = torch.allclose(out[index], full, atol=1e-5)
            assert is_full or torch.allclose(out[index], without, atol=1e-5)
            seen.add((index, is_full))
    assert len(seen) == 2 * len(x)


@given(rate=st.floats(0, 1), seed=st.integers(0, 99))
def test_mean_over_training_is_evaluation(rate, seed):
    """The expected training output is the evaluation output, exact for a block x + f(x)."""
    torch.manual_seed(seed)
    block = make_stochastic(PreNorm(4), "block", rate)
    x = torch.randn(3, 4)
    block._stochastic_depth.kept = torch.tensor(True)
    kept = block(x)
    block._stochastic_depth.kept.fill_(False)
    left_out = block(x)
    assert torch.equal(left_out, x)
    torch.testing.assert_close(block.eval()(x), (1 - rate) * kept + rate * left_out, rtol=1e-4, atol=1e-5)


def test_same_object_same_names():
    block = Bottleneck(8, 4, 8)
    names, weights = list(block.state_dict()), [id(p) for p in block.parameters()]
    assert make_stochastic(block, "block", 0.5) is block
    assert isinstance(block, Bottleneck) and isinstance(block, StochasticBlock)
    assert type(block).__name__ == "StochasticBottleneck"
    assert list(block.state_dict()) == names
    assert [id(p) for p in block.parameters()] == weights
    assert block.block_drop_rate == 0.5


@pytest.mark.parametrize("copying", [copy.deepcopy, copy.copy, lambda block: pickle.loads(pickle.dumps(block))])
@pytest.mark.parametrize("make", [lambda: Bottleneck(8, 4, 8), lambda: PreNorm(8)])
def test_copies_are_independent(make, copying):
    block = make_stochastic(make(), "sample", 0.5)
    x = images(block) if isinstance(block, Bottleneck) else torch.randn(5, 8)
    twin = copying(block)
    assert type(twin) is type(block)
    assert torch.equal(twin.eval()(x), block.eval()(x))
    if copying is not copy.copy:
        twin.block_drop_rate = 0.0
        assert block.block_drop_rate == 0.5


@pytest.mark.parametrize("method", ["block", "sample"])
@pytest.mark.parametrize("make", [lambda: Bottleneck(8, 4, 8), lambda: PreNorm(8)])
def test_compiled_blocks_are_one_graph(make, method):
    torch.compiler.reset()
    block = make_stochastic(make(), method, 0.5)
    x = images(block) if isinstance(block, Bottleneck) else torch.randn(5, 8)
    plain = copy.deepcopy(block)
    compiled = torch.compile(block, backend="eager", fullgraph=True)
    for seed in range(6):
        torch.manual_seed(seed)
        out = compiled(x)
        torch.manual_seed(seed)
        torch.testing.assert_close(out, plain(x), rtol=1e-4, atol=1e-5)


def test_decisions_hold_until_the_next_one():
    net = nn.Sequential(*(make_stochastic(PreNorm(4), "block", 0.5) for _ in range(6)))
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    x = torch.randn(2, 4)
    outputs = []
    for generator in generators:
        for _ in range(4):
            decide_blocks(net, generator)
            outputs.append(net(x))
            assert torch.equal(net(x), outputs[-1])
    assert all(torch.equal(one, other) for one, other in zip(outputs[:4], outputs[4:], strict=True))
    assert not torch.equal(outputs[0], outputs[1])
    state = torch.get_rng_state()
    decide_blocks(net, generators[0])
    assert torch.equal(torch.get_rng_state(), state)


def test_blocks_of_unknown_structure():
    with pytest.raises(ValueError, match=r"structure of Linear is unknown.*register_residual_block\(Linear\)"):
        make_stochastic(nn.Linear(2, 2), "block", 0.5)
    with pytest.raises(ValueError, match="structure of Hollow is unknown"):
        make_stochastic(Hollow(8, 8, 8), "block", 0.5)  # the layers of a ResNet, another order
    with pytest.raises(ValueError, match="branch"):
        register_residual_block(nn.Linear, shortcut=lambda block, x: x)


def test_probing_leaves_a_block_as_it_was():
    block = Bottleneck(8, 4, 8)
    block.bn1.eval()
    before, rng = copy.deepcopy(block.state_dict()), torch.get_rng_state()
    make_stochastic(block, "block", 0.5)
    assert all(torch.equal(value, before[name]) for name, value in block.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)
    assert block.training and not block.bn1.training


def test_registered_by_name_with_components():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.project = nn.Linear(4, 6), nn.Linear(4, 6)

        def forward(self, x, scale):
            return (self.project(x) + self.body(x) * scale).tanh()

    register_residual_block(
        "Scaled",
        branch=lambda block, x, scale: block.body(x) * scale,
        shortcut=lambda block, x: block.project(x),
        activation=lambda block, y: y.tanh(),
    )
    block, x = make_stochastic(Scaled(), "block", 1.0), torch.randn(3, 4)
    assert torch.equal(block(x, 2.0), block.project(x).tanh())
    assert torch.equal(block.eval()(x, 2.0), block.project(x).tanh())
    block.block_drop_rate = 0.0
    assert torch.equal(block(x, 2.0), (block.project(x) + block.body(x) * 2.0).tanh())


def test_block_that_returns_more_than_a_tensor():
    class Pair(PreNorm):
        def forward(self, x):
            return super().forward(x), None

    with pytest.raises(TypeError, match=r"StochasticPair must return one tensor .* tuple"):
        make_stochastic(Pair(4), "sample", 0.5)(torch.randn(2, 4))


class Conditioned(nn.Module):
    """A block whose arguments have names that the wrapper might use."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 4)

    def forward(self, hidden, *, weight, input=1.0, self_=0.0):
        return hidden + self.body(hidden) * weight * input + self_


@pytest.mark.parametrize("method", ["block", "sample"])
@pytest.mark.parametrize("training", [False, True])
def test_arguments_of_a_block_keep_their_names(method, training):
    register_residual_block(Conditioned)
    block, x, others = Conditioned().train(training), torch.randn(3, 4), {"weight": 2.0, "input": 3.0, "self_": 4.0}
    expected = block(x, **others)
    make_stochastic(block, method, 0.0)
    torch.testing.assert_close(block(x, **others), expected)
    torch.testing.assert_close(block(hidden=x, **others), expected)
    with pytest.raises(TypeError, match="missing"):
        block(**others)
