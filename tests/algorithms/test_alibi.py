from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from composer.algorithms import Alibi, apply_alibi
from composer.algorithms._sequences import fold_sequences
from composer.algorithms.alibi import PolicyRegistry, policy_registry
from composer.nn.alibi import add_alibi, has_alibi
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, make_model
from tests.algorithms.text import TextNet, make_text_batches, make_text_model, train_by_hand


def _by_hand(batches):
    return train_by_hand(
        batches,
        surgery=lambda model, optimizer: apply_alibi(model, 16, optimizer),
        edit=lambda batch, elapsed: {key: value.reshape(24, 4) for key, value in batch.items()},
    )


CASE = Case(
    make=lambda: Alibi(max_sequence_length=16, train_sequence_length_scaling=0.25),
    by_hand=_by_hand,
    neutral=None,
    why_not_neutral="A model has the bias or not; full sequences are the neutral setting of the other argument.",
    model=make_text_model,
    batches=make_text_batches,
)


@pytest.fixture
def _registry():
    """Restore the registry."""
    before = dict(policy_registry)
    yield
    policy_registry.clear()
    policy_registry.update(before)


# ------------------------------------------------------------------------------------------------ torch's Transformer


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_gives_the_same_fused_or_not(norm_first):
    """The fused inference kernels ignore the bias, and nested tensors the mask: neither may be used."""
    layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
    x = torch.randn(3, 7, 16)
    padding = torch.tensor([[False] * 7, [False] * 5 + [True] * 2, [False] * 6 + [True]])
    real = ~padding
    plain = encoder(x, src_key_padding_mask=padding)
    apply_alibi(encoder, 16)
    expected = encoder.train()(x, src_key_padding_mask=padding)
    encoder.eval()
    with torch.no_grad():
        outputs = encoder(x, src_key_padding_mask=padding)
    torch.testing.assert_close(outputs[real], expected[real])
    assert not torch.allclose(outputs[real], plain[real], atol=1e-3)


def test_only_self_attention_of_a_decoder_gets_the_bias():
    layer = nn.TransformerDecoderLayer(16, 2, 24)
    assert apply_alibi(layer, 16) is layer
    assert has_alibi(layer.self_attn)
    assert not has_alibi(layer.multihead_attn)


def test_order_matters_only_with_the_bias():
    """Without positions a bidirectional encoder cannot distinguish the order of tokens."""
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True), 2)
    x = torch.randn(1, 6, 16)
    shuffled = x[:, torch.tensor([0, 3, 1, 5, 2, 4])]
    torch.testing.assert_close(encoder(x)[:, 0], encoder(shuffled)[:, 0])
    apply_alibi(encoder, 6)
    assert not torch.allclose(encoder(x)[:, 0], encoder(shuffled)[:, 0], atol=1e-3)


class _PositionNet(TextNet):
    """The model of text, wider, with optional learned positions."""

    def __init__(self, learned):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.embed, self.head = nn.Embedding(20, 32), nn.Linear(32, 20)
        self.positions = nn.Parameter(0.02 * torch.randn(64, 32)) if learned else None

    def forward(self, batch):
        size = batch["input_ids"].shape[1]
        x = self.embed(batch["input_ids"]) + (0 if self.positions is None else self.positions[:size])
        mask = torch.ones(size, size, dtype=torch.bool).triu(1)
        return self.head(self.encoder(x, mask=mask, is_causal=True))


def _loss_within_and_beyond(model):
    """Train at 32 tokens to predict the previous token, which requires positions; losses of both halves of 64."""

    def batch(samples, length):
        ids = torch.randint(20, (samples, length))
        return {"input_ids": ids, "labels": ids.roll(1, 1).index_fill(1, torch.tensor([0]), -100)}

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(300):
        data = batch(8, 32)
        optimizer.zero_grad()
        model.loss(model(data), data).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        data = batch(32, 64)
        halves = zip(model(data).split(32, 1), data["labels"].split(32, 1), strict=True)
        return [model.loss(outputs, {"labels": labels}).item() for outputs, labels in halves]


def test_reads_sequences_longer_than_trained_on():
    torch.manual_seed(0)
    within, beyond = _loss_within_and_beyond(apply_alibi(_PositionNet(learned=False), 64))
    assert within < 0.1 * math.log(20)  # it has learned
    assert beyond < 0.1 * math.log(20)


def test_learned_positions_do_not_reach_beyond_training():
    """The other side of the comparison."""
    torch.manual_seed(0)
    within, beyond = _loss_within_and_beyond(_PositionNet(learned=True))
    assert within < 0.1 * math.log(20)
    assert beyond > math.log(20)


# --------------------------------------------------------------------------------------------------- registration


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2)


class _Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(4, 8))


@pytest.mark.usefixtures("_registry")
def test_custom_modules():
    seen = []

    @policy_registry.register(_Attention)
    def change(module, module_index, max_sequence_length):
        seen.append((module_index, max_sequence_length))
        add_alibi(module.attention)
        return module

    @policy_registry.register(_Positions)
    def drop(module, module_index, max_sequence_length):
        return nn.Identity()

    model = nn.Sequential(_Positions(), _Attention(), _Attention())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    table = model[0].table
    assert apply_alibi(model, 64, optimizer) is model
    assert seen == [(0, 64), (1, 64)]
    assert isinstance(model[0], nn.Identity)
    assert all(has_alibi(block.attention) for block in model[1:])
    held = {id(parameter) for parameter in optimizer.param_groups[0]["params"]}
    assert held == {id(parameter) for parameter in model.parameters()}
    assert id(table) not in held
    assert isinstance(apply_alibi(_Positions(), 64), nn.Identity)


@pytest.mark.usefixtures("_registry")
def test_parameters_that_a_function_takes_out_of_a_module_leave_the_optimizer():
    @policy_registry.register(_Positions)
    def drop(module, module_index, max_sequence_length):
        module.table = None
        return module

    model = nn.Sequential(_Positions(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    apply_alibi(model, 64, optimizer)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]


def test_wrong_registrations():
    registry = PolicyRegistry()
    with pytest.raises(ValueError, match="at least one module class"):
        registry.register()
    with pytest.raises(TypeError, match=r"subclasses of torch\.nn\.Module"):
        registry.register(int)
    with pytest.raises(TypeError, match="module_index, max_sequence_length"):
        registry.register(_Positions)(lambda module: module)
    assert _Positions not in registry
    registry.register(_Positions)(lambda module, module_index, max_sequence_length: None)
    with pytest.raises(ValueError, match="_Positions is already registered"):
        registry.register(_Positions)


# --------------------------------------------------------------------------------------------------------- the class


def test_nothing_to_change_and_second_time():
    with pytest.warns(NoEffectWarning, match="TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer"):
        apply_alibi(make_model(), 64)
    model = apply_alibi(make_text_model(), 64)
    with pytest.warns(NoEffectWarning, match="no unconverted module"):
        apply_alibi(model, 64)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="max_sequence_length"):
        Alibi(0)
    with pytest.raises(ValueError, match="max_sequence_length"):
        apply_alibi(make_text_model(), -1)
    for scaling in (0, -0.5, 1.5):
        with pytest.raises(ValueError, match="train_sequence_length_scaling"):
            Alibi(64, scaling)


@pytest.mark.parametrize(("scaling", "shape"), [(1, (6, 16)), (0.5, (12, 8)), (0.25, (24, 4)), (1 / 16, (96, 1))])
def test_training_sequences_are_cut_and_no_token_is_lost(scaling, shape):
    batch = make_text_batches(1)[0]
    engine = loop.start(make_text_model(), [Alibi(16, scaling)])
    engine.state.batch = batch
    engine.run_event("after_dataloader")
    for key, value in batch.items():
        assert engine.state.batch[key].shape == shape
        assert torch.equal(engine.state.batch[key].flatten(), value.flatten())


def test_uneven_cuts():
    engine = loop.start(make_text_model(), [Alibi(16, 0.3)])
    engine.state.batch = make_text_batches(1)[0]
    with pytest.raises(ValueError, match="does not split sequences of 16 tokens"):
        engine.run_event("after_dataloader")
    engine = loop.start(make_text_model(), [Alibi(16)])
    engine.state.batch = {"input_ids": torch.zeros(2, 16), "labels": torch.zeros(2)}
    with pytest.raises(ValueError, match=r"one has the shape \(2,\)"):
        engine.run_event("after_dataloader")
    engine.state.batch = {"lengths": torch.zeros(2)}
    with pytest.raises(ValueError, match="no tensor of sequences"):
        engine.run_event("after_dataloader")


@pytest.mark.parametrize("container", [tuple, list, lambda tensors: {"a": tensors[0], "rest": {"b": tensors[1]}}])
def test_batches_of_every_form_are_cut(container):
    tensors = [torch.arange(12).view(2, 6), torch.arange(24).view(2, 6, 2)]
    batch = fold_sequences(container(tensors), 3)
    first, second = batch if not isinstance(batch, dict) else (batch["a"], batch["rest"]["b"])
    assert first.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert second.shape == (4, 3, 2)
    assert torch.equal(second.flatten(), tensors[1].flatten())


def test_is_declared():
    assert Alibi.required_on_load()
    assert issubclass(TextNet, nn.Module)
