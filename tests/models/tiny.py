"""Models of transformers that are tiny, their batches and a tokenizer, all without a download."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VOCABULARY = 24
# fmt: off
WORDS = [
    "the", "a", "cat", "dog", "sat", "saw", "on", "mat", "ran", "far", "away", "and", "big", "small", "red", "blue",
    "old", "new", "tree", "house",
]
# fmt: on
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 32,
}  # fmt: skip
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _make(name: str, config: Any, seed: int) -> Any:
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(transformers, name)(config)


def bert(task: str = "ForMaskedLM", seed: int = 1, dropout: bool = False, **more: Any) -> Any:
    from transformers import BertConfig

    return _make(f"Bert{task}", BertConfig(**SIZES, **({} if dropout else NO_DROPOUT), **more), seed)


def gpt2(seed: int = 1, dropout: bool = False, task: str = "LMHeadModel", **more: Any) -> Any:
    from transformers import GPT2Config

    rate = 0.1 if dropout else 0.0
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": VOCABULARY}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    rates = {"resid_pdrop": rate, "embd_pdrop": rate, "attn_pdrop": rate}
    return _make(f"GPT2{task}", GPT2Config(**{**sizes, **tokens, **rates, **more}), seed)


def llama(seed: int = 1, **more: Any) -> Any:
    from transformers import LlamaConfig

    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 2}
    return _make("LlamaForCausalLM", LlamaConfig(**{**SIZES, "num_key_value_heads": 1, **tokens, **more}), seed)


def vit(seed: int = 1) -> Any:
    from transformers import ViTConfig

    sizes = {name: SIZES[name] for name in list(SIZES)[:4]}
    return _make("ViTForImageClassification", ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3), seed)


def t5(seed: int = 1) -> Any:
    from transformers import T5Config

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": VOCABULARY}
    return _make("T5ForConditionalGeneration", T5Config(**sizes, dropout_rate=0.0, decoder_start_token_id=0), seed)


def texts(lengths: list[int] = [5, 8, 2, 7], width: int = 8, seed: int = 0) -> dict[str, Tensor]:  # noqa: B006
    """Sequences of several lengths, padded on the right, with labels for all tokens but the padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, VOCABULARY, (len(lengths), width), generator=generator)
    mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long()
    ids = torch.where(mask.bool(), ids, 0)
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, -100)}


def sorted_texts(size: int = 4, classes: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """Sequences with a class each."""
    generator = torch.Generator().manual_seed(seed)
    batch = texts([8] * size, seed=seed)
    return {**batch, "labels": torch.randint(classes, (size,), generator=generator)}


def tokenizer(pad: bool = True, more: int = 0) -> Any:
    """Knows the words, four special tokens, and further words."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = ["<eos>", "<unk>", "<pad>", "<mask>", *WORDS, *(f"word{n}" for n in range(more))]
    inner = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    names = {"pad_token": "<pad>"} if pad else {}
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", unk_token="<unk>", **names)
