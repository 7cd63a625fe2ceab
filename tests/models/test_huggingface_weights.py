"""Labels of weight 0: what the decoder reads, what the loss averages over, and what metrics count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from composer.metrics import LanguageCrossEntropy
from composer.models import HuggingFaceModel
from tests.models import tiny


def weighted(lengths: list[int] = [8, 6, 8, 4]) -> tuple[dict[str, Tensor], Tensor]:  # noqa: B006
    """A batch whose tokens 2 to 4 have the weight 0, and its labels with these ignored."""
    batch = tiny.texts(lengths)
    weights = (batch["labels"] != -100).float()
    weights[:, 2:5] = 0
    return {**batch, "loss_weights": weights}, batch["labels"].masked_fill(weights == 0, -100)


def bert_to_bert() -> Any:
    transformers = pytest.importorskip("transformers")
    encoder = transformers.BertConfig(**tiny.SIZES, **tiny.NO_DROPOUT)
    decoder = transformers.BertConfig(
        **tiny.SIZES, **tiny.NO_DROPOUT, is_decoder=True, add_cross_attention=True, pad_token_id=0
    )
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    torch.manual_seed(0)
    return transformers.EncoderDecoderModel(config)


def whisper() -> Any:
    """Makes the inputs of its decoder from labels, but has no method for it."""
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": tiny.VOCABULARY}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    config = transformers.WhisperConfig(**sizes, **tokens, num_mel_bins=4, max_source_positions=8)
    torch.manual_seed(0)
    return transformers.WhisperForConditionalGeneration(config)


@pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces:FutureWarning")
@pytest.mark.parametrize("make", [tiny.t5, bert_to_bert])
def test_a_decoder_reads_labels_of_weight_zero(make: Any) -> None:
    """Only the loss ignores them: the token after one of them is predicted from the true text."""
    model = HuggingFaceModel(make(), use_logits=True, metrics=[LanguageCrossEntropy()]).eval()
    batch, ignored = weighted()
    complete = model.model(**{name: value for name, value in batch.items() if name != "loss_weights"}).logits
    outputs = model(batch)
    torch.testing.assert_close(outputs.logits, complete)
    expected = torch.nn.functional.cross_entropy(complete.flatten(0, 1), ignored.flatten())
    torch.testing.assert_close(model.loss(outputs, batch), expected)
    torch.testing.assert_close(model.eval_forward(batch), complete)

    # What the batch has is used.
    given = {**batch, "decoder_input_ids": torch.ones_like(batch["labels"])}
    assert not torch.allclose(model(given).logits, complete)


@pytest.mark.parametrize("make", [tiny.t5, tiny.gpt2])
def test_metrics_ignore_labels_of_weight_zero(make: Any) -> None:
    model = HuggingFaceModel(make(), use_logits=True, metrics=[LanguageCrossEntropy()]).eval()
    batch, _ = weighted()
    before = {name: value.clone() for name, value in batch.items()}
    metric = model.get_metrics()["LanguageCrossEntropy"]
    model.update_metric(batch, model.eval_forward(batch), metric)
    torch.testing.assert_close(metric.compute(), model.loss(model(batch), batch))
    torch.testing.assert_close(batch, before, rtol=0, atol=0)


def test_metrics_of_a_model_that_takes_weights() -> None:
    """Labels of weight 0 are ignored if there is a weight for each label; one for each row is the model's business."""

    class Weighted(type(tiny.bert())):
        def forward(self, input_ids: Tensor, labels: Tensor, loss_weights: Tensor) -> Any:
            return super().forward(input_ids, labels=labels)

    class Seen:
        def update(self, outputs: Tensor, labels: Tensor) -> None:
            self.labels = labels

    model = HuggingFaceModel(Weighted(tiny.bert().config))
    batch, ignored = weighted()
    seen: Any = Seen()
    model.update_metric(batch, torch.zeros(4), seen)
    assert torch.equal(seen.labels, ignored)
    for other in ({"loss_weights": torch.zeros(4)}, {"labels": batch["labels"].float()}):
        given = {**batch, **other}
        model.update_metric(given, torch.zeros(4), seen)
        assert seen.labels is given["labels"]


def test_a_model_that_makes_decoder_inputs_out_of_sight_needs_them() -> None:
    model = HuggingFaceModel(whisper()).eval()
    labels = tiny.texts([8, 6])["labels"]
    features = {"input_features": torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0))}
    batch = {**features, "labels": labels, "loss_weights": torch.ones(2, 8)}
    with pytest.raises(ValueError, match=r"'loss_weights'.*WhisperFor.* makes the inputs .* Add 'decoder_input_ids'"):
        model(batch)
    shifted = torch.nn.functional.pad(labels[:, :-1], (1, 0))
    shifted = shifted.masked_fill(shifted == -100, 0)
    outputs = model({**batch, "decoder_input_ids": shifted})
    torch.testing.assert_close(outputs.loss, model({**features, "labels": labels}).loss)


def test_labels_of_rows_are_not_inputs_of_a_decoder() -> None:
    transformers = pytest.importorskip("transformers")
    tokens = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2, "num_labels": 3}
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "vocab_size": tiny.VOCABULARY}
    config = transformers.BartConfig(**sizes, **tokens, max_position_embeddings=16)
    model = HuggingFaceModel(transformers.BartForSequenceClassification(config)).eval()
    ids = torch.tensor([[5, 6, 2], [7, 8, 2]])
    labels, weights = torch.tensor([1, 2]), torch.tensor([1.0, 0.0])
    found = model({"input_ids": ids, "labels": labels, "loss_weights": weights}).loss
    torch.testing.assert_close(found, model({"input_ids": ids[:1], "labels": labels[:1]}).loss)
    # Nor are those of several classes at a time, which have the shape of sequences.
    with pytest.raises(ValueError, match=r"'labels' of torch.float32 are not classes:"):
        model({"input_ids": ids, "labels": torch.ones(2, 3), "loss_weights": torch.ones(2, 3)})


@pytest.mark.parametrize("labels", [torch.tensor([1.0, 50.0]), torch.eye(3)[:2]])
def test_weights_of_labels_that_are_numbers_are_an_error_in_each_batch(labels: Tensor) -> None:
    """The loss of a regression, or of several classes at a time, can ignore none of them."""
    config = {"num_labels": 1 if labels.ndim == 1 else 3}
    model = HuggingFaceModel(tiny.bert("ForSequenceClassification", **config)).eval()
    batch = {**tiny.texts([8, 8]), "labels": labels}
    for weight in (1.0, 0.0):
        weights = torch.ones_like(labels)
        weights[1] = weight
        with pytest.raises(ValueError, match=r"'labels' of torch.float32.* Leave out 'loss_weights'"):
            model({**batch, "loss_weights": weights})
    assert model(batch).loss.isfinite()


@pytest.mark.parametrize(("num_labels", "problem_type"), [(1, None), (1, "regression"), (3, "regression")])
def test_weights_of_labels_of_a_regression_that_are_integers(num_labels: int, problem_type: str | None) -> None:
    """The ignored class -100 would be a target like others: an error, and no number is left out of a count."""
    config = {"num_labels": num_labels, "problem_type": problem_type}
    model = HuggingFaceModel(tiny.bert("ForSequenceClassification", **config)).eval()
    labels = torch.tensor([0, 0] if num_labels == 1 else [[1, 50, 3], [2, -100, 4]])
    batch = {**tiny.texts([8, 8]), "labels": labels}
    weighted = {**batch, "loss_weights": torch.ones_like(labels)}
    for use in (model, model.__count_targets__):
        with pytest.raises(ValueError, match=r"'labels' of torch.int64 are not classes:.* Leave out 'loss_weights'"):
            use(weighted)
    assert model.__count_targets__(batch) is None


def test_tokens_are_classes_whatever_the_configuration_of_a_language_model_says() -> None:
    batch, _ = weighted()
    model, same = (HuggingFaceModel(tiny.gpt2(**more)).eval() for more in ({}, {"num_labels": 1}))
    assert torch.equal(same(batch).loss, model(batch).loss)


def test_weights_that_change_later_are_checked_too() -> None:
    model = HuggingFaceModel(tiny.gpt2()).eval()
    batch, _ = weighted()
    model(batch)
    with pytest.raises(ValueError, match="'loss_weights' other than 0 and 1"):
        model({**batch, "loss_weights": batch["loss_weights"] / 2})


def test_labels_of_bytes_are_ignored() -> None:
    model = HuggingFaceModel(tiny.gpt2()).eval()
    batch, _ = weighted([8, 8])
    of_bytes = {**batch, "labels": batch["labels"].byte()}
    assert torch.equal(model(of_bytes).loss, model(batch).loss)
