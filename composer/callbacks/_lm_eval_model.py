"""The model in training as a language model of lm-eval: turns its requests into batches of tokens, and back."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from torch import nn

from composer._lazy import import_extra
from composer.callbacks._lm_eval_ranks import GenerateBatch, RankedModel, ScoreBatch, ScoredText

__all__ = ["harness", "language_model", "max_length_of", "num_positions_of"]

_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx", "max_seq_len")
# Tokenizers without a maximum length have this or a larger number.
_UNLIMITED = 10**9
_MAX_NEW_TOKENS = 256
_LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


def harness(module: str = "lm_eval") -> Any:
    """Return a module of the package lm-eval.

    Args:
        module: Its dotted name.

    Raises:
        MissingConditionalImportError: The package is not installed.
    """
    return import_extra(module, "lm-eval", "LMEvalHarness")


def max_length_of(model: Any, tokenizer: Any) -> int | None:
    """Return the maximum number of input tokens of a model, from its configuration or its tokenizer, or None.

    Args:
        model: The model.
        tokenizer: The tokenizer.

    >>> from types import SimpleNamespace
    >>> max_length_of(SimpleNamespace(config=SimpleNamespace(n_positions=32)), None)
    32
    """
    config = getattr(model, "config", None)
    for name in _LENGTHS:
        length = getattr(config, name, None)
        if isinstance(length, int):
            return length
    length = getattr(tokenizer, "model_max_length", None)
    return length if isinstance(length, int) and length < _UNLIMITED else None


def num_positions_of(model: Any) -> int | None:
    """Return how many positions a model can embed, or None if its positions are not learned or it does not say.

    Args:
        model: The model. Its number is that of its ``config`` if it has an embedding of as many positions; other
            models, such as those with rotary embeddings, accept longer sequences.

    >>> from types import SimpleNamespace
    >>> model = nn.Sequential(nn.Embedding(64, 2))
    >>> model.config = SimpleNamespace(n_positions=64)
    >>> num_positions_of(model)
    64
    """
    config = getattr(model, "config", None)
    found = (getattr(config, name, None) for name in ("n_positions", "max_position_embeddings"))
    number = next((number for number in found if isinstance(number, int) and number > 0), None)
    sizes = {module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)}
    # OPT has two more, as an offset.
    return number if number is not None and {number, number + 2} & sizes else None


def language_model(model: RankedModel, tokenizer: Any, max_length: int, batch_size: int) -> Any:
    """Return an ``LM`` of lm-eval that computes with a model on all ranks.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        max_length: Maximum number of input tokens.
        batch_size: Number of texts per forward pass.

    Raises:
        MissingConditionalImportError: The package is not installed.
    """
    # The base class comes with an optional package, so the class exists only after its import.
    base = harness("lm_eval.api.model").TemplateLM
    cls = type("ComposerLM", (_Requests, base), {})
    return cls(model, tokenizer, max_length, batch_size)


class _Requests:
    """The methods that lm-eval requires of a ``TemplateLM``.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        max_length: Maximum number of input tokens.
        batch_size: Number of texts per forward pass.
    """

    AUTO_MODEL_CLASS: Any = None  # read by the base class, to tell encoder-decoder models apart
    backend = "causal"

    def __init__(self, model: RankedModel, tokenizer: Any, max_length: int, batch_size: int) -> None:
        super().__init__()
        self._model, self.tokenizer, self.max_length, self.batch_size = model, tokenizer, max_length, batch_size
        pad = getattr(tokenizer, "pad_token_id", None)
        self._pad: int = self.eot_token_id if pad is None else pad
        parameters = inspect.signature(tokenizer.encode).parameters
        self._adds_special_tokens = "add_special_tokens" in parameters or "kwargs" in parameters

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context."""
        first = getattr(self.tokenizer, "bos_token_id", None)
        return self.eot_token_id if first is None else first

    @property
    def tokenizer_name(self) -> str:
        """Name of the tokenizer."""
        return str(getattr(self.tokenizer, "name_or_path", type(self.tokenizer).__name__)).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Return the tokens of a text.

        Args:
            string: The text.
            add_special_tokens: Whether to add the tokens that begin or end a text; None for the tokenizer's default.
            **kwargs: Not used.
        """
        begin = getattr(self.tokenizer, "bos_token", None) or self.tokenizer.decode([self.eot_token_id])
        if add_special_tokens is None and begin and string.startswith(begin):
            add_special_tokens = False  # a chat template has added them
        accepts = add_special_tokens is not None and self._adds_special_tokens
        options = {"add_special_tokens": add_special_tokens} if accepts else {}
        return list(self.tokenizer.encode(string, **options))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return a chat as the text that the model reads.

        Args:
            chat_history: The messages.
            add_generation_prompt: Whether the beginning of the next answer follows; otherwise the last message is
                continued.
        """
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihoods of texts in nats, in windows of the maximum length.

        Args:
            requests: The texts.
            disable_tqdm: Not used.
        """
        utils = harness("lm_eval.utils")
        windows: list[tuple[int, Any]] = []
        for index, request in enumerate(requests):
            [text] = request.args
            parts = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            windows += [(index, utils.make_disjoint_window(part)) for part in parts]
        sums = [0.0] * len(requests)
        found = self._loglikelihood_tokens([(("", ""), *window) for _, window in windows])
        for (index, _), (value, _) in zip(windows, found, strict=True):
            sums[index] += value
        return sums

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Return log-likelihood and greediness of continuations; contexts that are too long are cut on the left."""
        texts: dict[tuple[int, ...], ScoredText] = {}
        places: list[tuple[tuple[int, ...], int]] = []
        for _, context, continuation in requests:
            if not continuation or len(continuation) > self.max_length:
                raise ValueError(
                    f"A continuation of {len(continuation)} tokens cannot be scored: it must have at least one token "
                    f"and at most max_length={self.max_length}."
                )
            inputs = [*context, *continuation][-(self.max_length + 1) :][:-1]
            text = texts.setdefault(tuple(inputs), ScoredText(inputs, []))
            places.append((tuple(inputs), len(text.continuations)))
            text.continuations.append(continuation)
        # Longest first, so that running out of memory happens at once.
        order = sorted(texts, key=lambda inputs: (-len(inputs), inputs))
        scored = self._model.compute([ScoreBatch([texts[key] for key in keys], self._pad) for keys in self._cut(order)])
        results = dict(zip(order, (result for batch in scored for result in batch), strict=True))
        return [results[key][number] for key, number in places]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the continuations of contexts, up to one of the texts that end them.

        Args:
            requests: The contexts, each with the arguments of its generation.
            disable_tqdm: Not used.
        """
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(index)
        batches: list[GenerateBatch] = []
        order: list[int] = []
        for group in groups.values():
            until, new_tokens, arguments = self._generation(requests[group[0]].args[1])
            arguments["max_new_tokens"] = new_tokens
            room = self.max_length - new_tokens
            contexts = {index: self._context(requests[index].args[0])[-room:] for index in group}
            group.sort(key=lambda index: -len(contexts[index]))
            order += group
            for part in self._cut(group):
                batches.append(GenerateBatch([contexts[index] for index in part], self._pad, until, arguments))
        tokens = [row for batch in self._model.compute(batches) for row in batch]
        texts = {index: self._text(row, requests[index].args[1]) for index, row in zip(order, tokens, strict=True)}
        return [texts[index] for index in range(len(requests))]

    def _context(self, text: str) -> list[int]:
        return self.tok_encode(text) or [self.prefix_token_id]

    def _generation(self, given: dict[str, Any]) -> tuple[list[str], int, dict[str, Any]]:
        """Return the texts that end a continuation, its maximum number of tokens, and arguments of ``generate``."""
        arguments = dict(given)
        until = arguments.pop("until", None) or []
        until = [until] if isinstance(until, str) else list(until)
        lengths = [arguments.pop(name, None) for name in _LENGTH_NAMES]
        new_tokens = int(next((length for length in lengths if length is not None), _MAX_NEW_TOKENS))
        if new_tokens >= self.max_length:
            raise ValueError(
                f"max_gen_toks={new_tokens} of a task leaves no room for its context: the maximum length of the model "
                f"is {self.max_length} tokens. Pass gen_kwargs={{'max_gen_toks': ...}}."
            )
        samples = arguments.setdefault("do_sample", bool(arguments.get("temperature")))
        if not samples:
            arguments.pop("temperature", None)
        end = self.tokenizer.decode([self.eot_token_id])
        return list(dict.fromkeys(text for text in (*until, end) if text)), new_tokens, arguments

    def _text(self, tokens: list[int], given: dict[str, Any]) -> str:
        until, _, _ = self._generation(given)
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        for end in until:
            text = text.split(end, maxsplit=1)[0]
        return text

    def _cut(self, items: Sequence[Any]) -> list[Sequence[Any]]:
        return [items[start : start + self.batch_size] for start in range(0, len(items), self.batch_size)]
