"""BERT, to be trained on masked tokens, or to sort texts.

Paper: BERT: Pre-training of Deep Bidirectional Transformers, Devlin et al. 2018, https://arxiv.org/abs/1810.04805
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from composer._text import positive
from composer.models._builders import made_by_transformers
from composer.models._metrics import made_with_values
from composer.models.huggingface import HuggingFaceModel

if TYPE_CHECKING:
    from torchmetrics import Metric

__all__ = ["create_bert_classification", "create_bert_mlm"]

_NAME = "bert-base-uncased"


def create_bert_mlm(
    use_pretrained: bool = False,
    pretrained_model_name: str | None = None,
    model_config: Mapping[str, Any] | None = None,
    tokenizer_name: str | None = None,
    gradient_checkpointing: bool = False,
) -> HuggingFaceModel:
    """Return a BERT that predicts masked tokens, with the metrics ``LanguageCrossEntropy`` and ``MaskedAccuracy``.

    Batches have ``"input_ids"`` (B, S), ``"attention_mask"`` and ``"labels"``, -100 where no token was masked, as
    ``DataCollatorForLanguageModeling`` makes them.

    Args:
        use_pretrained: Whether the model begins with trained weights.
        pretrained_model_name: Which, on the hub or a folder; None is ``"bert-base-uncased"``. Without
            ``use_pretrained`` only the configuration is taken from there, and with None nothing has to be fetched.
        model_config: Values of the configuration that are to be others, such as ``{"num_hidden_layers": 6}``.
        tokenizer_name: Name or folder of a tokenizer that is saved with the model; None for none.
        gradient_checkpointing: Whether activations are computed again in the backward pass, which saves memory.

    Raises:
        MissingConditionalImportError: The package transformers is not installed.

    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> model = create_bert_mlm(model_config={"vocab_size": 50, **sizes})
    >>> sorted(model.get_metrics()), model.model.num_parameters() < 10_000
    (['LanguageCrossEntropy', 'MaskedAccuracy'], True)

    Paper: https://arxiv.org/abs/1810.04805 (Devlin et al. 2018)
    """
    from composer.metrics.language import LanguageCrossEntropy, MaskedAccuracy

    model, tokenizer = made_by_transformers(
        "AutoModelForMaskedLM",
        "BertConfig",
        _NAME,
        use_pretrained=use_pretrained,
        name=pretrained_model_name,
        config=model_config,
        tokenizer_name=tokenizer_name,
        recomputes=gradient_checkpointing,
    )
    with made_with_values():
        metrics: list[Metric] = [LanguageCrossEntropy(), MaskedAccuracy()]
    return HuggingFaceModel(model, tokenizer, use_logits=True, metrics=metrics)


def create_bert_classification(
    num_labels: int = 2,
    use_pretrained: bool = False,
    pretrained_model_name: str | None = None,
    model_config: Mapping[str, Any] | None = None,
    tokenizer_name: str | None = None,
    gradient_checkpointing: bool = False,
) -> HuggingFaceModel:
    """Return a BERT that sorts texts, or scores them, with one layer more that begins untrained.

    Batches have ``"input_ids"`` (B, S), ``"attention_mask"`` and ``"labels"`` (B). The metrics are
    ``MulticlassAccuracy`` and ``MulticlassMatthewsCorrCoef``, with two classes also ``BinaryF1Score``; for scores
    ``MeanSquaredError`` and ``SpearmanCorrCoef``.

    Args:
        num_labels: Number of classes; 1 is a score, whose squared error is the loss.
        use_pretrained: Whether the model begins with trained weights.
        pretrained_model_name: Which, on the hub or a folder; None is ``"bert-base-uncased"``. Without
            ``use_pretrained`` only the configuration is taken from there, and with None nothing has to be fetched.
        model_config: Values of the configuration that are to be others, such as ``{"num_hidden_layers": 6}``.
        tokenizer_name: Name or folder of a tokenizer that is saved with the model; None for none.
        gradient_checkpointing: Whether activations are computed again in the backward pass, which saves memory.

    Raises:
        ValueError: ``num_labels`` is not positive.
        MissingConditionalImportError: The package transformers is not installed.

    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> model = create_bert_classification(num_labels=3, model_config={"vocab_size": 50, **sizes})
    >>> batch = {"input_ids": torch.ones(2, 4, dtype=torch.long)}
    >>> model.eval_forward(batch).shape, sorted(model.get_metrics())
    (torch.Size([2, 3]), ['MulticlassAccuracy', 'MulticlassMatthewsCorrCoef'])

    Paper: https://arxiv.org/abs/1810.04805 (Devlin et al. 2018)
    """
    positive("num_labels", num_labels)
    model, tokenizer = made_by_transformers(
        "AutoModelForSequenceClassification",
        "BertConfig",
        _NAME,
        use_pretrained=use_pretrained,
        name=pretrained_model_name,
        config={**(model_config or {}), "num_labels": num_labels},
        tokenizer_name=tokenizer_name,
        recomputes=gradient_checkpointing,
    )
    with made_with_values():
        metrics = _metrics(num_labels)
    return HuggingFaceModel(model, tokenizer, use_logits=True, metrics=metrics)


def _metrics(num_labels: int) -> dict[str, Metric]:
    from torchmetrics import MatthewsCorrCoef, MeanSquaredError, SpearmanCorrCoef

    from composer.metrics.classification import MicroAccuracy
    from composer.metrics.language import BinaryF1Score

    if num_labels == 1:
        with warnings.catch_warnings():
            # It says that it keeps all scores, which are two numbers for a text.
            warnings.simplefilter("ignore", UserWarning)
            return {"MeanSquaredError": MeanSquaredError(), "SpearmanCorrCoef": SpearmanCorrCoef()}
    found: dict[str, Metric] = {
        "MulticlassAccuracy": MicroAccuracy(num_labels),
        "MulticlassMatthewsCorrCoef": MatthewsCorrCoef(task="multiclass", num_classes=num_labels),
    }
    return {**found, "BinaryF1Score": BinaryF1Score()} if num_labels == 2 else found
