"""LMEvalHarness: evaluate a language model on benchmark tasks of EleutherAI's lm-eval during training."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer import rng
from composer._numbers import positive, whole_number
from composer._text import callable_or_none, did_you_mean
from composer.callbacks._lm_eval_model import harness, language_model, max_length_of, num_positions_of
from composer.callbacks._lm_eval_ranks import RankedModel
from composer.core.callback import Callback
from composer.core.eval_mode import model_eval_mode
from composer.core.event import Event
from composer.core.interval import create_interval_scheduler
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.types import Batch
from composer.export import evaluation_weights
from composer.ledger.category import Category
from composer.parallel.buffer_sync import sync_buffers

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["LMEvalHarness"]

# Arguments of lm_eval.evaluate and simple_evaluate that this callback sets.
_SET_HERE = frozenset(
    ("lm", "task_dict", "model", "model_args", "device", "max_batch_size", "task_manager", "log_samples", "verbosity")
)
# The seeds of the harness.
_PYTHON_SEED, _SEED = 0, 1234


class LMEvalHarness(Callback):
    """Evaluates a language model on tasks of lm-eval (EleutherAI's harness, extra ``lm-eval``) at an interval.

    The tasks are evaluated when an evaluation with the same interval would be: at the interval and at the end of
    training, with the weights that evaluation uses (such as EMA averages), in evaluation mode and in the precision of
    the run. Time and random state are those of an evaluation: training is unaffected, bit for bit.

    Each score is logged as ``metrics/<task>/<metric>``, such as ``metrics/arc_easy/acc_norm``. Scores of a filter have
    its name: ``metrics/gsm8k/exact_match,strict-match``. Groups of tasks are logged like tasks.

    Rank 0 loads the tasks and computes the scores; the forward passes are shared among all ranks, so that scores do
    not depend on the number of ranks. The model may be sharded. Forward passes are not compiled, since the inputs
    differ in length.

    Args:
        tasks: The task or tasks: names of lm-eval, which may have wildcards (``"mmlu_*"``), or configurations as dicts.
        interval: How often to evaluate: epochs, or a time.
        batch_size: Number of texts per forward pass on each rank.
        num_fewshot: Number of examples before each question; None for the setting of each task.
        limit: Number of documents per task; a fraction of them if less than 1; None for all.
        gen_kwargs: Arguments of text generation that replace those of the tasks, such as ``{"max_gen_toks": 64}``.
        include_path: Folder of YAML files with your own tasks.
        include_defaults: Whether to index the tasks that come with the package, which takes some seconds at the start.
        tokenizer: The tokenizer: has ``encode``, ``decode`` and ``eos_token_id``. None for ``model.tokenizer``.
        max_length: Maximum number of input tokens; None for that of the model's ``config`` or of the tokenizer. Longer
            contexts lose their beginning.
        create_batch: Returns the batch for the model from token ids (B, S), if the model does not take a mapping with
            ``"input_ids"`` and ``"attention_mask"``. ``model.eval_forward(batch)`` returns logits (B, S, V), or an
            object or mapping with ``logits``. Position s holds the logits of token s + 1.
        bootstrap_iters: Number of bootstrap samples for standard errors; 0 for no standard errors.
        **evaluate_kwargs: More arguments of ``lm_eval.evaluate``, such as ``apply_chat_template=True``.

    Attributes:
        results: The scores of the last evaluation by task and metric, on all ranks.

    Raises:
        ValueError: An argument is invalid; when the trainer is created, also if there is no tokenizer or maximum
            length, if ``max_length`` exceeds the learned positions of the model, or if the model is an
            encoder-decoder model; when training starts, if a task does not exist, or generates text and the model has
            no ``generate`` method.
        TypeError: ``tasks``, ``create_batch``, a number or ``evaluate_kwargs`` has the wrong type or an unknown name.
        MissingConditionalImportError: When the trainer is created, if the package is not installed.

    >>> harness = LMEvalHarness(["lambada_openai", "arc_easy"], interval="1000ba", limit=100)
    >>> harness.tasks, harness.batch_size
    (['lambada_openai', 'arc_easy'], 8)

    Paper: https://arxiv.org/abs/2405.14782 (Biderman et al. 2024)
    """

    def __init__(
        self,
        tasks: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
        interval: int | str | Time = "1ep",
        batch_size: int = 8,
        *,
        num_fewshot: int | None = None,
        limit: float | None = None,
        gen_kwargs: Mapping[str, Any] | None = None,
        include_path: str | Path | None = None,
        include_defaults: bool = True,
        tokenizer: Any = None,
        max_length: int | None = None,
        create_batch: Callable[[Tensor], Batch] | None = None,
        bootstrap_iters: int = 0,
        **evaluate_kwargs: Any,
    ) -> None:
        if not isinstance(tasks, (str, Mapping, Sequence)):
            raise TypeError(f"tasks must be a name, a configuration as a dict, or a list of them; got {tasks!r}.")
        self.tasks = [tasks] if isinstance(tasks, (str, Mapping)) else list(tasks)
        if not self.tasks:
            raise ValueError("tasks is empty; pass at least one task, such as 'lambada_openai'.")
        for task in self.tasks:
            if not isinstance(task, (str, Mapping)):
                raise TypeError(f"tasks must be names, or configurations as dicts; got {task!r}.")
            if not (task.strip() if isinstance(task, str) else task):
                raise ValueError(f"tasks has the empty entry {task!r}; pass a name such as 'lambada_openai'.")
        self.batch_size = whole_number("batch_size", batch_size, minimum=1)
        self.num_fewshot = None if num_fewshot is None else whole_number("num_fewshot", num_fewshot)
        if gen_kwargs is not None and not isinstance(gen_kwargs, Mapping):
            raise TypeError(f"gen_kwargs must be a mapping such as {{'max_gen_toks': 64}}, but got {gen_kwargs!r}.")
        self.gen_kwargs = dict(gen_kwargs or {})
        self.include_path, self.include_defaults = include_path, include_defaults
        self.tokenizer = tokenizer
        self.max_length = None if max_length is None else whole_number("max_length", max_length, minimum=1)
        self.create_batch = callable_or_none("create_batch", create_batch)
        reserved = sorted(_SET_HERE & evaluate_kwargs.keys())
        if reserved:
            raise TypeError(f"{reserved[0]}= cannot be passed on to lm_eval.evaluate: the callback sets it.")
        if limit is not None and limit > 1 and limit != int(limit):
            raise ValueError(f"limit={limit!r} is neither a fraction of the documents nor a whole number of them.")
        self.evaluate_kwargs = {
            "limit": None if limit is None else positive("limit", limit),
            "bootstrap_iters": whole_number("bootstrap_iters", bootstrap_iters),
            "fewshot_as_multiturn": True,
            **evaluate_kwargs,
        }
        if ensure_time(interval, TimeUnit.EPOCH, "interval").value < 0:
            raise ValueError(f"interval={interval!r} is negative; use 0 to evaluate never, or a time such as '1000ba'.")
        self.check_interval = create_interval_scheduler(interval, checkpoint_events=False, final_events={Event.FIT_END})
        self.results: dict[str, dict[str, float]] = {}
        self._loaded: Any = None

    def init(self, state: State, logger: Logger) -> None:
        """Raise if the model cannot be evaluated, or the package is not installed."""
        known = inspect.signature(harness().evaluate).parameters
        for name in self.evaluate_kwargs:
            if name not in known:
                own = [*inspect.signature(LMEvalHarness).parameters, *known]
                raise TypeError(
                    f"{name}= is not an argument of LMEvalHarness or lm_eval.evaluate.{did_you_mean(name, own)}"
                )
        model: Any = state.model
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            raise ValueError(f"LMEvalHarness requires a decoder-only language model; got {type(model.model).__name__}.")
        length, positions = self._length(state), num_positions_of(model)
        if positions is not None and length > positions:
            raise ValueError(
                f"max_length={length} exceeds the {positions} positions of {type(model).__name__}. "
                f"Pass max_length={positions} or less."
            )

    def fit_start(self, state: State, logger: Logger) -> None:
        """Load the tasks and their data, so that mistakes are errors before training."""
        problem = self._model(state).run(lambda _: self._load() or self._find_problem(state), "load the tasks")
        if problem:
            raise ValueError(problem)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Evaluate if due."""
        self._evaluate_if_due(state, logger, Event.BATCH_END)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Evaluate if due."""
        self._evaluate_if_due(state, logger, Event.EPOCH_END)

    def iteration_end(self, state: State, logger: Logger) -> None:
        """Evaluate if due."""
        self._evaluate_if_due(state, logger, Event.ITERATION_END)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Evaluate if due."""
        self._evaluate_if_due(state, logger, Event.FIT_END)

    def close(self, state: State, logger: Logger) -> None:
        """Release the tasks."""
        self._loaded = None

    def evaluate(self, state: State, logger: Logger) -> dict[str, dict[str, float]]:
        """Evaluate and log now, and return the scores by task and metric; all ranks must call this.

        Args:
            state: The state of the run.
            logger: Receives the scores.

        Raises:
            RuntimeError: The evaluation failed on rank 0, which raises the original error.
        """
        with ExitStack() as stack:
            stack.enter_context(state.clock.during(Category.EVALUATION))
            stack.enter_context(rng.preserve_rng_state())
            stack.enter_context(evaluation_weights(state, logger))
            sync_buffers(state.model)
            stack.enter_context(model_eval_mode(state.model))
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.compiler.set_stance("force_eager"))
            self.results = self._model(state).run(lambda model: self._scores(model, state), "evaluate the tasks")
        logger.log_metrics(
            {f"metrics/{task}/{name}": value for task, scores in self.results.items() for name, value in scores.items()}
        )
        return self.results

    def _evaluate_if_due(self, state: State, logger: Logger, event: Event) -> None:
        if self.check_interval(state, event):
            self.evaluate(state, logger)
            # As for any evaluation, its time is not training time.
            state.train_phase.batch_start_time = time.perf_counter()

    def _model(self, state: State) -> RankedModel:
        return RankedModel(state, self._tokenizer(state), self.create_batch)

    def _scores(self, model: RankedModel, state: State) -> dict[str, dict[str, float]]:
        """Return the scores of all tasks and groups; on rank 0 only."""
        self._load()
        _seed()
        for task in self._loaded["tasks"].values():
            task.set_fewshot_seed(seed=_SEED)
        lm = language_model(model, self._tokenizer(state), self._length(state), self.batch_size)
        results = harness().evaluate(lm=lm, task_dict=self._loaded, log_samples=False, **self.evaluate_kwargs)
        return {task: _numbers(found) for task, found in results["results"].items()}

    def _load(self) -> str:
        """Load the tasks unless they are loaded; return what is wrong with them, or ""; on rank 0 only."""
        if self._loaded is not None:
            return ""
        if self.include_path is not None and not Path(self.include_path).is_dir():
            return f"include_path must be a folder of YAML files, but there is none at {str(self.include_path)!r}."
        manager = harness("lm_eval.tasks").TaskManager(
            include_path=self.include_path, include_defaults=self.include_defaults
        )
        tasks: list[Any] = []
        for task in self.tasks:
            found = manager.match_tasks([task]) if isinstance(task, str) else [dict(task)]
            if not found:
                return (
                    f"tasks has {task!r}, which is no task, group or tag of lm-eval or include_path="
                    f"{str(self.include_path or '')!r}.{did_you_mean(str(task), manager.all_tasks)}"
                )
            tasks += found
        with rng.preserve_rng_state():
            _seed()
            self._loaded = manager.load(tasks)
        for task in self._loaded["tasks"].values():
            self._configure(task)
        return ""

    def _find_problem(self, state: State) -> str:
        """Return why the model cannot do the tasks, or ""; on rank 0 only."""
        if callable(getattr(state.model, "generate", None)):
            return ""
        for name, task in self._loaded["tasks"].items():
            if task.get_config("output_type") == "generate_until":
                return (
                    f"The task {name!r} generates text, which requires a model with a generate method, like "
                    f"HuggingFaceModel; got {type(state.model).__name__}. Remove the task, or define the method."
                )
        return ""

    def _configure(self, task: Any) -> None:
        """Replace settings of a task as the harness does: tasks that are zero-shot by their own setting stay so."""
        if self.gen_kwargs and task.get_config("output_type") == "generate_until":
            task.set_config(key="generation_kwargs", value=self.gen_kwargs, update=True)
        examples = task.get_config("num_fewshot")
        if self.num_fewshot is not None and examples != 0:
            task.set_config(key="num_fewshot", value=self.num_fewshot)
        elif examples is None:
            task.set_config(key="num_fewshot", value=0)

    def _tokenizer(self, state: State) -> Any:
        model = state.model
        tokenizer = getattr(model, "tokenizer", None) if self.tokenizer is None else self.tokenizer
        if tokenizer is None:
            raise ValueError(
                f"LMEvalHarness requires a tokenizer; pass LMEvalHarness(..., tokenizer=...), or "
                f"{type(model).__name__}(..., tokenizer=...)."
            )
        for name in ("encode", "decode", "eos_token_id"):
            if getattr(tokenizer, name, None) is None:
                raise ValueError(
                    f"LMEvalHarness requires a tokenizer with {name}; {type(tokenizer).__name__} has none."
                )
        return tokenizer

    def _length(self, state: State) -> int:
        length = self.max_length or max_length_of(state.model, self._tokenizer(state))
        if length is None:
            raise ValueError(
                "max_length is required: neither the config of the model nor the tokenizer has a maximum length. Pass "
                "LMEvalHarness(..., max_length=...), the number of tokens that the model can take."
            )
        return length


def _seed() -> None:
    """Seed the random generators as the harness does."""
    rng.seed_all(_SEED)
    random.seed(_PYTHON_SEED)


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the numeric scores of a task, without the name of the default filter."""
    numbers = {name: value for name, value in found.items() if isinstance(value, (int, float))}
    return {name.removesuffix(",none"): float(value) for name, value in numbers.items() if "," in name}
