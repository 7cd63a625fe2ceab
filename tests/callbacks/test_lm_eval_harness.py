"""LMEvalHarness: the scores are those of the harness alone, on several ranks too, and training is unaffected."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from composer import ComposerModel
from composer._lazy import MissingConditionalImportError
from composer.algorithms import EMA
from composer.callbacks import LMEvalHarness
from composer.loggers import InMemoryLogger
from composer.models import HuggingFaceModel
from tests.callbacks.cases import Case, run_with
from tests.common import At, weights
from tests.models import tiny

QUESTIONS = [
    {"text": "the cat sat on", "choices": ["the mat", "a tree", "far away"], "label": 0},
    {"text": "a dog ran", "choices": ["far away", "the house", "red"], "label": 0},
    {"text": "the old tree", "choices": ["sat", "ran", "saw"], "label": 2},
    {"text": "big and", "choices": ["small", "blue", "new house"], "label": 0},
    {"text": "a small cat saw the", "choices": ["dog", "mat", "tree"], "label": 1},
]


def write_tasks(folder: Path) -> Path:
    """Write a task of choices, one of perplexity and one of generation, whose data are local files."""
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    common = f"""
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
  cache_dir: {folder / "cache"}
test_split: test
"""
    choices = """
task: tiny_choices
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: label
metric_list:
  - metric: acc
  - metric: acc_norm
"""
    texts = """
task: tiny_texts
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - metric: word_perplexity
  - metric: bits_per_byte
"""
    answers = """
task: tiny_answers
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{choices[label]}}"
generation_kwargs:
  until: ["house"]
  max_gen_toks: 4
metric_list:
  - metric: exact_match
"""
    for name, task in (("choices", choices), ("texts", texts), ("answers", answers)):
        (folder / f"{name}.yaml").write_text(task.lstrip() + common.lstrip())
    return folder


TASKS = ["tiny_choices", "tiny_texts", "tiny_answers"]


def writer() -> HuggingFaceModel:
    return HuggingFaceModel(tiny.gpt2(dropout=True), tiny.tokenizer(), use_logits=True)


def text_batches(number: int = 4) -> list[Any]:
    return [tiny.texts(seed=seed) for seed in range(number)]


def harness_of(folder: Path, tasks: Any = TASKS, interval: Any = "2ba", **arguments: Any) -> LMEvalHarness:
    if folder.is_dir():
        write_tasks(folder)
    # Without an index of all tasks of the package, which takes long.
    return LMEvalHarness(tasks, interval, include_path=str(folder), include_defaults=False, **arguments)


class Plain(ComposerModel):
    """A model of a user's own, whose batches are pairs (inputs, targets)."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(4)
            self.embedding = nn.Embedding(tiny.VOCABULARY, 8)
            self.head = nn.Linear(8, tiny.VOCABULARY)

    def forward(self, batch):
        return self.head(self.embedding(batch[0]).cumsum(1).tanh())

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs.flatten(0, 1), batch[1].flatten())


class Words:
    """A tokenizer of a user's own."""

    eos_token_id = 0

    def encode(self, text: str) -> list[int]:
        return [4 + tiny.WORDS.index(word) for word in text.split()]

    def decode(self, tokens: list[int]) -> str:
        return " ".join(tiny.WORDS[token - 4] for token in tokens)


def pairs() -> list[Any]:
    return [(ids[:, :-1], ids[:, 1:]) for ids in (batch["input_ids"] for batch in text_batches())]


def plain_harness(folder: Path, interval: str = "99ba") -> LMEvalHarness:
    arguments = {"tokenizer": Words(), "max_length": 16, "create_batch": lambda ids: (ids, None)}
    return harness_of(folder, ["tiny_choices"], interval, **arguments)


CASE = Case(
    make=lambda folder: plain_harness(folder, "2ba"),
    logs=("metrics/tiny_choices/acc", "metrics/tiny_choices/acc_norm"),
    model=Plain,
    batches=pairs,
)


def scores_of(model: Any, folder: Path, tasks: Any = TASKS, **arguments: Any) -> dict[str, dict[str, float]]:
    """The scores of the harness alone, for the transformers model."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    model.eval()
    lm = HFLM(pretrained=model, tokenizer=tiny.tokenizer(), batch_size=2, max_length=32)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    with mock.patch("lm_eval.evaluator.add_env_info"):  # starts processes
        found = lm_eval.simple_evaluate(lm, tasks=list(tasks), task_manager=manager, **arguments)
    return {
        task: {name.removesuffix(",none"): value for name, value in scores.items() if "," in name}
        for task, scores in found["results"].items()
    }


def log_of(folder: Path, model: Any = None, callback: LMEvalHarness | None = None, **arguments: Any) -> InMemoryLogger:
    model = writer() if model is None else model
    run = run_with(callback or harness_of(folder), model=model, data=text_batches(), **arguments)
    run.trainer.fit()
    run.trainer.close()
    return run.log


def last(log: InMemoryLogger) -> dict[str, float]:
    return {name.removeprefix("metrics/"): values[-1][1] for name, values in log.data.items() if "tiny_" in name}


def flat(scores: dict[str, dict[str, float]]) -> dict[str, float]:
    return {f"{task}/{name}": value for task, found in scores.items() for name, value in found.items()}


def numbers(scores: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if not isinstance(value, str)}


# ------------------------------------------------------------------------------------------------ the harness alone


@pytest.mark.parametrize("make", [tiny.gpt2, tiny.llama], ids=["gpt2", "llama"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_scores_are_those_of_the_harness_alone(make, batch_size, tmp_path) -> None:
    model = HuggingFaceModel(make(), tiny.tokenizer())
    callback = harness_of(tmp_path, interval="3ba", batch_size=batch_size)
    found = last(log_of(tmp_path, model, callback))
    assert flat(callback.results) == found
    expected = numbers(flat(scores_of(model.model, tmp_path, bootstrap_iters=0)))
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, rel=1e-5)
    assert {"tiny_choices/acc", "tiny_texts/word_perplexity", "tiny_answers/exact_match"} <= found.keys()
    assert math.isfinite(found["tiny_texts/word_perplexity"])


@pytest.mark.parametrize("arguments", [{"num_fewshot": 2}, {"limit": 3}, {"bootstrap_iters": 100}], ids=str)
def test_arguments_of_the_harness_have_its_effect(arguments, tmp_path) -> None:
    model = writer()
    callback = harness_of(tmp_path, ["tiny_choices"], "99ba", **arguments)
    found = last(log_of(tmp_path, model, callback))
    expected = flat(scores_of(model.model, tmp_path, ["tiny_choices"], **{"bootstrap_iters": 0, **arguments}))
    assert found == pytest.approx(numbers(expected), rel=1e-5)
    assert ("tiny_choices/acc_stderr" in found) == ("bootstrap_iters" in arguments)


def test_long_texts_are_scored_in_windows_and_long_contexts_lose_their_beginning(tmp_path) -> None:
    """The maximum length is that of the model unless given."""
    rows = [{**row, "text": " ".join([row["text"]] * 12)} for row in QUESTIONS]
    write_tasks(tmp_path)
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = writer()
    callback = LMEvalHarness(TASKS, "99ba", include_path=str(tmp_path), include_defaults=False)
    found = last(log_of(tmp_path, model, callback))
    assert found == pytest.approx(numbers(flat(scores_of(model.model, tmp_path, bootstrap_iters=0))), rel=1e-5)


def test_a_custom_model_and_tokenizer(tmp_path) -> None:
    """The log-likelihoods are sums over the tokens of a choice."""
    model = Plain()
    callback = plain_harness(tmp_path)
    run = run_with(callback, model=model, data=pairs())
    run.trainer.fit()
    right = 0
    for row in QUESTIONS:
        sums = []
        for choice in row["choices"]:
            context, ids = Words().encode(row["text"]), Words().encode(f"{row['text']} {choice}")
            with torch.no_grad():
                log_probabilities = model((torch.tensor([ids[:-1]]), None))[0].log_softmax(-1)
            sums.append(sum(float(log_probabilities[n - 1, ids[n]]) for n in range(len(context), len(ids))))
        right += sums.index(max(sums)) == row["label"]
    assert callback.results["tiny_choices"]["acc"] == right / len(QUESTIONS)


# -------------------------------------------------------------------------------------------------------- in training


@pytest.mark.parametrize(
    ("interval", "duration", "steps"),
    [
        ("2ba", "2ep", [2, 4, 6, 8]),
        ("3ba", "8ba", [3, 6, 8]),
        (1, "2ep", [4, 8]),
        ("1ep", "8ba", [4, 8]),
        ("0ba", 1, []),
    ],
)
def test_evaluates_when_an_evaluation_would(interval, duration, steps, tmp_path, monkeypatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(
        LMEvalHarness, "evaluate", lambda self, state, logger: found.append(state.timestamp.batch.value)
    )
    log_of(tmp_path, callback=harness_of(tmp_path, interval=interval), max_duration=duration)
    assert found == steps


def test_evaluates_the_averaged_weights_and_restores_the_trained_ones(tmp_path) -> None:
    """With weights that EMA has averaged, the scores are those of the averages."""
    model = writer()
    ema = EMA(half_life="4ba")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    callback = harness_of(tmp_path, interval="4ba")
    run = run_with(callback, model=model, data=text_batches(), algorithms=ema, optimizers=optimizer)
    run.trainer.fit()
    trained = weights(run.trainer)
    found = last(run.log)
    plain = numbers(flat(scores_of(model.model, tmp_path, bootstrap_iters=0)))
    ema.get_ema_model(model)
    assert not torch.equal(trained, weights(run.trainer))
    averaged = numbers(flat(scores_of(model.model, tmp_path, bootstrap_iters=0)))
    assert found == pytest.approx(averaged, rel=1e-5)
    assert found != pytest.approx(plain, rel=1e-3)


def test_training_is_unaffected_bit_for_bit(tmp_path) -> None:
    """Dropout, the modes of modules, random numbers and resuming: as without the callback."""

    def trained(watching: list[Any], **arguments: Any) -> tuple[torch.Tensor, list[Any]]:
        model = writer()
        model.model.transformer.h[0].eval()  # a module that the user keeps in evaluation mode
        modes = At("batch_start", lambda state: ([m.training for m in state.model.modules()], torch.get_rng_state()))
        run = run_with(*watching, modes, model=model, data=text_batches(), max_duration="8ba", **arguments)
        run.trainer.fit()
        run.trainer.close()
        return weights(run.trainer), [(mode, state.tolist()) for mode, state in modes.found]

    plain = trained([])
    watched = trained([harness_of(tmp_path, interval="3ba")], save_folder=str(tmp_path), save_interval="3ba")
    resumed = trained([harness_of(tmp_path, interval="3ba")], load_path=str(tmp_path / "ep0-ba3-rank0.pt"))
    assert plain[1] == watched[1]
    assert watched[1][3:] == resumed[1]
    assert torch.equal(plain[0], watched[0])
    assert torch.equal(plain[0], resumed[0])


def test_time_of_an_evaluation_is_not_training_time(tmp_path) -> None:
    times = At("fit_end", lambda state: (state.timestamp.total_wct.total_seconds(), state.clock.seconds()))
    run = run_with(harness_of(tmp_path, interval="1ba"), times, model=writer(), data=text_batches())
    run.trainer.fit()
    [(training, seconds)] = times.found
    from composer.ledger.category import Category

    assert seconds[Category.EVALUATION] > 4 * training


# ------------------------------------------------------------------------------------------------------------ errors


def test_a_missing_package_names_the_extra(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(MissingConditionalImportError, match=r"composer-torch\[lm-eval\]"):
        log_of(tmp_path)


def test_a_mistyped_task_is_an_error_before_training(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"tasks has 'tiny_choice'.*Did you mean 'tiny_choices'\?"):
        log_of(tmp_path, callback=harness_of(tmp_path, ["tiny_texts", "tiny_choice"]))


def test_tasks_that_cannot_be_done_are_errors_before_training(tmp_path) -> None:
    callback = harness_of(tmp_path, tokenizer=Words(), max_length=16)
    with pytest.raises(ValueError, match=r"The task 'tiny_answers' generates text, .* got Plain"):
        log_of(tmp_path, Plain(), callback)
    with pytest.raises(ValueError, match="include_path must be a folder"):
        log_of(tmp_path, callback=LMEvalHarness("tiny_choices", include_path=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tasks": []}, ValueError, "tasks is empty"),
        ({"tasks": ""}, ValueError, "tasks has the empty entry ''; pass a name such as"),
        ({"tasks": ["a", " "]}, ValueError, "tasks has the empty entry ' '"),
        ({"tasks": {}}, ValueError, "tasks has the empty entry {}"),
        ({"tasks": None}, TypeError, "tasks must be a name.*None"),
        ({"tasks": "a", "interval": -1}, ValueError, "interval=-1 is negative"),
        ({"tasks": "a", "limit": 1.5}, ValueError, "limit=1.5 is neither"),
        ({"tasks": ["a", 3]}, TypeError, "tasks must be names"),
        ({"tasks": "a", "batch_size": 0}, ValueError, "batch_size"),
        ({"tasks": "a", "max_length": 0}, ValueError, "max_length"),
        ({"tasks": "a", "interval": "never"}, ValueError, "interval='never'"),
        ({"tasks": "a", "num_fewshot": -1}, ValueError, "num_fewshot"),
        ({"tasks": "a", "limit": 0}, ValueError, "limit"),
        ({"tasks": "a", "bootstrap_iters": -1}, ValueError, "bootstrap_iters"),
        ({"tasks": "a", "gen_kwargs": "max_gen_toks=3"}, TypeError, "gen_kwargs must be a mapping"),
        ({"tasks": "a", "create_batch": 3}, TypeError, "create_batch must be a function, but got 3"),
        ({"tasks": "a", "device": "cpu"}, TypeError, "device= cannot be passed on"),
    ],
)
def test_refuses_invalid_arguments(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        LMEvalHarness(**arguments)


@pytest.mark.parametrize(
    ("make", "arguments", "error", "message"),
    [
        (writer, {"num_few_shot": 2}, TypeError, r"num_few_shot= is not an argument .* Did you mean 'num_fewshot'\?"),
        (lambda: HuggingFaceModel(tiny.gpt2()), {}, ValueError, "requires a tokenizer; pass"),
        (writer, {"tokenizer": object()}, ValueError, "tokenizer with encode; object has none"),
        (lambda: HuggingFaceModel(tiny.t5(), tiny.tokenizer()), {}, ValueError, "decoder-only .* got T5"),
        (Plain, {"tokenizer": Words()}, ValueError, "max_length is required"),
        (writer, {"max_length": 9999}, ValueError, r"max_length=9999 exceeds the \d+ positions of HuggingFaceModel"),
    ],
)
def test_refuses_a_model_that_it_cannot_evaluate(make, arguments, error, message, tmp_path) -> None:
    with pytest.raises(error, match=message):
        run_with(harness_of(tmp_path, **arguments), model=make(), data=text_batches())


def test_outputs_that_are_no_logits_are_an_error(tmp_path) -> None:
    callback = plain_harness(tmp_path)
    callback.create_batch = lambda ids: (ids[:, :1], None)
    run = run_with(callback, model=Plain(), data=pairs())
    with pytest.raises(ValueError, match=r"requires logits of shape \(.*; Plain.eval_forward returned a tensor"):
        run.trainer.fit()
    run.trainer.close()
