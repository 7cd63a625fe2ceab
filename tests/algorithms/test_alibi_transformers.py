"""ALiBi in models of transformers, built from a configuration, against transformers' own ALiBi models."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from composer.algorithms import Alibi, apply_alibi
from composer.core.model import ComposerModel
from composer.nn.alibi import NoPositions, NoRotation, alibi_bias, alibi_slopes
from composer.warnings import NoEffectWarning
from tests import loop

transformers = pytest.importorskip("transformers")

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 50,
    "max_position_embeddings": 32,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GROUPED = SIZES | {"num_key_value_heads": 2}


def gpt2(**changes):
    arguments = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 50} | changes
    no_dropout = dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**arguments, **no_dropout, bos_token_id=0, eos_token_id=0)
    )


MODELS = {
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **NO_DROPOUT)),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**SIZES, **NO_DROPOUT)),
    "electra": lambda: transformers.ElectraForMaskedLM(
        transformers.ElectraConfig(**SIZES, **NO_DROPOUT, embedding_size=16)
    ),
    "gpt2": gpt2,
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**GROUPED)),
    "mistral": lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**GROUPED, sliding_window=8)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**GROUPED)),
    "neox": lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**SIZES)),
}
CAUSAL = ["gpt2", "llama", "mistral", "qwen2", "neox"]
every_model = pytest.mark.parametrize("name", MODELS)


def tokens(*shape):
    return torch.randint(3, 50, shape)


def logits(model, ids, **arguments):
    return model(input_ids=ids, **arguments).logits


# ------------------------------------------------------------------------------- the bias, against transformers' own


@pytest.mark.parametrize("num_heads", [1, 2, 3, 4, 6, 8, 12, 20, 40, 112])
def test_bias_is_that_of_bloom_and_of_mpt(num_heads):
    """Both are written differently, and give the same attention under a causal mask."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    size = 9
    places = torch.arange(size)
    ours = alibi_bias(num_heads, places, places)
    bloom = build_alibi_tensor(torch.ones(1, size), num_heads, torch.float32)
    mpt = build_mpt_alibi_tensor(num_heads, size)
    future = torch.ones(size, size, dtype=torch.bool).triu(1)
    scores = torch.randn(num_heads, size, size)

    def attention(bias):
        return (scores + bias).masked_fill(future, -torch.inf).softmax(-1)

    torch.testing.assert_close(attention(ours), attention(bloom))
    torch.testing.assert_close(attention(ours), attention(mpt))


def test_gpt2_with_alibi_is_bloom_with_the_same_weights():
    """End to end: BLOOM is GPT-2 with ALiBi, one more normalization and another GELU."""
    config = transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=50, layer_norm_epsilon=1e-5)
    bloom = transformers.BloomForCausalLM(config).eval()
    model = gpt2(activation_function="gelu_pytorch_tanh").eval()
    theirs, ours = bloom.transformer, model.transformer
    theirs.word_embeddings_layernorm = torch.nn.Identity()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, mean=float("weight" in name), std=0.2)
        ours.wte.weight.copy_(theirs.word_embeddings.weight)
        ours.ln_f.load_state_dict(theirs.ln_f.state_dict())
        for block, other in zip(ours.h, theirs.h, strict=True):
            block.ln_1.load_state_dict(other.input_layernorm.state_dict())
            block.ln_2.load_state_dict(other.post_attention_layernorm.state_dict())
            # BLOOM keeps query, key and value of a head together, GPT-2 all queries, then all keys, then all values.
            fused = other.self_attention.query_key_value
            block.attn.c_attn.weight.copy_(fused.weight.view(4, 3, 8, 32).transpose(0, 1).reshape(96, 32).T)
            block.attn.c_attn.bias.copy_(fused.bias.view(4, 3, 8).transpose(0, 1).reshape(96))
            for linear, target in (
                (other.self_attention.dense, block.attn.c_proj),
                (other.mlp.dense_h_to_4h, block.mlp.c_fc),
                (other.mlp.dense_4h_to_h, block.mlp.c_proj),
            ):
                target.weight.copy_(linear.weight.T)
                target.bias.copy_(linear.bias)
    ids = tokens(2, 48)
    apply_alibi(model, 48)
    torch.testing.assert_close(logits(model, ids), logits(bloom, ids), rtol=1e-4, atol=1e-5)


def test_bert_attention_equals_the_formula():
    model = MODELS["bert"]().bert
    apply_alibi(model, 64)
    attention = model.encoder.layer[0].attention.self
    seen = {}

    def keep(module, args, output):
        seen["inputs"], seen["outputs"] = args[0], output[0]

    attention.register_forward_hook(keep)
    mask = torch.ones(2, 40, dtype=torch.long)
    mask[1, 30:] = 0
    model(input_ids=tokens(2, 40), attention_mask=mask)
    projections = (getattr(attention, name)(seen["inputs"]) for name in ("query", "key", "value"))
    query, key, value = (projection.unflatten(-1, (4, 8)).transpose(1, 2) for projection in projections)
    places = torch.arange(40)
    scores = query @ key.transpose(-1, -2) / math.sqrt(8)
    scores = scores - alibi_slopes(4)[:, None, None] * (places[:, None] - places).abs()
    scores = scores.masked_fill(mask[:, None, None] == 0, -torch.inf)
    expected = (scores.softmax(-1) @ value).transpose(1, 2).flatten(-2)
    torch.testing.assert_close(seen["outputs"], expected)


def test_llama_attention_equals_the_formula():
    """Without rotation, with two queries to a key, under a causal mask."""
    model = MODELS["llama"]().model
    apply_alibi(model, 64)
    attention = model.layers[0].self_attn
    seen = {}

    def keep(module, args, kwargs, output):
        seen["inputs"], seen["outputs"] = kwargs["hidden_states"], output[0]

    attention.register_forward_hook(keep, with_kwargs=True)
    model(input_ids=tokens(2, 40))
    projections = (getattr(attention, f"{name}_proj")(seen["inputs"]) for name in "qkv")
    query, key, value = (projection.unflatten(-1, (-1, 8)).transpose(1, 2) for projection in projections)
    key, value = (projection.repeat_interleave(2, 1) for projection in (key, value))
    places = torch.arange(40)
    scores = query @ key.transpose(-1, -2) / math.sqrt(8)
    scores = scores + alibi_slopes(4)[:, None, None] * (places - places[:, None])
    scores = scores.masked_fill(places > places[:, None], -torch.inf)
    expected = attention.o_proj((scores.softmax(-1) @ value).transpose(1, 2).flatten(-2))
    torch.testing.assert_close(seen["outputs"], expected)


# -------------------------------------------------------------------------------------------------- every architecture


@every_model
def test_positions_are_gone_and_longer_sequences_are_read(name):
    model = MODELS[name]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert apply_alibi(model, 64, optimizer) is model
    classes = [type(module) for module in model.modules()]
    assert (NoPositions in classes) != (NoRotation in classes)
    assert not any("position_embeddings" in key or "wpe" in key for key in model.state_dict())
    assert {id(p) for p in optimizer.param_groups[0]["params"]} == {id(p) for p in model.parameters()}
    ids = tokens(2, 64)
    outputs = logits(model, ids)
    outputs.mean().backward()
    optimizer.step()
    assert outputs.shape == (2, 64, 50)
    assert outputs.isfinite().all()
    assert model.config.max_position_embeddings == 64


@pytest.mark.parametrize("name", [name for name in MODELS if name not in CAUSAL])
def test_encoders_see_order_though_no_embedding_of_positions_is_left(name):
    """Without any, a bidirectional model gives the same output wherever the other tokens are."""
    model = apply_alibi(MODELS[name]().eval(), 64)
    ids = tokens(1, 8)
    swapped = ids[:, [0, 2, 1, 3, 4, 5, 6, 7]]
    assert not torch.allclose(logits(model, ids)[:, -1], logits(model, swapped)[:, -1], atol=1e-6)


@every_model
def test_what_stands_far_in_front_does_not_shift_attention(name):
    """The bias is relative: padding on the left has no effect."""
    model = apply_alibi(MODELS[name]().eval(), 64)
    ids = tokens(2, 10)
    padded = F.pad(ids, (6, 0), value=1)
    mask = F.pad(torch.ones_like(ids), (6, 0))
    torch.testing.assert_close(
        logits(model, padded, attention_mask=mask)[:, 6:], logits(model, ids), rtol=1e-4, atol=1e-5
    )


@every_model
def test_mask_of_ones_is_no_mask_and_padding_is_not_seen(name):
    model = apply_alibi(MODELS[name]().eval(), 64)
    ids = tokens(2, 12)
    expected = logits(model, ids)
    torch.testing.assert_close(logits(model, ids, attention_mask=torch.ones_like(ids)), expected)
    mask = F.pad(torch.ones_like(ids), (0, 5))
    torch.testing.assert_close(
        logits(model, F.pad(ids, (0, 5), value=1), attention_mask=mask)[:, :12], expected, rtol=1e-4, atol=1e-5
    )


@every_model
def test_user_masks_in_four_dimensions_get_the_bias_too(name):
    model = apply_alibi(MODELS[name]().eval(), 64)
    ids = tokens(2, 8)  # no longer than the window of Mistral
    allowed = torch.ones(2, 1, 8, 8, dtype=torch.bool)
    allowed = allowed.tril() if name in CAUSAL else allowed
    added = torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)
    expected = logits(model, ids)
    torch.testing.assert_close(logits(model, ids, attention_mask=allowed), expected)
    torch.testing.assert_close(logits(model, ids, attention_mask=added), expected)


@pytest.mark.parametrize("name", CAUSAL)
def test_generation_with_a_cache(name):
    """The offset of the queries is that of the cache: one token at a time gives what all at once give."""
    model = apply_alibi(MODELS[name]().eval(), 64)
    ids = tokens(2, 12)
    full = logits(model, ids)
    with torch.no_grad():
        cache = model(input_ids=ids[:, :9], use_cache=True).past_key_values
        for place in range(9, 12):
            step = model(input_ids=ids[:, place : place + 1], past_key_values=cache, use_cache=True)
            torch.testing.assert_close(step.logits[:, 0], full[:, place], rtol=1e-4, atol=1e-5)


@every_model
def test_autocast_and_compile(name):
    model = apply_alibi(MODELS[name]().eval(), 64)
    ids = tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    expected = logits(model, ids, attention_mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        half = logits(model, ids, attention_mask=mask)
    torch.testing.assert_close(half[0].float(), expected[0], rtol=0.05, atol=0.02)
    if name in ("bert", "llama"):
        torch.compiler.reset()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(logits(compiled, ids, attention_mask=mask), expected)


def test_window_of_mistral_still_holds():
    """Tokens further back than the window, through both layers, have no effect."""
    model = apply_alibi(MODELS["mistral"]().eval(), 64)
    ids = tokens(1, 40)
    other = ids.clone()
    other[0, :10] = tokens(10)
    torch.testing.assert_close(logits(model, ids)[:, 30:], logits(model, other)[:, 30:])
    assert not torch.allclose(logits(model, ids)[:, 12], logits(model, other)[:, 12])


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_model_inside_another_and_a_second_time():
    class Wrapped(ComposerModel):
        def __init__(self):
            super().__init__()
            self.inner = MODELS["bert"]()

        def forward(self, batch):
            return self.inner(**batch)

        def loss(self, outputs, batch):
            return outputs.loss

    model = Wrapped()
    batches = [{"input_ids": tokens(4, 32), "labels": tokens(4, 32)} for _ in range(2)]
    engine = loop.fit(loop.start(model, [Alibi(64, train_sequence_length_scaling=0.5)]), batches)
    assert engine.state.batch["input_ids"].shape == (8, 16)
    assert model.inner.config._attn_implementation == "alibi"
    with pytest.warns(NoEffectWarning, match="no unconverted module"):
        apply_alibi(model, 64)


def test_models_that_cannot_have_it():
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(hidden_size=32, n_layer=1, n_head=4, vocab_size=50))
    before = copy.deepcopy(bloom.state_dict())
    with pytest.warns(NoEffectWarning, match="learned or rotary positions"):
        apply_alibi(bloom, 64)
    assert bloom.state_dict().keys() == before.keys()
    with pytest.raises(NotImplementedError, match="cross-attention"):
        apply_alibi(gpt2(add_cross_attention=True), 64)
    bart = transformers.BartModel(
        transformers.BartConfig(
            d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2
        )
    )
    with pytest.raises(NotImplementedError, match="BartModel has cross-attention"):
        apply_alibi(bart, 64)
    bert = MODELS["bert"]()
    bert.config.position_embedding_type = "relative_key"
    with pytest.raises(NotImplementedError, match="relative_key"):
        apply_alibi(bert, 64)


def test_custom_attention_is_unchanged():
    """MPNet does not support attention functions: transformers warns, and nothing is changed."""
    model = transformers.MPNetModel(transformers.MPNetConfig(**SIZES))
    before = model.state_dict().keys()
    with pytest.warns(NoEffectWarning, match="replaceable attention"):
        apply_alibi(model, 64)
    assert model.state_dict().keys() == before
