"""Models that are none of transformers, and have what `HuggingFaceModel` asks for: a config and a forward pass."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from composer.metrics import LanguageCrossEntropy
from composer.models import HuggingFaceModel
from tests.common import trainer_of
from tests.models import tiny


class Outputs:
    """An object with attributes."""

    def __init__(self, loss: Tensor | None, logits: Tensor) -> None:
        self.loss, self.logits = loss, logits


class Model(nn.Module):
    """Predicts tokens by the token at the same place."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=tiny.VOCABULARY, use_return_dict=form == "dict", kinds={"b", "a"})
        self.embed, self.head = nn.Embedding(tiny.VOCABULARY, 8), nn.Linear(8, tiny.VOCABULARY)
        self.form = form

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.head(self.embed(input_ids))
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if self.form == "dict":
            return {"loss": loss, "logits": logits}
        if self.form == "object":
            return Outputs(loss, logits)
        return (logits,) if loss is None else (loss, logits)

    def generate(self, input_ids: Tensor, **arguments: Any) -> Tensor:
        return input_ids.flip(1)


def texts() -> dict[str, Tensor]:
    tokens = torch.arange(16).view(2, 8)
    return {"input_ids": tokens, "labels": tokens.flip(1), "attention_mask": torch.ones_like(tokens)}


@pytest.mark.parametrize("form", ["dict", "object", "tuple"])
@pytest.mark.parametrize("use_logits", [True, False])
def test_any_model_with_a_config(form: str, use_logits: bool, tmp_path: Path) -> None:
    metrics = [LanguageCrossEntropy()] if use_logits else None
    model = HuggingFaceModel(Model(form), tiny.tokenizer(), use_logits=use_logits, metrics=metrics)
    assert not model.shift_labels
    evaluation = [texts()] if use_logits else None
    trainer = trainer_of(model, [texts()] * 3, eval_dataloader=evaluation, max_duration="3ba", lr=1.0)
    before = model.loss(model(texts()), texts()).item()
    trainer.fit()
    after = model.loss(model(texts()), texts()).item()
    assert after < before
    if use_logits:
        found = trainer.state.eval_metrics["eval"]["LanguageCrossEntropy"].compute().item()
        assert found == pytest.approx(after, rel=1e-4)
    assert torch.equal(model.generate(texts()["input_ids"]), texts()["labels"])
    trainer.save_checkpoint(str(tmp_path / "a.pt"))
    saved = torch.load(tmp_path / "a.pt", weights_only=False)["state"]["integrations"]["huggingface"]["model"]
    assert saved["config"]["content"]["vocab_size"] == tiny.VOCABULARY
    assert saved["config"]["content"]["kinds"] == ["a", "b"]


def test_the_size_of_the_vocabulary_is_that_of_the_config() -> None:
    model = Model("dict")
    model.config.vocab_size = 3
    with pytest.raises(ValueError, match="tokens, but the model has embeddings for 3"):
        HuggingFaceModel(model, tiny.tokenizer())


def test_a_model_without_loss_or_config() -> None:
    model = HuggingFaceModel(Model("object"))
    with pytest.raises(ValueError, match="returned no loss"):
        model.loss(model({"input_ids": texts()["input_ids"]}), {})
    with pytest.raises(TypeError, match="or have a config attribute, but got a Linear"):
        HuggingFaceModel(nn.Linear(1, 1))
    without = Model("dict")
    without.can_generate = lambda: False  # type: ignore[assignment]
    with pytest.raises(ValueError, match="cannot generate"):
        HuggingFaceModel(without).generate(texts()["input_ids"])
