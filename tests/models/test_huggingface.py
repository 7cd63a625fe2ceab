"""HuggingFaceModel: forward, loss, metrics and text generation."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchmetrics import MeanSquaredError
from torchmetrics.classification import MulticlassAccuracy

import composer.models
from composer._lazy import MissingConditionalImportError
from composer.metrics import LanguageCrossEntropy, LanguagePerplexity, MaskedAccuracy
from composer.models import HuggingFaceModel
from composer.models._transformers import decode_continuations, generation_arguments
from composer.models.huggingface import maybe_get_underlying_model, peft_installed
from composer.warnings import ComposerWarning
from tests.models import tiny

KINDS: dict[str, tuple[Any, Any]] = {
    "bert masked": (tiny.bert, tiny.texts),
    "bert sorts": (lambda: tiny.bert("ForSequenceClassification", num_labels=3), tiny.sorted_texts),
    "gpt2": (tiny.gpt2, tiny.texts),
    "llama": (tiny.llama, tiny.texts),
    "vit": (tiny.vit, lambda: {"pixel_values": torch.randn(4, 3, 8, 8), "labels": torch.arange(4) % 3}),
    "t5": (tiny.t5, tiny.texts),
}


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_logits_are_those_of_the_model(kind: str) -> None:
    make, data = KINDS[kind]
    batch = data()
    model, alone = HuggingFaceModel(make(), use_logits=True).eval(), make().eval()
    expected = alone(**batch)
    outputs = model(batch)
    assert torch.equal(model.loss(outputs, batch), expected.loss)
    assert torch.equal(model.eval_forward(batch), expected.logits)
    assert torch.equal(model.eval_forward(batch, outputs), expected.logits)
    assert model.shift_labels is (kind in ("gpt2", "llama"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_a_mean_over_what_is_counted(kind: str) -> None:
    """The sum of the losses of all targets that count is the loss times their number."""
    make, data = KINDS[kind]
    batch, model = data(), HuggingFaceModel(make()).eval()
    logits, labels = model(batch).logits, batch["labels"]
    if model.shift_labels:
        logits, labels = logits[:, :-1], labels[:, 1:]
    total = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")
    torch.testing.assert_close(model.loss(model(batch), batch) * model.__count_targets__(batch), total)


def test_scores_and_several_labels_at_once_are_averaged_over_samples() -> None:
    model = HuggingFaceModel(tiny.bert("ForSequenceClassification", num_labels=1), use_logits=True)
    batch = {**tiny.sorted_texts(), "labels": torch.randn(4)}
    assert model.__count_targets__(batch) is None
    assert model.__count_targets__({"input_ids": batch["input_ids"]}) is None
    scores = model.eval_forward(batch)
    assert scores.shape == (4,)
    metric = MeanSquaredError()
    model.update_metric(batch, scores, metric)
    torch.testing.assert_close(metric.compute(), F.mse_loss(scores, batch["labels"]))


def test_tuples_are_taken_apart() -> None:
    batch = tiny.texts()
    model, alone = HuggingFaceModel(tiny.gpt2(), use_logits=True).eval(), tiny.gpt2().eval()
    expected = alone(**batch)
    model.model.forward = lambda **arguments: alone(**arguments).to_tuple()
    outputs = model(batch)
    assert isinstance(outputs, tuple)
    assert torch.equal(model.loss(outputs, batch), expected.loss)
    assert torch.equal(model.eval_forward(batch), expected.logits)
    assert torch.equal(model.eval_forward(batch, outputs), expected.logits)
    without = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with pytest.raises(ValueError, match="returned no loss for a batch with the keys input_ids, attention_mask"):
        model.loss(model(without), without)


def test_batches_of_every_kind_of_mapping() -> None:
    from transformers import BatchEncoding, DataCollatorForLanguageModeling, DataCollatorWithPadding

    model = HuggingFaceModel(tiny.gpt2()).eval()
    expected = model(tiny.texts()).loss
    assert torch.equal(model(BatchEncoding(tiny.texts())).loss, expected)
    more = {**tiny.texts(), "idx": torch.arange(4), "special_tokens_mask": torch.zeros(4, 8)}
    assert torch.equal(model(more).loss, expected)
    words = tiny.tokenizer()
    examples = [words(text) for text in ("the cat sat", "a dog", "the old house far away")]
    batch = DataCollatorForLanguageModeling(words, mlm=False)(copy.deepcopy(examples))
    assert model(batch).loss.isfinite()
    assert int(model.__count_targets__(batch)) == 2 + 1 + 4
    sorts = HuggingFaceModel(tiny.bert("ForSequenceClassification", num_labels=3))
    batch = DataCollatorWithPadding(words)([{**dict(one), "label": 1} for one in examples])
    assert sorts(batch).logits.shape == (3, 3)
    assert sorts(batch).loss.isfinite()


def test_batches_that_do_not_fit_are_refused() -> None:
    model = HuggingFaceModel(tiny.gpt2())
    with pytest.raises(TypeError, match=r"requires batches that are mappings.*got a tuple"):
        model((torch.ones(1), torch.ones(1)))
    with pytest.raises(
        ValueError, match="The batch has the keys pixels, but GPT2LMHeadModel accepts none of them; it accepts "
    ):
        model({"pixels": torch.ones(1)})
    batch = {"input_ids": torch.ones(2, 3, dtype=torch.long)}
    with pytest.raises(ValueError, match="no loss for a batch with the keys input_ids"):
        model.loss(model(batch), batch)
    with pytest.raises(ValueError, match="Metrics need 'labels'"):
        model.update_metric(batch, model(batch), LanguageCrossEntropy())
    hidden = HuggingFaceModel(tiny.bert("Model"), use_logits=True)
    with pytest.raises(ValueError, match="use_logits=True, but the model returns last_hidden_state, pooler_output"):
        hidden.eval_forward(batch)


@torch.no_grad()
@pytest.mark.parametrize("use_logits", [True, False])
def test_metrics_of_causal_models_compare_with_the_next_label(use_logits: bool) -> None:
    """The cross entropy over two batches of other lengths is the mean over all tokens of both."""
    metrics = [LanguageCrossEntropy(), LanguagePerplexity(), MaskedAccuracy()]
    model = HuggingFaceModel(tiny.gpt2(), use_logits=use_logits, metrics=metrics).eval()
    batches = [tiny.texts([8, 3]), tiny.texts([1, 2, 5], seed=1)]
    before = copy.deepcopy(batches)
    found = model.get_metrics(is_train=True)
    for batch in batches:
        outputs = model.eval_forward(batch)
        for metric in found.values():
            model.update_metric(batch, outputs, metric)
    counts = [int(model.__count_targets__(batch)) for batch in batches]
    assert counts == [7 + 2, 0 + 1 + 4]
    losses = [float(model(batch).loss) for batch in batches]
    mean = sum(loss * count for loss, count in zip(losses, counts, strict=True)) / sum(counts)
    assert float(found["LanguageCrossEntropy"].compute()) == pytest.approx(mean, rel=1e-6)
    assert float(found["LanguagePerplexity"].compute()) == pytest.approx(torch.tensor(mean).exp().item(), rel=1e-6)
    for batch, old in zip(batches, before, strict=True):
        assert batch.keys() == old.keys()
        assert all(torch.equal(batch[name], old[name]) for name in old)


def test_metrics_by_name() -> None:
    one, other = LanguageCrossEntropy(), MaskedAccuracy()
    model = HuggingFaceModel(tiny.gpt2(), metrics=[one], eval_metrics={"ours": other})
    assert model.get_metrics(is_train=True) == {"LanguageCrossEntropy": one}
    assert model.get_metrics(is_train=False) == {"ours": other}
    copied = HuggingFaceModel(tiny.gpt2(), metrics=[one]).get_metrics()
    assert list(copied) == ["LanguageCrossEntropy"]
    assert copied["LanguageCrossEntropy"] is not one
    assert HuggingFaceModel(tiny.gpt2()).get_metrics() == {}
    with pytest.raises(ValueError, match="eval_metrics has several metrics of the class MaskedAccuracy"):
        HuggingFaceModel(tiny.gpt2(), eval_metrics=[other, MaskedAccuracy()])
    with pytest.raises(TypeError, match="metrics must be a Metric, a list of metrics"):
        HuggingFaceModel(tiny.gpt2(), metrics=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a torchmetrics Metric, but got a str"):
        HuggingFaceModel(tiny.gpt2(), metrics=["accuracy"])  # type: ignore[list-item]


def test_a_metric_may_ask_for_the_batch() -> None:
    class Asks(MulticlassAccuracy):
        needs_batch = True

        def update(self, batch, outputs, labels):
            self.seen = batch, labels
            super().update(outputs, labels)

    model = HuggingFaceModel(tiny.bert("ForSequenceClassification", num_labels=3), use_logits=True)
    batch, metric = tiny.sorted_texts(), Asks(num_classes=3)
    model.update_metric(batch, model.eval_forward(batch), metric)
    assert metric.seen == (batch, batch["labels"])


def test_which_models_predict_the_next_token() -> None:
    class Own(type(tiny.gpt2())):
        pass

    assert HuggingFaceModel(Own(tiny.gpt2().config)).shift_labels
    assert HuggingFaceModel(tiny.bert(), shift_labels=True).shift_labels
    assert not HuggingFaceModel(tiny.gpt2(task="ForSequenceClassification", pad_token_id=0)).shift_labels
    with pytest.warns(ComposerWarning, match="shift_labels=False, but GPT2LMHeadModel is a causal language model"):
        assert not HuggingFaceModel(tiny.gpt2(), shift_labels=False).shift_labels


def test_labels_make_the_inputs_of_a_decoder() -> None:
    """A model with a decoder needs its inputs, which the labels are, where no loss is computed."""
    model, batch = HuggingFaceModel(tiny.t5(), use_logits=True).eval(), tiny.texts()
    seen: list[set[str]] = []
    model.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append({name for name in kwargs if kwargs[name] is not None}),
        with_kwargs=True,
    )
    logits = model.eval_forward(batch)
    assert seen == [{"input_ids", "attention_mask", "decoder_input_ids"}]
    assert torch.equal(logits, tiny.t5().eval()(**batch).logits)


# --------------------------------------------------------------------------------------------------------- embeddings


def test_a_tokenizer_with_more_tokens_than_the_model() -> None:
    large = tiny.tokenizer(more=5)
    with pytest.raises(
        ValueError, match=r"has 29 tokens, but the model has embeddings for 24.*allow_embedding_resizing"
    ):
        HuggingFaceModel(tiny.gpt2(), large)
    network = tiny.gpt2()
    old = network.transformer.wte.weight.detach().clone()
    model = HuggingFaceModel(network, large, allow_embedding_resizing=True)
    assert model.config.vocab_size == 29
    assert torch.equal(model.model.transformer.wte.weight[:24], old)
    assert model({"input_ids": torch.tensor([[28]])}).logits.shape == (1, 1, 29)
    smaller = HuggingFaceModel(tiny.gpt2(vocab_size=64), tiny.tokenizer(), allow_embedding_resizing=True)
    assert smaller.config.vocab_size == 64


def test_a_model_that_is_none_of_transformers() -> None:
    with pytest.raises(TypeError, match=r"model must be a transformers model.*got a Linear"):
        HuggingFaceModel(nn.Linear(1, 1))


def test_names_and_old_homes() -> None:
    assert composer.models.HuggingFaceModel is HuggingFaceModel
    model = tiny.gpt2()
    assert maybe_get_underlying_model(model) is model
    assert peft_installed is True
    assert callable(composer.models.write_huggingface_pretrained_from_composer_checkpoint)


# -------------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize("make", [tiny.gpt2, tiny.llama])
def test_a_batch_of_prompts_is_continued_as_each_alone(make: Any) -> None:
    words = tiny.tokenizer()
    words.padding_side = "left"
    model = HuggingFaceModel(make(eos_token_id=None), words).eval()
    prompts = ["the cat sat on", "a dog"]
    inputs = words(prompts, return_tensors="pt", padding=True)
    both = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=5)
    for row, prompt in zip(both, prompts, strict=True):
        alone = words(prompt, return_tensors="pt")["input_ids"]
        written = model.generate(alone, attention_mask=torch.ones_like(alone), max_new_tokens=5)
        assert torch.equal(row[-5:], written[0, -5:])


def test_padding_of_what_is_written() -> None:
    """The tokenizer's padding where nothing else is said, else the end of a text; what is said goes first."""
    seen: list[Any] = []
    inputs = torch.ones(1, 2, dtype=torch.long)

    def padding(model: HuggingFaceModel, **arguments: Any) -> Any:
        model.model.generate = lambda **kwargs: seen.append(kwargs.get("pad_token_id"))
        model.generate(inputs, **arguments)
        return seen[-1]

    assert padding(HuggingFaceModel(tiny.gpt2(), tiny.tokenizer())) == 2
    assert padding(HuggingFaceModel(tiny.gpt2(), tiny.tokenizer(pad=False))) == 0
    assert padding(HuggingFaceModel(tiny.gpt2(), tiny.tokenizer()), pad_token_id=7) == 7
    assert padding(HuggingFaceModel(tiny.llama(), tiny.tokenizer())) is None  # its own configuration says it
    assert padding(HuggingFaceModel(tiny.gpt2())) is None
    with pytest.raises(ValueError, match="BertForMaskedLM cannot generate"):
        HuggingFaceModel(tiny.bert()).generate(inputs)


class _TwoTokens:
    """A tokenizer that makes a token of the space, as those of sentencepiece do."""

    def __init__(self, words: Any) -> None:
        self.batch_decode = words.batch_decode

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        return {"input_ids": [1, 2]}


def test_evaluation_by_what_is_written() -> None:
    words = tiny.tokenizer()
    words.padding_side = "left"
    model = HuggingFaceModel(tiny.gpt2(eos_token_id=None), words).eval()
    inputs = words(["the cat", "a dog sat on"], return_tensors="pt", padding=True)
    batch = {**inputs, "mode": "generate", "generation_length": 3, "labels": ["x", "y"]}
    found = model.eval_forward(batch)
    tokens = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=3)
    # " a" is one token here, a word without its space; a tokenizer that makes two of it gets the space back.
    assert found == words.batch_decode(tokens[:, -3:], skip_special_tokens=True)
    alone = {name: value for name, value in batch.items() if name != "generation_length"}
    assert model.eval_forward({**alone, "generation_kwargs": {"max_new_tokens": 3}}) == found
    assert generation_arguments(alone) == {}  # as long as the model's own configuration says
    assert decode_continuations(_TwoTokens(words), tokens[:, -3:]) == [f" {text}" for text in found]
    longer = model.eval_forward({**batch, "generation_kwargs": {"max_new_tokens": 6}})
    assert all(text.startswith(short) for text, short in zip(longer, found, strict=True))
    assert batch.keys() == {*inputs, "mode", "generation_length", "labels"}
    with pytest.raises(ValueError, match="needs a tokenizer"):
        HuggingFaceModel(tiny.gpt2()).eval_forward(batch)


def test_evaluation_in_context_compares_logits_with_the_next_label() -> None:
    model = HuggingFaceModel(tiny.gpt2()).eval()
    batch = {**tiny.texts(), "mode": "icl_task"}
    logits = model.eval_forward(batch)
    metric = LanguageCrossEntropy()
    model.update_metric(batch, logits, metric)
    torch.testing.assert_close(metric.compute(), model(tiny.texts()).loss)


def test_what_is_told_of_the_tokenizer(caplog: pytest.LogCaptureFixture) -> None:
    HuggingFaceModel(tiny.gpt2())
    assert caplog.record_tuples == [
        (
            "composer.models.huggingface",
            logging.WARNING,
            "The tokenizer was not provided. This means the tokenizer config will not be saved in the checkpoint.",
        )
    ]
    caplog.clear()
    inner, words = tiny.gpt2(), tiny.tokenizer(more=50)
    known = inner.get_input_embeddings().num_embeddings
    HuggingFaceModel(inner, words, allow_embedding_resizing=True)
    ((_, level, text),) = caplog.record_tuples
    assert level == logging.WARNING
    assert text.endswith(f"Resizing the model embeddings to {len(words)} from {known}.")
    caplog.clear()
    HuggingFaceModel(tiny.gpt2(), tiny.tokenizer())
    assert not caplog.records


def test_scripts_may_say_that_peft_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("composer.models.huggingface.peft_installed", False)
    with pytest.raises(MissingConditionalImportError, match=r"composer-torch\[peft\]"):
        HuggingFaceModel(tiny.gpt2(), peft_config={"peft_type": "LORA"})


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_private_functions_that_scripts_import() -> None:
    from composer.models import huggingface

    assert huggingface._is_registered_causal_lm(tiny.gpt2())  # type: ignore[attr-defined]
    assert not huggingface._is_registered_causal_lm(tiny.bert())  # type: ignore[attr-defined]
    peft = pytest.importorskip("peft")
    adapters = peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
    model = huggingface._maybe_get_peft_model(adapters, tiny.gpt2())  # type: ignore[attr-defined]
    assert isinstance(model, peft.PeftModel)
    assert huggingface._is_registered_causal_lm(model)  # type: ignore[attr-defined]
