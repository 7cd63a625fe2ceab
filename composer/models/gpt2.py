"""GPT-2, which predicts the next token.

Paper: Language Models are Unsupervised Multitask Learners, Radford et al. 2019,
https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from composer.models._builders import made_by_transformers
from composer.models._metrics import made_with_values
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
    """Return a GPT-2, with the metrics ``LanguageCrossEntropy`` and ``LanguagePerplexity``.

    Batches have ``"input_ids"`` (B, S), ``"attention_mask"`` and ``"labels"``, the same tokens with -100 for padding,
    as ``DataCollatorForLanguageModeling(mlm=False)`` makes them.

    Args:
        use_pretrained: Whether the model begins with trained weights.
        pretrained_model_name: Which, on the hub or a folder; None is ``"gpt2"``. Without ``use_pretrained`` only the
            configuration is taken from there, and with None nothing has to be fetched.
        model_config: Values of the configuration that are to be others, such as ``{"n_layer": 6}``.
        tokenizer_name: Name or folder of a tokenizer that is saved with the model; None for none.
        gradient_checkpointing: Whether activations are computed again in the backward pass, which saves memory.

    Raises:
        MissingConditionalImportError: The package transformers is not installed.

    >>> model = create_gpt2(model_config={"vocab_size": 50, "n_embd": 8, "n_layer": 1, "n_head": 2})
    >>> sorted(model.get_metrics()), model.shift_labels
    (['LanguageCrossEntropy', 'LanguagePerplexity'], True)

    Paper: https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
    """
    from composer.metrics.language import LanguageCrossEntropy, LanguagePerplexity

    model, tokenizer = made_by_transformers(
        "AutoModelForCausalLM",
        "GPT2Config",
        "gpt2",
        use_pretrained=use_pretrained,
        name=pretrained_model_name,
        config=model_config,
        tokenizer_name=tokenizer_name,
        recomputes=gradient_checkpointing,
    )
    with made_with_values():
        metrics: list[Metric] = [LanguageCrossEntropy(), LanguagePerplexity()]
    return HuggingFaceModel(model, tokenizer, use_logits=True, metrics=metrics)
