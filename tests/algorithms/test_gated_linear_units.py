from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from composer.algorithms import GatedLinearUnits, apply_gated_linear_units
from composer.algorithms import gated_linear_units as home
from composer.nn.gated_linear import GatedLinear
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, make_model
from tests.algorithms.text import make_text_batches, make_text_model, train_by_hand

CASE = Case(
    make=GatedLinearUnits,
    by_hand=lambda batches: train_by_hand(batches, surgery=_with_the_same_random_state),
    neutral=None,
    why_not_neutral="A network has a gate or not.",
    model=make_text_model,
    batches=make_text_batches,
)


def _with_the_same_random_state(model, optimizer):
    apply_gated_linear_units(model, optimizer)


@pytest.mark.parametrize("act_fn", [None, torch.tanh, nn.SiLU()])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer_equals_the_formula(act_fn, norm_first):
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=norm_first)
    old = layer.linear1.weight
    assert apply_gated_linear_units(layer, None, act_fn, True, True) is layer
    gated = layer.linear1
    assert gated.gate.weight is old
    x = torch.randn(2, 5, 8)

    def feed_forward(h):
        act = F.relu if act_fn is None else act_fn
        gate, value = (F.linear(h, block.weight, block.bias) for block in (gated.gate, gated.value))
        return F.linear(act(gate) * value, layer.linear2.weight, layer.linear2.bias)

    if norm_first:
        h = layer.norm1(x)
        h = x + layer.self_attn(h, h, h)[0]
        expected = h + feed_forward(layer.norm2(h))
    else:
        h = layer.norm1(x + layer.self_attn(x, x, x)[0])
        expected = layer.norm2(h + feed_forward(h))
    torch.testing.assert_close(layer(x), expected)


def test_encoder_gives_the_same_fused_or_not():
    """The fused inference kernels ignore the gate."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), 2)
    apply_gated_linear_units(encoder, None)
    x = torch.randn(3, 5, 8)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
    expected = encoder.train()(x, src_key_padding_mask=padding)
    with torch.no_grad():
        outputs = encoder.eval()(x, src_key_padding_mask=padding)
    torch.testing.assert_close(outputs[~padding], expected[~padding])


def test_decoder_layer_and_activation_as_a_module():
    layer = nn.TransformerDecoderLayer(8, 2, 12, activation=nn.GELU("tanh"))
    apply_gated_linear_units(layer, None)
    assert isinstance(layer.linear1.act_fn, nn.GELU)
    assert isinstance(layer.activation, nn.Identity)
    assert layer(torch.randn(5, 2, 8), torch.randn(4, 2, 8)).shape == (5, 2, 8)


def test_optimizers_follow_and_keep_the_state_of_the_gate():
    model = make_text_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = make_text_batches(1)[0]
    model.loss(model(batch), batch).backward()
    optimizer.step()
    linear = model.encoder.layers[0].linear1
    momentum = optimizer.state[linear.weight]["momentum_buffer"]
    apply_gated_linear_units(model, optimizer)
    held = optimizer.param_groups[0]["params"]
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}
    assert len(held) == len({id(p) for p in held})
    assert optimizer.state[linear.weight]["momentum_buffer"] is momentum
    assert linear.bias not in optimizer.state


def test_each_layer_has_a_separate_activation():
    act_fn = nn.PReLU()
    model = make_text_model(num_layers=2)
    apply_gated_linear_units(model, None, act_fn)
    first, second = (layer.linear1.act_fn for layer in model.encoder.layers)
    assert first is not second
    assert first is not act_fn


def test_nothing_to_change_and_second_time():
    with pytest.warns(NoEffectWarning, match="TransformerEncoderLayer, TransformerDecoderLayer"):
        apply_gated_linear_units(make_model(), None)
    model = apply_gated_linear_units(make_text_model(), None)
    linear = model.encoder.layers[0].linear1
    with pytest.warns(NoEffectWarning):
        apply_gated_linear_units(model, None)
    assert model.encoder.layers[0].linear1 is linear


def test_custom_modules(monkeypatch):
    monkeypatch.setattr(home, "_registered", dict(home._registered))

    class FeedForward(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.act, self.down = nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)

        def forward(self, x):
            return self.down(self.act(self.up(x)))

    home.register_feed_forward(FeedForward, "up", "act")
    model = apply_gated_linear_units(nn.Sequential(FeedForward(), FeedForward()), None)
    assert all(isinstance(block.up, GatedLinear) for block in model)
    x = torch.randn(2, 4)
    block = model[0]
    expected = block.down(F.relu(x @ block.up.gate.weight.T) * (x @ block.up.value.weight.T))
    torch.testing.assert_close(block(x), expected)
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        home.register_feed_forward("FeedForward", "up", "act")


def test_wrong_arguments():
    with pytest.raises(TypeError, match="act_fn"):
        GatedLinearUnits(act_fn="relu")
    with pytest.raises(TypeError, match="act_fn"):
        apply_gated_linear_units(make_text_model(), None, act_fn="relu")


def test_learns_and_is_declared():
    assert GatedLinearUnits.required_on_load()
    model = make_text_model()
    batch = make_text_batches(1)[0]
    engine = loop.start(model, [GatedLinearUnits(torch.nn.functional.gelu, True, True)], max_duration="30ba")
    first = model.loss(model(batch), batch).item()
    loop.fit(engine, [batch] * 30)
    assert engine.state.loss.item() < first - 0.3


# ------------------------------------------------------------------------------------------------------ transformers

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 50}


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra"])
def test_bert_style_models(family):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(**SIZES, hidden_act="relu")
    model = getattr(transformers, f"{family}ForMaskedLM")(config).eval()
    block = next(module for module in model.modules() if type(module).__name__ == f"{family}Layer")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = block.intermediate.dense.weight
    apply_gated_linear_units(model, optimizer)
    assert sum(isinstance(module, GatedLinear) for module in model.modules()) == 2
    gated, x = block.intermediate.dense, torch.randn(2, 5, 32)
    assert gated.gate.weight is weight
    h = F.relu(x @ gated.gate.weight.T) * (x @ gated.value.weight.T)
    expected = block.output.LayerNorm(x + block.output.dense(h))
    torch.testing.assert_close(block.feed_forward_chunk(x), expected)
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters()}
    model(input_ids=torch.randint(3, 50, (2, 8)), labels=torch.randint(3, 50, (2, 8))).loss.backward()
    assert gated.value.weight.grad is not None


def test_gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    network = model.transformer.h[0].mlp
    weight, act = network.c_fc.weight, network.act
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    apply_gated_linear_units(model, optimizer)
    x = torch.randn(2, 5, 32)
    expected = network.c_proj(act(x @ weight) * (x @ network.c_fc.value.weight.T))
    torch.testing.assert_close(network(x), expected)
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters()}


def test_llama_has_gates_from_the_start():
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    with pytest.warns(NoEffectWarning, match="without a gate"):
        apply_gated_linear_units(model, None)
