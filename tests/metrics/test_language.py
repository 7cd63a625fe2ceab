from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from torch import Tensor

import composer.metrics.nlp
from composer.metrics import BinaryF1Score, LanguageCrossEntropy, LanguagePerplexity, MaskedAccuracy
from tests.metrics.laws import Batches, every_law, value_of

TOKENS = 5


def text(batch: int = 6, length: int = 4, vocabulary: int = TOKENS, ignored: float = 0.3) -> tuple[Tensor, Tensor]:
    logits = torch.randn(batch, length, vocabulary)
    target = torch.randint(vocabulary, (batch, length))
    return logits, target.masked_fill(torch.rand(batch, length) < ignored, -100)


def pairs() -> Batches:
    """Two batches for a choice between two classes; the outputs of the second are wrong."""
    logits, target = torch.randn(9, 2), torch.randint(2, (9,))
    return [(logits, target), (F.one_hot(1 - target[:4], 2).float(), target[:4])]


@every_law
@pytest.mark.parametrize("make", [LanguageCrossEntropy, LanguagePerplexity, MaskedAccuracy])
def test_laws_of_metrics_of_tokens(law, make) -> None:
    _, target = text(2, 3)
    wrong = F.one_hot((target + 1).clamp_min(0) % TOKENS, TOKENS).float()
    law(make, [text(), (wrong, target)])


@every_law
def test_laws_of_f1(law) -> None:
    law(BinaryF1Score, pairs())


@given(cuts=st.lists(st.integers(0, 20), max_size=4), seed=st.integers(0, 2**31))
def test_tokens_count_alike_however_they_are_batched(cuts: list[int], seed: int) -> None:
    torch.manual_seed(seed)
    logits, target = text(20)
    target[0, 0] = 1
    edges = sorted({0, *cuts, 20})
    batches = [(logits[a:b], target[a:b]) for a, b in itertools.pairwise(edges)]
    expected = F.cross_entropy(logits.flatten(0, 1), target.flatten())
    torch.testing.assert_close(value_of(LanguageCrossEntropy, batches), expected)
    torch.testing.assert_close(value_of(LanguagePerplexity, batches), expected.exp())


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("metric", [LanguageCrossEntropy, LanguagePerplexity, MaskedAccuracy])
def test_outputs_may_be_a_mapping_and_flat(metric, flat: bool) -> None:
    logits, target = text()
    expected = value_of(metric, [(logits, target)])
    if flat:
        logits, target = logits.flatten(0, 1), target.flatten()
    assert torch.equal(value_of(metric, [({"loss": None, "logits": logits}, target)]), expected)


def test_logits_without_a_batch_dim_for_a_target_with_one() -> None:
    logits, target = text()
    value = value_of(LanguageCrossEntropy, [(logits.flatten(0, 1), target)])
    assert torch.equal(value, value_of(LanguageCrossEntropy, [(logits, target)]))


def test_another_ignore_index() -> None:
    logits, target = text(ignored=0)
    flat, flat_target = logits.flatten(0, 1), target.flatten()
    value = value_of(lambda: LanguageCrossEntropy(ignore_index=2), [(logits, target)])
    torch.testing.assert_close(value, F.cross_entropy(flat, flat_target, ignore_index=2))
    kept = flat_target != 2
    accuracy = value_of(lambda: MaskedAccuracy(ignore_index=2), [(logits, target)])
    torch.testing.assert_close(accuracy, (flat.argmax(1) == flat_target)[kept].float().mean())


def test_perplexity_of_a_fair_draw() -> None:
    assert value_of(LanguagePerplexity, [(torch.zeros(1, 3, 7), torch.tensor([[0, 5, -100]]))]).item() == pytest.approx(
        7
    )


@pytest.mark.parametrize("seed", range(5))
def test_perplexity_is_the_exponential_of_the_cross_entropy_to_the_bit(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randn(3, 7, 11, generator=generator), torch.randint(11, (3, 7), generator=generator)
    perplexity, entropy = LanguagePerplexity(), LanguageCrossEntropy()
    perplexity.update(*batch)
    entropy.update(*batch)
    assert torch.equal(perplexity.compute(), entropy.compute().exp())
    assert isinstance(perplexity, LanguageCrossEntropy)


def test_half_precision_logits_count_as_float32() -> None:
    logits, target = text(64, ignored=0)
    logits = logits.bfloat16()
    expected = F.cross_entropy(logits.float().flatten(0, 1), target.flatten())
    torch.testing.assert_close(value_of(LanguageCrossEntropy, [(logits, target)]), expected)


def test_tokens_are_counted_where_float32_would_not() -> None:
    metric = LanguageCrossEntropy()
    metric.sum_loss.fill_(2**30)
    metric.total_items.fill_(2**30)
    metric.update(torch.zeros(1, 2), torch.tensor([0]))
    assert metric.total_items == 2**30 + 1
    assert metric.sum_loss.item() == pytest.approx(2**30 + math.log(2), abs=1e-3)


@pytest.mark.parametrize("metric", [LanguageCrossEntropy, LanguagePerplexity])
def test_nothing_is_nan(metric) -> None:
    assert value_of(metric, [(torch.zeros(1, 1, 2), torch.tensor([[-100]]))]).isnan()


def test_accuracy_takes_predicted_classes_and_of_nothing_is_zero() -> None:
    logits, target = text()
    expected = value_of(MaskedAccuracy, [(logits, target)])
    assert 0 < expected < 1
    assert torch.equal(value_of(MaskedAccuracy, [(logits.argmax(-1), target)]), expected)
    assert value_of(MaskedAccuracy, [(torch.zeros(1, 2), torch.tensor([-100]))]) == 0


@given(seed=st.integers(0, 2**31))
def test_f1_equals_that_of_scikit_learn(seed: int) -> None:
    torch.manual_seed(seed)
    logits, target = torch.randn(30, 2), torch.randint(2, (30,))
    expected = f1_score(target, logits.argmax(1), zero_division=0)
    value = value_of(BinaryF1Score, [(logits[:7], target[:7]), (logits[7:], target[7:])])
    assert value.item() == pytest.approx(expected)
    assert torch.equal(value_of(BinaryF1Score, [({"logits": logits}, target)]), value)
    assert torch.equal(value_of(BinaryF1Score, [(logits.argmax(1), target)]), value)


def test_f1_leaves_out_other_targets_and_is_zero_without_class_1() -> None:
    logits = torch.tensor([[0.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
    assert value_of(BinaryF1Score, [(logits, torch.tensor([1, -100, -100]))]) == 1
    assert value_of(BinaryF1Score, [(logits[2:], torch.tensor([0]))]) == 0


@pytest.mark.parametrize("metric", [LanguageCrossEntropy, LanguagePerplexity, MaskedAccuracy, BinaryF1Score])
def test_shapes_that_do_not_fit_are_refused(metric) -> None:
    with pytest.raises(ValueError, match=r"\(4, 2\)"):
        metric().update(torch.zeros(4, 2), torch.zeros(3, dtype=torch.long))
    with pytest.raises(ValueError, match="must have 'logits', but has 'loss', 'scores'"):
        metric().update({"loss": 0, "scores": 1}, torch.zeros(3, dtype=torch.long))


def test_the_module_that_scripts_import() -> None:
    for name in composer.metrics.language.__all__:
        assert getattr(composer.metrics.nlp, name) is getattr(composer.metrics, name)
