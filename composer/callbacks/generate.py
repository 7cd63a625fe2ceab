"""Let a language model write something now and then."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Union, cast

import torch
from torch import Tensor, nn

from composer import dist, rng
from composer._text import positive
from composer.core.callback import Callback
from composer.core.event import Event
from composer.core.interval import create_interval_scheduler
from composer.core.time import Time

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["Generate"]


class Generate(Callback):
    """Has the model continue some prompts at an interval and at the end of the training, and logs what it wrote.

    The table ``generations`` with the columns ``prompt`` and ``generation`` is logged by rank 0, before the loggers
    handle the event; all ranks generate, as sharded models need it. Prompts are padded on the left, with the token for
    the end of a sequence where the tokenizer has none for padding. The model is in evaluation mode meanwhile. Sampling
    starts from the seed of the run each time, so that texts differ only by what the model has learnt, and afterwards
    the generators of random numbers are where they were, so that training goes on as if nothing had been sampled.

    Args:
        prompts: What to continue: a text or several.
        interval: How often: epochs, or a time.
        batch_size: Number of prompts at a time; None is all.
        **generate_kwargs: Arguments of the model's ``generate``, such as ``max_new_tokens=64`` or ``do_sample=True``.

    Raises:
        ValueError: There is no prompt, or ``batch_size`` is not positive; when the trainer is made also if the model
            has no ``generate`` method or no tokenizer.
        TypeError: A prompt is no string.

    >>> Generate("The meaning of life is", interval="500ba", max_new_tokens=32).prompts
    ['The meaning of life is']
    """

    def __init__(
        self,
        # A Union by its old name, and no text: code that makes callbacks from configurations asks for its origin.
        prompts: Union[str, Sequence[str]],  # noqa: UP007
        interval: int | str | Time,
        batch_size: int | None = None,
        **generate_kwargs: Any,
    ) -> None:
        self.prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        if not self.prompts:
            raise ValueError("prompts is empty; give at least one text to continue.")
        for prompt in self.prompts:
            if not isinstance(prompt, str):
                raise TypeError(f"prompts must be strings; got {prompt!r}.")
        self.batch_size = len(self.prompts) if batch_size is None else positive("batch_size", batch_size)
        self.generate_kwargs = generate_kwargs
        self.check_interval = create_interval_scheduler(interval)

    def init(self, state: "State", logger: "Logger") -> None:
        """Refuse a model that cannot write."""
        model = state.model
        if not callable(getattr(model, "generate", None)):
            raise ValueError(
                f"Generate needs a model with a generate method, such as HuggingFaceModel; got {type(model).__name__}."
            )
        if getattr(model, "tokenizer", None) is None:
            raise ValueError(f"Generate needs a tokenizer; give {type(model).__name__}(..., tokenizer=...).")

    def batch_checkpoint(self, state: "State", logger: "Logger") -> None:
        """Generate if it is time to."""
        self._generate_if_due(state, logger, Event.BATCH_CHECKPOINT)

    def epoch_checkpoint(self, state: "State", logger: "Logger") -> None:
        """Generate if it is time to."""
        self._generate_if_due(state, logger, Event.EPOCH_CHECKPOINT)

    def iteration_checkpoint(self, state: "State", logger: "Logger") -> None:
        """Generate if it is time to."""
        self._generate_if_due(state, logger, Event.ITERATION_CHECKPOINT)

    def generate(self, state: "State", logger: "Logger") -> None:
        """Generate and log now.

        Args:
            state: The state of the run.
            logger: Takes the table.
        """
        rows: list[list[str]] = []
        with ExitStack() as stack:
            stack.enter_context(rng.seed_context(state.rank_zero_seed))
            stack.enter_context(_evaluating(state.model))
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
        # Ranks whose prompts end early must go on taking part in the collectives of a sharded model.
        together = {"synced_gpus": True} if dist.get_world_size() > 1 else {}
        tokens: Tensor = model.generate(**inputs, **(together | self.generate_kwargs))
        if not _is_encoder_decoder(model):
            tokens = tokens[:, inputs["input_ids"].shape[1] :]
        return model.tokenizer.batch_decode(tokens, skip_special_tokens=True)


def _is_encoder_decoder(model: Any) -> bool:
    """Whether the model returns what it wrote without the prompt."""
    return bool(getattr(getattr(getattr(model, "model", model), "config", None), "is_encoder_decoder", False))


@contextmanager
def _evaluating(model: nn.Module) -> Generator[None]:
    """Put a model into evaluation mode, then each module back into its own."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def _padding_left(tokenizer: Any) -> Generator[None]:
    """Have a tokenizer pad where a text does not go on, then be as it was."""
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
