"""Muon beside AdamW, as two optimizers and as one."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.optim import AdamW, Muon
from torch.optim.lr_scheduler import LambdaLR

from composer.core import State
from composer.optim import MuonAdamW, hidden_matrices, muon_and_adamw
from composer.optim.closure_use import may_use_closure
from composer.surgery import replace_module_classes
from tests.common import At, regression_data, trainer_of
from tests.common import TwoLayers as Small
from tests.on_device import place


class Language(nn.Module):
    """Embedding, blocks, norm, readout."""

    def __init__(self, tied=False):
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)) for _ in range(2))
        self.norm = nn.LayerNorm(4)
        self.readout = nn.Linear(4, 9, bias=False)
        if tied:
            self.readout.weight = self.table.weight

    def forward(self, tokens):
        hidden = self.table(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.readout(self.norm(hidden))


def names(model, params):
    of = {id(param): name for name, param in model.named_parameters()}
    return [of[id(param)] for param in params]


HIDDEN = ["blocks.0.0.weight", "blocks.0.2.weight", "blocks.1.0.weight", "blocks.1.2.weight"]


@pytest.mark.parametrize("tied", [False, True])
def test_hidden_matrices(tied):
    model = Language(tied)
    assert names(model, hidden_matrices(model)) == HIDDEN


def test_readout_by_name():
    model = Language()
    assert names(model, hidden_matrices(model, readout=())) == [*HIDDEN, "readout.weight"]
    assert names(model, hidden_matrices(model, readout="blocks.1.*")) == [*HIDDEN[:2], "readout.weight"]
    model.blocks[0].requires_grad_(False)
    assert names(model, hidden_matrices(model)) == HIDDEN[2:]
    with pytest.raises(ValueError, match=r"readout: no parameter is named 'readou.weight'. Did you mean"):
        hidden_matrices(model, readout="readou.weight")


def test_each_parameter_has_one_optimizer():
    model = Language()
    muon, adamw = muon_and_adamw(model, lr=0.01, weight_decay=0.2, adamw_lr=0.03)
    assert isinstance(muon, Muon)
    assert isinstance(adamw, AdamW)
    assert names(model, muon.param_groups[0]["params"]) == HIDDEN
    decaying, others = (names(model, group["params"]) for group in adamw.param_groups)
    assert decaying == ["table.weight", "readout.weight"]
    assert sorted([*HIDDEN, *decaying, *others]) == sorted(name for name, _ in model.named_parameters())
    assert [(g["lr"], g["weight_decay"]) for o in (muon, adamw) for g in o.param_groups] == [
        (0.01, 0.2),
        (0.03, 0.2),
        (0.03, 0.0),
    ]


def test_first_steps_have_the_size_of_adamws():
    """Root mean square 0.2 for Muon, as measured of AdamW; one in AdamW's own first step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 4))
    before = copy.deepcopy(model)
    for param in model.parameters():
        param.grad = torch.randn_like(param)
    for optimizer in muon_and_adamw(model, lr=0.01, weight_decay=0.0):
        optimizer.step()
    moved = [
        (one - other).detach().pow(2).mean().sqrt().item() / 0.01
        for one, other in zip(model.parameters(), before.parameters(), strict=True)
    ]
    assert moved[0] == pytest.approx(0.2, rel=0.3)
    assert moved[2] == pytest.approx(0.2, rel=0.3)
    assert [moved[1], moved[3], moved[4], moved[5]] == pytest.approx([1.0] * 4, rel=1e-3)


def train(model, optimizers, steps=5):
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        tokens = torch.randint(9, (6,), generator=generator)
        for optimizer in optimizers:
            optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), tokens.roll(1)).backward()
        for optimizer in optimizers:
            optimizer.step()


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_one_optimizer_equals_two():
    model = Language()
    twin = copy.deepcopy(model)
    train(model, muon_and_adamw(model, lr=0.01))
    train(twin, [MuonAdamW(twin, lr=0.01)])
    assert same(model, twin)


@pytest.mark.parametrize("how", ["state_dict", "file", "pickle", "deepcopy"])
def test_saved_and_loaded(how):
    model = Language()
    optimizer = MuonAdamW(model, lr=0.01)
    train(model, [optimizer], steps=3)
    optimizer.param_groups[0]["lr"] = 0.005
    if how in ("pickle", "deepcopy"):
        pair = (model, optimizer)
        twin, other = pickle.loads(pickle.dumps(pair)) if how == "pickle" else copy.deepcopy(pair)
    else:
        twin = copy.deepcopy(model)
        other = MuonAdamW(twin, lr=0.01)
        saved = optimizer.state_dict()
        if how == "file":
            file = io.BytesIO()
            torch.save(saved, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
        other.load_state_dict(copy.deepcopy(saved))
    assert other.param_groups[0]["lr"] == 0.005
    train(model, [optimizer])
    train(twin, [other])
    assert same(model, twin)


def test_groups_added_later():
    model = Language()
    optimizer = MuonAdamW(model, lr=0.01)
    matrix, vector = nn.Parameter(torch.ones(3, 3)), nn.Parameter(torch.ones(3))
    optimizer.add_param_group({"params": [matrix], "muon": True})
    optimizer.add_param_group({"params": [vector], "lr": 0.5})
    for param in (matrix, vector):
        param.grad = torch.ones_like(param)
    optimizer.step()
    assert set(optimizer.state[matrix]) == {"momentum_buffer"}
    assert set(optimizer.state[vector]) == {"step", "exp_avg", "exp_avg_sq"}
    with pytest.raises(ValueError, match=r"a parameter of shape \(3,\)"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], "muon": True})
    optimizer.step()
    assert len(optimizer.param_groups) == 5


def test_replaced_layers_stay_with_their_optimizer():
    model = Language()
    optimizer = MuonAdamW(model, lr=0.01)
    train(model, [optimizer], steps=1)
    replace_module_classes(
        model,
        {
            nn.Linear: lambda layer, module_index: nn.Linear(
                layer.in_features, layer.out_features, bias=layer.bias is not None
            )
        },
        optimizer,
    )
    train(model, [optimizer], steps=1)
    assert set(optimizer.state[model.blocks[0][0].weight]) == {"momentum_buffer"}
    assert "exp_avg" in optimizer.state[model.readout.weight]


def test_closure_and_schedule():
    model = Language()
    optimizer = MuonAdamW(model, lr=0.01, adamw_lr=0.1)
    schedule = LambdaLR(optimizer, lambda step: 1 / (step + 1))

    def closure():
        loss = model(torch.arange(9)).pow(2).mean()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() > 0
    assert MuonAdamW(Language()).step() is None
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.005, 0.05, 0.05]
    assert not may_use_closure(MuonAdamW)


@pytest.mark.parametrize("one", [False, True])
def test_TwoOptimizers_in_the_trainer(one):
    """One update by both is one step, in one optimizer as in two; each follows its own schedule."""

    class Model(Small):
        def __init__(self):
            super().__init__()
            self.third = nn.Linear(1, 1)

        def forward(self, batch):
            return self.third(super().forward(batch))

    torch.manual_seed(5)
    model = Model()
    twin = copy.deepcopy(model)
    optimizers = [MuonAdamW(model, lr=0.02)] if one else muon_and_adamw(model, lr=0.02)
    schedules = [LambdaLR(optimizer, lambda k: 1 - k / 20) for optimizer in optimizers]
    seen = At("batch_end", lambda state: state.timestamp.batch.value)
    trainer = trainer_of(
        model,
        optimizers=optimizers,
        schedulers=schedules,
        step_schedulers_every_batch=True,
        max_duration="2ep",
        callbacks=seen,
    )
    trainer.fit()
    assert seen.found == list(range(1, 9))

    pair = muon_and_adamw(twin, lr=0.02)
    for k, batch in enumerate(regression_data() * 2):
        for optimizer in pair:
            optimizer.zero_grad()
            for group in optimizer.param_groups:
                group["lr"] = 0.02 * (1 - k / 20)
        twin.loss(twin(batch), batch).backward()
        for optimizer in pair:
            optimizer.step()
    place(twin)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (nn.Linear(4, 2), {}, "Linear has no hidden matrix"),
        (nn.Linear(4, 2, bias=False), {"readout": ()}, "has only hidden matrices"),
        (Language(), {"lr": -1.0}, "lr must be 0 or greater"),
        (Language(), {"adamw_lr": -1.0}, "adamw_lr must be 0 or greater"),
    ],
)
def test_wrong_arguments(model, arguments, message):
    for make in (muon_and_adamw, MuonAdamW):
        with pytest.raises(ValueError, match=message):
            make(model, **arguments)


def test_a_state_takes_both():
    model = Language()
    assert len(State(model=model, optimizers=muon_and_adamw(model)).optimizers) == 2
