"""Score and generate tokens with the model in training on all ranks; rank 0 sends the batches (broadcast, all-gather).

Rank 0 alone runs the harness; the other ranks wait for its batches. The ranks take turns with the batches, and all run
the same number of forward passes, as sharded models (FSDP) require it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from composer import dist
from composer.checkpoint.on_all_ranks import gather_from_all_ranks, run_on_rank_zero
from composer.core.state import State
from composer.core.types import Batch

__all__ = ["GenerateBatch", "RankedModel", "ScoreBatch", "ScoredText"]

Value = TypeVar("Value")

_WHAT = "evaluate its share of the requests"
# Seconds between messages that keep the other ranks waiting; less than any collective timeout.
_KEEP_ALIVE = 5.0
# Number of forward passes of a rank between two exchanges of results, which also show that all ranks make progress.
_ROUNDS = 64


@dataclass(frozen=True)
class ScoredText:
    """Input tokens, and the continuations to score after them.

    Attributes:
        inputs: Context and continuation without its last token.
        continuations: The continuations; several if they differ only in their last token, as choices do.
    """

    inputs: list[int]
    continuations: list[list[int]]


@dataclass(frozen=True)
class ScoreBatch:
    """Texts to score in one forward pass.

    Attributes:
        texts: The texts.
        pad: Token with which they are padded on the right.
    """

    texts: list[ScoredText]
    pad: int


@dataclass(frozen=True)
class GenerateBatch:
    """Contexts to continue in one call of ``generate``.

    Attributes:
        contexts: Tokens of each context.
        pad: Token with which they are padded on the left.
        until: Texts that end a continuation.
        arguments: Arguments of ``generate``.
    """

    contexts: list[list[int]]
    pad: int
    until: list[str]
    arguments: dict[str, Any]


class RankedModel:
    """The model of a run as the harness uses it: its log-likelihoods and texts, computed by all ranks.

    Args:
        state: The state of the run; its model is in evaluation mode.
        tokenizer: Decodes generated tokens, to find the texts that end them.
        create_batch: Returns the batch for the model from token ids (B, S); None for a mapping with ``"input_ids"``
            and ``"attention_mask"``.
    """

    def __init__(self, state: State, tokenizer: Any, create_batch: Callable[[Tensor], Batch] | None = None) -> None:
        self._state, self._tokenizer, self._create_batch = state, tokenizer, create_batch
        self._lock = threading.Lock()

    def run(self, evaluate: Callable[[RankedModel], Value], what: str) -> Value:
        """Run a function on rank 0 while all ranks compute what it requests; return its result on all ranks.

        Args:
            evaluate: Called with this object, on rank 0 only; its result can be pickled.
            what: What it does, for the error message: "evaluate the tasks".

        Raises:
            RuntimeError: It failed on rank 0, which raises the original error.
        """
        error = None if dist.get_global_rank() == 0 else self._serve()

        def act() -> Value:
            try:
                with self._keeping_alive():
                    return evaluate(self)
            finally:
                dist.broadcast_object_list([None])

        try:
            return run_on_rank_zero(act, what)
        except RuntimeError:
            if error is not None:
                raise error from None
            raise

    def compute(self, batches: Sequence[ScoreBatch | GenerateBatch]) -> list[Any]:
        """Return the results of batches, in order; on rank 0 only.

        Args:
            batches: The batches.

        Returns:
            For each batch a list with an entry for each text: a list of pairs (log-likelihood in nats, whether greedy
            decoding yields the continuation), or the generated tokens.
        """
        results: list[Any] = []
        step = _ROUNDS * self._state.data_shard.size
        for start in range(0, len(batches), step):
            with self._lock:
                dist.broadcast_object_list([batches[start : start + step]])
                results += self._compute(batches[start : start + step])
        return results

    @contextlib.contextmanager
    def _keeping_alive(self) -> Generator[None]:
        """Send empty requests from a thread while rank 0 loads data, which may exceed the collective timeout."""
        if dist.get_world_size() == 1:
            yield
            return
        finished = threading.Event()

        def send() -> None:
            while not finished.wait(_KEEP_ALIVE):
                with self._lock:
                    if not finished.is_set():
                        dist.broadcast_object_list([[]])

        thread = threading.Thread(target=send, name="lm-eval-keep-alive", daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()

    def _serve(self) -> Exception | None:
        """Compute what rank 0 requests, until it has finished; return the error of this rank, if any."""
        failure = None
        while True:
            request: list[Any] = [None]
            dist.broadcast_object_list(request)
            if request[0] is None:
                return failure
            if not request[0]:
                continue  # rank 0 is busy
            try:
                self._compute(request[0])
            except Exception as error:
                failure = error  # rank 0 knows of it, and ends the evaluation

    def _compute(self, batches: Sequence[ScoreBatch | GenerateBatch]) -> list[Any]:
        """Compute batches on all ranks; return the results on rank 0, and None for each batch on others."""
        results: list[Any] = [None] * len(batches)
        for found in gather_from_all_ranks(lambda: self._compute_shard(batches), _WHAT):
            for index, result in found.items():
                results[index] = result
        return results

    def _compute_shard(self, batches: Sequence[ScoreBatch | GenerateBatch]) -> dict[int, Any]:
        """Return the results of this rank's batches by index."""
        shard, found = self._state.data_shard, {}
        for start in range(0, len(batches), shard.size):
            index = start + shard.rank
            # Ranks without a batch of their own repeat the first for the collectives of a sharded model.
            batch = batches[index if index < len(batches) else 0]
            result = self._score(batch) if isinstance(batch, ScoreBatch) else self._generate(batch)
            if index < len(batches):
                found[index] = result
        return found

    def _score(self, batch: ScoreBatch) -> list[list[tuple[float, bool]]]:
        rows = [text.inputs for text in batch.texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [batch.pad] * (longest - len(row)) for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        logits = self._logits(ids, mask)
        sums: list[Tensor] = []
        for row, text in zip(logits, batch.texts, strict=True):
            for continuation in text.continuations:
                scored = row[len(text.inputs) - len(continuation) : len(text.inputs)].float().log_softmax(-1)
                targets = self._state.device.tensor_to_device(torch.tensor(continuation))
                picked = scored.gather(-1, targets[:, None]).sum()
                greedy = (scored.argmax(-1) == targets).all()
                sums.append(torch.stack([picked, greedy.float()]))
        pairs = iter(torch.stack(sums).tolist())  # one transfer from the device
        return [[(value, greedy > 0) for value, greedy in _take(pairs, text)] for text in batch.texts]

    def _logits(self, ids: Tensor, mask: Tensor) -> Tensor:
        model: Any = self._state.model
        if self._create_batch is None:
            batch: Batch = {"input_ids": ids, "attention_mask": mask}
        else:
            batch = self._create_batch(ids)
        batch = self._state.device.batch_to_device(batch)
        with self._state.precision_context():
            outputs = model.eval_forward(batch)
        logits = _logits_of(outputs)
        if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids.shape:
            expected = (
                f"logits of shape ({ids.shape[0]}, {ids.shape[1]}, vocabulary size), one row for each input token"
            )
            raise ValueError(
                f"LMEvalHarness requires {expected}; {type(model).__name__}.eval_forward returned {_describe(logits)}."
            )
        return logits

    def _generate(self, batch: GenerateBatch) -> list[list[int]]:
        model: Any = self._state.model
        longest = max(map(len, batch.contexts))
        ids = torch.tensor([[batch.pad] * (longest - len(row)) + row for row in batch.contexts])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in batch.contexts])
        inputs = self._state.device.batch_to_device({"input_ids": ids, "attention_mask": mask})
        stop = [_StopAtText(self._tokenizer, batch.until, longest)] if batch.until else None
        with self._state.precision_context():
            tokens: Tensor = model.generate(**inputs, pad_token_id=batch.pad, stopping_criteria=stop, **batch.arguments)
        return tokens[:, longest:].tolist()


class _StopAtText:
    """Stopping criterion of ``generate``: the texts after which a continuation ends.

    Args:
        tokenizer: Decodes tokens.
        until: The texts.
        start: Length of the contexts in tokens.
    """

    def __init__(self, tokenizer: Any, until: list[str], start: int) -> None:
        self._tokenizer, self._until, self._start = tokenizer, until, start
        # A token is at least one byte long; a few more, as a text may begin within a token.
        self._window = max(len(text.encode()) for text in until) + 4

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return for each row whether it has ended, (B,)."""
        start = max(self._start, input_ids.shape[1] - self._window)
        texts: list[str] = self._tokenizer.batch_decode(input_ids[:, start:].tolist())
        ended = [any(text in row for text in self._until) for row in texts]
        return torch.tensor(ended, device=input_ids.device)


def _logits_of(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return cast("Mapping[str, Any]", outputs).get("logits")
    return getattr(outputs, "logits", outputs)


def _take(pairs: Any, text: ScoredText) -> list[tuple[float, float]]:
    return [next(pairs) for _ in text.continuations]


def _describe(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"{type(value).__name__}"
