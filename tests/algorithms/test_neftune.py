from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer.algorithms import NEFTune, add_embedding_noise
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, make_model
from tests.algorithms.text import make_text_batches, make_text_model, train_by_hand


def _by_hand(batches):
    def surgery(model, optimizer):
        model.embed.register_forward_hook(lambda module, args, output: add_embedding_noise(output, 5.0))

    return train_by_hand(batches, surgery=surgery)


CASE = Case(
    make=lambda: NEFTune(alpha=5.0),
    by_hand=_by_hand,
    neutral=lambda: NEFTune(alpha=0.0),
    model=make_text_model,
    batches=make_text_batches,
)


@given(
    length=st.integers(1, 40),
    features=st.integers(1, 40),
    alpha=st.floats(0, 100),
    seed=st.integers(0, 99),
)
def test_noise_stays_within_its_bound(length, features, alpha, seed):
    torch.manual_seed(seed)
    x = torch.zeros(2, length, features, dtype=torch.float64)
    noise = add_embedding_noise(x, alpha)
    assert noise.abs().max().item() <= alpha / math.sqrt(length * features) * (1 + 1e-12)


def test_noise_is_uniform():
    noise = add_embedding_noise(torch.zeros(100, 50, 20), alpha=5.0) / (5 / math.sqrt(1000))
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    assert noise.var().item() == pytest.approx(1 / 3, abs=0.01)
    assert (noise < -0.5).float().mean().item() == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(("length", "features"), [(10, 8), (200, 8), (10, 300)])
def test_length_of_the_noise_depends_on_alpha_alone(length, features):
    noise = add_embedding_noise(torch.zeros(200, length, features), alpha=6.0)
    assert noise.flatten(1).norm(dim=1).mean().item() == pytest.approx(6 / math.sqrt(3), rel=0.03)


def test_padding_gets_no_noise_and_does_not_count():
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    x = torch.ones(3, 4, 8)
    torch.manual_seed(0)
    noise = add_embedding_noise(x, 3.0, mask) - 1
    torch.manual_seed(0)
    unit = torch.rand(3, 4, 8) * 2 - 1
    torch.testing.assert_close(noise[0, :2], unit[0, :2] * 3 / 4, atol=1e-6, rtol=0)
    torch.testing.assert_close(noise[1], unit[1] * 3 / math.sqrt(32), atol=1e-6, rtol=0)
    assert not noise[0, 2:].any()
    assert not noise[2].any()


def test_gradient_passes_and_dtype_stays():
    x = torch.zeros(2, 3, 4, dtype=torch.bfloat16, requires_grad=True)
    noisy = add_embedding_noise(x, 5.0)
    noisy.sum().backward()
    assert noisy.dtype == torch.bfloat16
    assert torch.equal(x.grad, torch.ones_like(x))
    assert add_embedding_noise(x, 0.0) is x


def test_wrong_arguments():
    with pytest.raises(ValueError, match="alpha"):
        NEFTune(-1)
    with pytest.raises(ValueError, match="alpha"):
        add_embedding_noise(torch.zeros(1, 2, 3), -1)
    with pytest.raises(ValueError, match="shape"):
        add_embedding_noise(torch.zeros(3))
    with pytest.raises(ValueError, match=r"mask must be of the shape \(1, 2\)"):
        add_embedding_noise(torch.zeros(1, 2, 3), mask=torch.zeros(2, 1))


def started(model, **arguments):
    engine = loop.start(model, [NEFTune(**arguments)])
    engine.run_event("fit_start")
    return engine


def test_evaluation_has_no_noise_and_the_model_is_left_as_it_was():
    model = make_text_model()
    batch = make_text_batches(1)[0]
    with torch.no_grad():
        quiet = model.eval()(batch)
        engine = started(model)
        assert torch.equal(model(batch), quiet)
        model.train()
        assert not torch.allclose(model(batch), quiet, atol=1e-3)
        assert not torch.equal(copy.deepcopy(model)(batch), model(batch))
        engine.run_event("fit_end")
        assert not model.embed._forward_hooks
        assert torch.equal(model(batch), model(batch))


def test_training_twice_adds_one_hook():
    model = make_text_model()
    engine = started(model)
    engine.run_event("fit_start")
    assert len(model.embed._forward_hooks) == 1


class _Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(9, 4), nn.Embedding(9, 4)


class _WithGetter(_Two):
    def get_input_embeddings(self):
        return self.words


def test_which_embedding():
    model = nn.Sequential(_WithGetter())
    started(model)
    assert len(model[0].words._forward_hooks) == 1
    assert not model[0].positions._forward_hooks
    with pytest.raises(ValueError, match=r"several embeddings: 0.words, 0.positions.*embedding='0.words'"):
        loop.start(nn.Sequential(_Two(), nn.Linear(1, 1)), [NEFTune()])
    model = nn.Sequential(_Two())
    started(model, embedding="0.positions")
    assert len(model[0].positions._forward_hooks) == 1
    with pytest.raises(ValueError, match=r"Did you mean '0\.words'"):
        loop.start(nn.Sequential(_Two()), [NEFTune(embedding="0.word")])
    with pytest.warns(NoEffectWarning, match=r"no nn\.Embedding"):
        loop.start(make_model(), [NEFTune()])


def test_models_of_transformers_are_asked():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    model = transformers.BertForMaskedLM(config)
    started(nn.Sequential(model))
    assert len(model.bert.embeddings.word_embeddings._forward_hooks) == 1
