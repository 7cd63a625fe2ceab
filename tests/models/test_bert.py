"""BERT by name: its sizes, its metrics, trained weights from a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import composer.models
from composer.models.bert import create_bert_classification, create_bert_mlm
from tests.models import tiny
from tests.models.test_huggingface_training import trainer_of

SIZES = {**tiny.SIZES, **tiny.NO_DROPOUT}


def folder_of(task: str, folder: Path, **more: Any) -> str:
    """A model and its tokenizer as from the hub."""
    tiny.bert(task, **more).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


def test_sizes_are_those_of_the_paper_without_a_download() -> None:
    with torch.device("meta"):
        masked, sorts = create_bert_mlm(), create_bert_classification()
    for model in (masked, sorts):
        config = model.config
        assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (30522, 768, 12)
        assert model.tokenizer is None
    assert masked.model.num_parameters() == 109_514_298
    assert composer.models.create_bert_mlm is create_bert_mlm
    assert composer.models.create_bert_classification is create_bert_classification


def test_masked_tokens_are_trained_and_measured() -> None:
    model = create_bert_mlm(model_config=SIZES)
    batch = tiny.texts()
    batch["labels"] = torch.where(torch.rand(batch["labels"].shape) < 0.5, batch["labels"], -100)
    trainer = trainer_of(model, [batch], eval_dataloader=[batch])
    trainer.fit()
    trainer.eval()
    found = trainer.state.eval_metrics["eval"]
    with torch.no_grad():
        outputs = model.eval()(batch)
        right = (outputs.logits.argmax(-1) == batch["labels"]).sum() / (batch["labels"] != -100).sum()
    torch.testing.assert_close(found["LanguageCrossEntropy"].compute(), outputs.loss)
    torch.testing.assert_close(found["MaskedAccuracy"].compute(), right)


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_measured(classes: int) -> None:
    from torchmetrics.functional import matthews_corrcoef
    from torchmetrics.functional.classification import binary_f1_score

    model = create_bert_classification(classes, model_config=SIZES)
    batch = tiny.sorted_texts(8, classes)
    trainer = trainer_of(model, [batch], eval_dataloader=[batch])
    trainer.eval()
    found = {name: metric.compute() for name, metric in trainer.state.eval_metrics["eval"].items()}
    with torch.no_grad():
        guess = model.eval()(batch).logits.argmax(-1)
    assert found["MulticlassAccuracy"] == (guess == batch["labels"]).float().mean()
    matthews = matthews_corrcoef(guess, batch["labels"], task="multiclass", num_classes=classes)
    torch.testing.assert_close(found["MulticlassMatthewsCorrCoef"], matthews)
    assert ("BinaryF1Score" in found) is (classes == 2)
    if classes == 2:
        torch.testing.assert_close(found["BinaryF1Score"], binary_f1_score(guess, batch["labels"]))


def test_a_score_is_fitted_and_measured() -> None:
    from torchmetrics.functional import spearman_corrcoef

    model = create_bert_classification(1, model_config=SIZES)
    batch = {**tiny.sorted_texts(8), "labels": torch.linspace(-1, 1, 8)}
    trainer = trainer_of(model, [batch], eval_dataloader=[batch])
    trainer.eval()
    found = {name: metric.compute() for name, metric in trainer.state.eval_metrics["eval"].items()}
    with torch.no_grad():
        outputs = model.eval()(batch)
    scores = outputs.logits[:, 0]
    torch.testing.assert_close(outputs.loss, F.mse_loss(scores, batch["labels"]))
    torch.testing.assert_close(found["MeanSquaredError"], F.mse_loss(scores, batch["labels"]))
    torch.testing.assert_close(found["SpearmanCorrCoef"], spearman_corrcoef(scores, batch["labels"]))


def test_trained_weights_from_a_folder(tmp_path: Path) -> None:
    path = folder_of("ForMaskedLM", tmp_path)
    model = create_bert_mlm(True, path, tokenizer_name=path)
    expected = tiny.bert().state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.model.state_dict().items())
    assert len(model.tokenizer) == 24
    untrained = create_bert_mlm(False, path, model_config={"num_hidden_layers": 1})
    assert (untrained.config.hidden_size, untrained.config.num_hidden_layers) == (16, 1)
    sorts = create_bert_classification(3, True, path)
    assert sorts.config.num_labels == 3
    trunk = sorts.model.bert.embeddings.word_embeddings.weight
    assert torch.equal(trunk, expected["bert.embeddings.word_embeddings.weight"])


def test_activations_are_computed_again() -> None:
    model = create_bert_mlm(model_config=SIZES, gradient_checkpointing=True)
    batch = tiny.texts()
    calls: list[int] = []
    model.model.bert.encoder.layer[0].intermediate.register_forward_hook(lambda *_: calls.append(1))
    model.train().loss(model(batch), batch).backward()
    assert len(calls) == 2


def test_no_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="num_labels must be greater than 0"):
        create_bert_classification(0)
