"""GPT-2 causal language model.

Paper: Language Models are Unsupervised Multitask Learners, Radford et al. 2019,
https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from composer.models._metrics import metrics_on_cpu
from composer.models._transformers_builder import build_transformers_model
from composer.models.huggingface import HuggingFaceModel

if TYPE_CHECKING:
    from torchmetrics import Metric

__all__ = ["create_gpt2"]


def create_gpt2(
    use_pretrained: bool = False,
    pretrained_model_name: str | None = None,
    model_config: Mapping[str, Any] | None = None,
    tokenizer_name: str | None = None,
    gradient_checkpointing: bool = False,
) -> HuggingFaceModel:
    """Build a GPT-2 language model, with the metrics ``LanguageCrossEntropy`` and ``LanguagePerplexity``.

    Batches have ``"input_ids"`` (B, S), ``"attention_mask"`` and ``"labels"``, the same tokens with -100 for padding,
    as from ``DataCollatorForLanguageModeling(mlm=False)``.

    Args:
        use_pretrained: Whether to load pretrained weights.
        pretrained_model_name: Name on the hub or folder of the model; None for ``"gpt2"``. Without ``use_pretrained``,
            only the configuration is loaded from it, and None downloads nothing.
        model_config: Values that override the configuration, such as ``{"n_layer": 6}``.
        tokenizer_name: Name or folder of a tokenizer to save with the model; None for none.
        gradient_checkpointing: Whether to enable activation checkpointing, which saves memory.

    Raises:
        MissingConditionalImportError: The package transformers is not installed.

    >>> model = create_gpt2(model_config={"vocab_size": 50, "n_embd": 8, "n_layer": 1, "n_head": 2})
    >>> sorted(model.get_metrics()), model.shift_labels
    (['LanguageCrossEntropy', 'LanguagePerplexity'], True)

    Paper: https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
    """
    from composer.metrics.language import LanguageCrossEntropy, LanguagePerplexity

    model, tokenizer = build_transformers_model(
        "AutoModelForCausalLM",
        "GPT2Config",
        "gpt2",
        use_pretrained=use_pretrained,
        name=pretrained_model_name,
        config=model_config,
        tokenizer_name=tokenizer_name,
        gradient_checkpointing=gradient_checkpointing,
    )
    with metrics_on_cpu():
        metrics: list[Metric] = [LanguageCrossEntropy(), LanguagePerplexity()]
    return HuggingFaceModel(model, tokenizer, use_logits=True, metrics=metrics)
