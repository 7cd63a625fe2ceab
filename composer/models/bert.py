"""BERT for masked language modeling and text classification.

Paper: BERT: Pre-training of Deep Bidirectional Transformers, Devlin et al. 2018, https://arxiv.org/abs/1810.04805
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from composer._numbers import whole_number
from composer.models._metrics import metrics_on_cpu
from composer.models._transformers_builder import build_transformers_model
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
    """Build a BERT masked language model, with the metrics ``LanguageCrossEntropy`` and ``MaskedAccuracy``.

    Batches have ``"input_ids"`` (B, S), ``"attention_mask"`` and ``"labels"``, which are -100 for tokens that are not
    masked, as from ``DataCollatorForLanguageModeling``.

    Args:
        use_pretrained: Whether to load pretrained weights.
        pretrained_model_name: Name on the hub or folder of the model; None for ``"bert-base-uncased"``. Without
            ``use_pretrained``, only the configuration is loaded from it, and None downloads nothing.
        model_config: Values that override the configuration, such as ``{"num_hidden_layers": 6}``.
        tokenizer_name: Name or folder of a tokenizer to save with the model; None for none.
        gradient_checkpointing: Whether to enable activation checkpointing, which saves memory.

    Raises:
        MissingConditionalImportError: The package transformers is not installed.

    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> model = create_bert_mlm(model_config={"vocab_size": 50, **sizes})
    >>> sorted(model.get_metrics()), model.model.num_parameters() < 10_000
    (['LanguageCrossEntropy', 'MaskedAccuracy'], True)

    Paper: https://arxiv.org/abs/1810.04805 (Devlin et al. 2018)
    """
    from composer.metrics.language import LanguageCrossEntropy, MaskedAccuracy

    model, tokenizer = build_transformers_model(
        "AutoModelForMaskedLM",
        "BertConfig",
        _NAME,
        use_pretrained=use_pretrained,
        name=pretrained_model_name,
        config=model_config,
        tokenizer_name=tokenizer_name,
        gradient_checkpointing=gradient_checkpointing,
    )
    with metrics_on_cpu():
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
    """Build a BERT for text classification or regression, with a new, randomly initialized head.

    Batches have ``"input_ids"`` (B, S), ``"attention_mask"`` and ``"labels"`` (B). The metrics are
    ``MulticlassAccuracy`` and ``MulticlassMatthewsCorrCoef``, with two classes also ``BinaryF1Score``; for regression
    ``MeanSquaredError`` and ``SpearmanCorrCoef``.

    Args:
        num_labels: Number of classes; 1 for regression with the squared error as the loss.
        use_pretrained: Whether to load pretrained weights.
        pretrained_model_name: Name on the hub or folder of the model; None for ``"bert-base-uncased"``. Without
            ``use_pretrained``, only the configuration is loaded from it, and None downloads nothing.
        model_config: Values that override the configuration, such as ``{"num_hidden_layers": 6}``.
        tokenizer_name: Name or folder of a tokenizer to save with the model; None for none.
        gradient_checkpointing: Whether to enable activation checkpointing, which saves memory.

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
    num_labels = whole_number("num_labels", num_labels, minimum=1)
    model, tokenizer = build_transformers_model(
        "AutoModelForSequenceClassification",
        "BertConfig",
        _NAME,
        use_pretrained=use_pretrained,
        name=pretrained_model_name,
        config={**(model_config or {}), "num_labels": num_labels},
        tokenizer_name=tokenizer_name,
        gradient_checkpointing=gradient_checkpointing,
    )
    with metrics_on_cpu():
        metrics = _metrics(num_labels)
    return HuggingFaceModel(model, tokenizer, use_logits=True, metrics=metrics)


def _metrics(num_labels: int) -> dict[str, Metric]:
    from torchmetrics import MatthewsCorrCoef, MeanSquaredError, SpearmanCorrCoef

    from composer.metrics.classification import MicroAccuracy
    from composer.metrics.language import BinaryF1Score

    if num_labels == 1:
        with warnings.catch_warnings():
            # torchmetrics warns that it stores all predictions, which are only two numbers per text.
            warnings.simplefilter("ignore", UserWarning)
            return {"MeanSquaredError": MeanSquaredError(), "SpearmanCorrCoef": SpearmanCorrCoef()}
    found: dict[str, Metric] = {
        "MulticlassAccuracy": MicroAccuracy(num_labels),
        "MulticlassMatthewsCorrCoef": MatthewsCorrCoef(task="multiclass", num_classes=num_labels),
    }
    return {**found, "BinaryF1Score": BinaryF1Score()} if num_labels == 2 else found
