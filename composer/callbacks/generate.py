"""Generate: sample text from a language model at an interval during training, and log it."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Union, cast

import torch
from torch import Tensor

from composer import dist, rng
from composer._numbers import whole_number
from composer.core.callback import Callback
from composer.core.eval_mode import model_eval_mode
from composer.core.event import Event
from composer.core.interval import create_interval_scheduler
from composer.core.time import Time, TimeUnit, ensure_time

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["Generate"]


class Generate(Callback):
    """Lets the model continue prompts at an interval and at the end of training, and logs the generated text.

    Rank 0 logs the table ``generations`` with the columns ``prompt`` and ``generation``, before the loggers handle the
    event; all ranks generate, as sharded models require it. Prompts are padded on the left, with the end-of-sequence
    token if the tokenizer has no padding token. The model is in evaluation mode during generation. Sampling starts
    from the seed of the run each time, so that texts differ only by what the model has learned. The random state is
    restored afterwards, so that training is unaffected.

    Args:
        prompts: The text or texts to continue.
        interval: How often to generate: epochs, or a time.
        batch_size: Number of prompts per batch; None uses one batch for all.
        **generate_kwargs: Arguments of the model's ``generate``, such as ``max_new_tokens=64`` or ``do_sample=True``.

    Raises:
        ValueError: ``prompts`` is empty, or ``interval`` or ``batch_size`` is not positive; when the trainer is
            created, also if the model has no ``generate`` method or no tokenizer.
        TypeError: A prompt is not a string.

    >>> Generate("The meaning of life is", interval="500ba", max_new_tokens=32).prompts
    ['The meaning of life is']
    """

    def __init__(
        self,
        # typing.Union, not a string annotation: code that builds callbacks from configurations reads its origin.
        prompts: Union[str, Sequence[str]],  # noqa: UP007
        interval: int | str | Time,
        batch_size: int | None = None,
        **generate_kwargs: Any,
    ) -> None:
        self.prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        if not self.prompts:
            raise ValueError("prompts is empty; pass at least one text to continue.")
        for prompt in self.prompts:
            if not isinstance(prompt, str):
                raise TypeError(f"prompts must be strings; got {prompt!r}.")
        self.batch_size = len(self.prompts) if batch_size is None else whole_number("batch_size", batch_size, minimum=1)
        self.generate_kwargs = generate_kwargs
        if not ensure_time(interval, TimeUnit.EPOCH, "interval").value > 0:
            raise ValueError(f"interval must be positive, such as '500ba'; got {interval!r}.")
        self.check_interval = create_interval_scheduler(interval)

    def init(self, state: "State", logger: "Logger") -> None:
        """Raise if the model cannot generate text."""
        model = state.model
        if not callable(getattr(model, "generate", None)):
            raise ValueError(
                f"Generate requires a model with a generate method, like HuggingFaceModel; got {type(model).__name__}."
            )
        if getattr(model, "tokenizer", None) is None:
            raise ValueError(f"Generate requires a tokenizer; pass {type(model).__name__}(..., tokenizer=...).")

    def batch_checkpoint(self, state: "State", logger: "Logger") -> None:
        """Generate if due."""
        self._generate_if_due(state, logger, Event.BATCH_CHECKPOINT)

    def epoch_checkpoint(self, state: "State", logger: "Logger") -> None:
        """Generate if due."""
        self._generate_if_due(state, logger, Event.EPOCH_CHECKPOINT)

    def iteration_checkpoint(self, state: "State", logger: "Logger") -> None:
        """Generate if due."""
        self._generate_if_due(state, logger, Event.ITERATION_CHECKPOINT)

    def generate(self, state: "State", logger: "Logger") -> None:
        """Generate and log now.

        Args:
            state: The state of the run.
            logger: Receives the table.
        """
        rows: list[list[str]] = []
        with ExitStack() as stack:
            stack.enter_context(rng.seed_context(state.rank_zero_seed))
            stack.enter_context(model_eval_mode(state.model))
            stack.enter_context(torch.no_grad())
            stack.enter_context(_padding_left(cast(Any, state.model).tokenizer))
            stack.enter_context(state.precision_context())
            for start in range(0, len(self.prompts), self.batch_size):
                prompts = self.prompts[start : start + self.batch_size]
                rows += [[prompt, text] for prompt, text in zip(prompts, self._continue(state, prompts), strict=True)]
        if dist.get_global_rank() == 0:
            logger.log_table(columns=["prompt", "generation"], rows=rows, name="generations")

    def _generate_if_due(self, state: "State", logger: "Logger", event: Event) -> None:
        if self.check_interval(state, event):
            self.generate(state, logger)

    def _continue(self, state: "State", prompts: list[str]) -> list[str]:
        model: Any = state.model
        inputs = model.tokenizer(prompts, return_tensors="pt", padding=True)
        inputs = state.device.batch_to_device({name: inputs[name] for name in ("input_ids", "attention_mask")})
        # Ranks whose prompts finish early must still take part in the collectives of a sharded model.
        synced = {"synced_gpus": True} if dist.get_world_size() > 1 else {}
        tokens: Tensor = model.generate(**inputs, **(synced | self.generate_kwargs))
        if not _is_encoder_decoder(model):
            tokens = tokens[:, inputs["input_ids"].shape[1] :]
        return model.tokenizer.batch_decode(tokens, skip_special_tokens=True)


def _is_encoder_decoder(model: Any) -> bool:
    """Return whether the model returns the generated text without the prompt."""
    return bool(getattr(getattr(getattr(model, "model", model), "config", None), "is_encoder_decoder", False))


@contextmanager
def _padding_left(tokenizer: Any) -> Generator[None]:
    """Make a tokenizer pad on the left, then restore its settings."""
    side, token = tokenizer.padding_side, tokenizer.pad_token
    tokenizer.padding_side = "left"
    if token is None:
        tokenizer.pad_token = tokenizer.eos_token
    try:
        yield
    finally:
        tokenizer.padding_side = side
        if token is None:
            tokenizer.pad_token = None
