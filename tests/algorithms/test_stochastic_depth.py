from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.algorithms import StochasticDepth, apply_stochastic_depth
from composer.core.engine import Engine
from composer.core.logger import LoggerDestination
from composer.core.model import ComposerModel
from composer.core.state import State
from composer.functional import decide_blocks, register_residual_block
from composer.nn import StochasticBlock
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, by_surgery
from tests.nn.blocks import BasicBlock, Bottleneck, PreNorm
from tests.on_device import place

register_residual_block(PreNorm)


class Bend(nn.Module):
    """A residual block without weights: one with weights left out gets no gradient, or when compiled one of zeros."""

    def forward(self, x):
        return x + x.tanh()


register_residual_block(Bend)


class Net(ComposerModel):
    """Classifies images by residual blocks."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 8, 3, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            *(Bend() for _ in range(4)),
            nn.Linear(8, 4),
        )

    def forward(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch[1])


def make_net():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return place(Net())


def _by_hand(method):
    generator = torch.Generator()

    def change(model, optimizer):
        generator.manual_seed(0)
        apply_stochastic_depth(model, "Bend", method, 0.6)

    return by_surgery(change, make_net, before=lambda model: decide_blocks(model, generator))


def _case(method):
    return Case(
        make=lambda: StochasticDepth("Bend", method, drop_rate=0.6),
        by_hand=_by_hand(method),
        neutral=lambda: StochasticDepth("Bend", method, drop_rate=0.0),
        model=make_net,
    )


CASES = [_case("block"), _case("sample")]


def blocks(number=4):
    return nn.Sequential(*(PreNorm(4) for _ in range(number)))


def rates(model):
    return [module.block_drop_rate for module in model.modules() if isinstance(module, StochasticBlock)]


def test_distributions():
    assert rates(apply_stochastic_depth(blocks(), PreNorm, drop_rate=0.2)) == pytest.approx([0.05, 0.1, 0.15, 0.2])
    assert rates(apply_stochastic_depth(blocks(), PreNorm, drop_rate=0.2, drop_distribution="uniform")) == [0.2] * 4


@pytest.mark.parametrize("target", ["ResNetBottleneck", "Bottleneck", Bottleneck])
def test_targets(target):
    net = nn.Sequential(Bottleneck(4, 2, 8), Bottleneck(8, 2, 8), BasicBlock(8, 8, 8))
    parameters = [id(p) for p in net.parameters()]
    assert apply_stochastic_depth(net, target) is net
    assert [isinstance(block, StochasticBlock) for block in net] == [True, True, False]
    assert [id(p) for p in net.parameters()] == parameters
    with pytest.warns(NoEffectWarning, match="no Bottleneck that is not stochastic already"):
        apply_stochastic_depth(net, target)


def test_derived_classes_and_shared_blocks_count_once():
    class Wide(PreNorm):
        pass

    shared = Wide(4)
    net = nn.Sequential(shared, nn.ModuleList([PreNorm(4), shared]))
    assert rates(apply_stochastic_depth(net, "PreNorm", drop_rate=0.2)) == [0.1, 0.2]
    net = nn.Sequential(Wide(4), PreNorm(4))
    assert rates(apply_stochastic_depth(net, "Wide", drop_rate=0.2)) == [0.2]


def test_nothing_to_do_is_said():
    with pytest.warns(NoEffectWarning, match="no Bottlenek .* Did you mean 'Bottleneck'"):
        apply_stochastic_depth(nn.Sequential(Bottleneck(4, 2, 8)), "Bottlenek")
    with pytest.warns(NoEffectWarning, match="no Bottleneck"):
        apply_stochastic_depth(nn.Linear(2, 2), Bottleneck)
    with pytest.warns(NoEffectWarning, match="drop_rate is 0"):
        net = apply_stochastic_depth(blocks(), "PreNorm", drop_rate=0)
    assert rates(net) == []
    with pytest.raises(ValueError, match="register_residual_block"):
        apply_stochastic_depth(nn.Sequential(nn.Linear(2, 2)), "Linear")


class Notes(LoggerDestination):
    def __init__(self):
        self.metrics = []

    def log_metrics(self, metrics, step=None):
        self.metrics.append(metrics)


@pytest.mark.parametrize("warmup", [0.5, "0.5dur", "4ba"])
@pytest.mark.parametrize("method", ["block", "sample"])
def test_warmup_ends_with_the_full_rate(method, warmup):
    model = blocks(2)
    notes = Notes()
    state = State(model=model, max_duration="8ba", optimizers=torch.optim.SGD(model.parameters(), lr=0.1))
    algorithm = StochasticDepth("PreNorm", method, 0.4, drop_warmup=warmup)
    engine = Engine(state, algorithms=[algorithm], callbacks=[notes])
    for event in ("init", "before_load", "after_load", "fit_start", "epoch_start"):
        engine.run_event(event)
    seen = []
    for _ in range(8):
        engine.run_event("batch_start")
        seen.append(rates(model))
        state.timestamp = state.timestamp.to_next_batch(samples=1)
        engine.run_event("batch_end")
    expected = [0.0, 0.1, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4]
    assert [last for _, last in seen] == pytest.approx(expected)
    assert [first for first, _ in seen] == pytest.approx([rate / 2 for rate in expected])
    engine.run_event("fit_end")
    logged = [entry for entry in notes.metrics if "stochastic_depth/drop_rate" in entry]
    assert [entry["stochastic_depth/drop_rate"] for entry in logged] == pytest.approx(expected[:5])
    assert {"stochastic_depth/num_stochastic_layers": 2} in notes.metrics


def test_resumed_in_the_middle_of_the_warmup():
    model = blocks(1)
    state = State(model=model, max_duration="8ba")
    engine = Engine(state, algorithms=[StochasticDepth("PreNorm", drop_rate=0.4, drop_warmup=0.5)])
    engine.run_event("init")
    for _ in range(2):
        state.timestamp = state.timestamp.to_next_batch(samples=1)
    engine.run_event("after_load")
    assert rates(model) == pytest.approx([0.2])  # also for an evaluation before the first batch


def test_processes_leave_out_the_same_blocks():
    outputs = []
    x = torch.randn(3, 4)
    for seed in (1, 2):
        torch.manual_seed(0)
        engine = loop.start(blocks(), [StochasticDepth("PreNorm", drop_rate=0.8)])
        torch.manual_seed(seed)  # as for another rank
        outputs.append([])
        for _ in range(5):
            engine.run_event("before_forward")
            outputs[-1].append(engine.state.model(x))
    assert all(torch.equal(one, other) for one, other in zip(*outputs, strict=True))


def test_blocks_left_out_cost_nothing():
    model = blocks()
    calls = []
    for block in model:
        block.body.register_forward_hook(lambda *_: calls.append(1))
    apply_stochastic_depth(model, "PreNorm", drop_rate=1.0, drop_distribution="uniform")
    model(torch.randn(2, 4))
    assert not calls


def test_events_without_work_are_left_out():
    engine = loop.start(blocks(), [StochasticDepth("PreNorm", "sample")])
    algorithm = engine.state.algorithms[0]
    events = ("init", "after_load", "batch_start", "before_forward")
    from composer.core.event import Event

    assert [algorithm.__listens__(Event(event)) for event in events] == [True, False, False, False]
    assert not algorithm.find_unused_parameters
    assert StochasticDepth("PreNorm").find_unused_parameters


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stochastic_method": "blok"}, "Did you mean 'block'"),
        ({"drop_rate": 1.5}, "drop_rate"),
        ({"drop_distribution": "linaer"}, "Did you mean 'linear'"),
    ],
)
@pytest.mark.parametrize("make", [StochasticDepth, lambda *a, **kw: apply_stochastic_depth(blocks(), *a, **kw)])
def test_wrong_arguments(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make("PreNorm", **arguments)


def test_wrong_warmup():
    with pytest.raises(ValueError, match="drop_warmup"):
        StochasticDepth("PreNorm", drop_warmup=1.5)
    with pytest.raises(ValueError, match="max_duration"):
        loop.start(blocks(), [StochasticDepth("PreNorm", drop_warmup=0.5)], max_duration=None)
    assert StochasticDepth.required_on_load()
