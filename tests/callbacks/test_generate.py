"""Generate: the text of a small language model, the intervals, and that training is unaffected."""

from __future__ import annotations

import inspect
import json
from typing import Any, Union, get_origin, get_type_hints

import pytest
import torch
import torch.nn.functional as F

from composer import ComposerModel
from composer.callbacks import Generate
from composer.core import Event
from tests.callbacks.cases import Case, Run, run_with
from tests.common import At, weights

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "dog", "run", "far", "away"]


def tokenizer(pad: bool = False) -> Any:
    """A tokenizer with a dozen words; pads on the right, if it can."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    special = ["<eos>", "<unk>"] + (["<pad>"] if pad else [])
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    inner = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    names = {"pad_token": "<pad>"} if pad else {}
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", unk_token="<unk>", **names)


class Writer(ComposerModel):
    """A causal language model, wrapped for training."""

    def __init__(self, pad: bool = False) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        torch.manual_seed(1)
        config = GPT2Config(
            vocab_size=20, n_positions=32, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
        )
        self.model = GPT2LMHeadModel(config)
        self.tokenizer = tokenizer(pad)
        self.calls: list[dict[str, Any]] = []

    def forward(self, batch):
        return self.model(input_ids=batch["input_ids"]).logits

    def loss(self, outputs, batch):
        return F.cross_entropy(outputs[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten())

    def generate(self, input_ids, **arguments):
        self.calls.append({"input_ids": input_ids, "training": self.model.training, **arguments})
        arguments.setdefault("pad_token_id", 0)
        return self.model.generate(input_ids=input_ids, **arguments)


def text_batches(number: int = 4) -> list[Any]:
    generator = torch.Generator().manual_seed(2)
    return [{"input_ids": torch.randint(2, 14, (2, 6), generator=generator)} for _ in range(number)]


CASE = Case(
    make=lambda folder: Generate(["the cat", "a dog saw"], "2ba", max_new_tokens=3, do_sample=True),
    logs=("table:generations",),
    model=Writer,
    batches=text_batches,
)


def written(callback: Generate, model: Any = None, data: Any = None, **arguments: Any) -> Run:
    run = run_with(callback, model=Writer() if model is None else model, data=data or text_batches(), **arguments)
    run.trainer.fit()
    return run


def table_of(run: Run) -> list[list[str]]:
    table = json.loads(run.log.tables["generations"])
    assert table["columns"] == ["prompt", "generation"]
    return table["data"]


def test_continues_each_prompt_as_it_would_alone() -> None:
    """Padding has no effect: each text equals that of a model that receives only one prompt."""
    model = Writer()
    prompts = ["the cat sat", "dog", "run far away and saw"]
    run = written(Generate(prompts, "99ba", max_new_tokens=5), model)
    model.eval()
    expected = []
    for prompt in prompts:
        ids = model.tokenizer(prompt, return_tensors="pt")["input_ids"]
        for _ in range(5):
            with torch.no_grad():
                ids = torch.cat([ids, model.model(ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
            if ids[0, -1] == 0:
                break
        new = ids[0, model.tokenizer(prompt, return_tensors="pt")["input_ids"].shape[1] :]
        expected.append([prompt, model.tokenizer.decode(new, skip_special_tokens=True)])
    assert table_of(run) == expected


@pytest.mark.parametrize(
    ("interval", "steps"), [("2ba", [2, 4, 6, 8]), ("3ba", [3, 6, 8]), (1, [4, 8]), ("99ba", [8]), ("0.5dur", [4, 8])]
)
def test_generates_at_the_interval_and_at_the_end(interval, steps, monkeypatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(Generate, "generate", lambda self, state, logger: found.append(state.timestamp.batch.value))
    written(Generate("the cat", interval), max_duration="2ep")
    assert found == steps


def test_batch_size_splits_the_prompts() -> None:
    model = Writer()
    prompts = ["the", "a", "cat", "dog", "mat"]
    parts = written(Generate(prompts, "99ba", batch_size=2, max_new_tokens=2), model)
    assert [len(call["input_ids"]) for call in model.calls] == [2, 2, 1]
    assert table_of(parts) == table_of(written(Generate(prompts, "99ba", max_new_tokens=2)))


@pytest.mark.parametrize("pad", [False, True])
def test_pads_on_the_left_and_restores_the_tokenizer(pad) -> None:
    model = Writer(pad)
    model.tokenizer.padding_side = "right"
    written(Generate(["the cat sat", "dog"], "99ba", max_new_tokens=1), model)
    [call] = model.calls
    padding = 2 if pad else 0
    assert call["input_ids"][1].tolist()[:2] == [padding, padding]
    assert call["attention_mask"].tolist() == [[1, 1, 1], [0, 0, 1]]
    assert not call["training"]
    assert model.model.training
    assert model.tokenizer.padding_side == "right"
    assert (model.tokenizer.pad_token is None) == (not pad)


def test_sampling_differs_only_by_the_model() -> None:
    """The same model generates the same texts again, and the random numbers of training are unchanged."""
    numbers = [At("batch_end", lambda state: torch.rand(1).item()) for _ in range(2)]
    model = Writer()
    texts: list[Any] = []
    callback = Generate(["the cat"], "1ba", max_new_tokens=8, do_sample=True, temperature=3.0)
    keep = At("batch_start", lambda state: None)
    for at, callbacks in zip(numbers, ([callback, keep], [keep]), strict=True):
        still = Writer()
        optimizer = torch.optim.SGD(still.parameters(), lr=0.0)
        run = run_with(*callbacks, at, model=still, data=text_batches(), optimizers=optimizer)
        run.trainer.fit()
        run.trainer.close()
        texts += [call["input_ids"] for call in still.calls]
    assert numbers[0].found == numbers[1].found
    first = written(callback, model)
    first.trainer.close()
    second = written(callback, Writer())
    assert table_of(first) == table_of(second)
    assert torch.equal(weights(first.trainer), weights(second.trainer))


def test_has_no_handlers_in_the_forward_pass() -> None:
    """Otherwise forward and loss could not be compiled together."""
    callback = Generate("the", "1ba")
    assert not callback.__listens__(Event.AFTER_FORWARD)
    assert callback.__listens__(Event.BATCH_CHECKPOINT)


@pytest.mark.parametrize(
    ("missing", "message"), [("generate", "a generate method"), ("tokenizer", "requires a tokenizer")]
)
def test_refuses_a_model_that_cannot_generate(missing, message) -> None:
    model = Writer()
    setattr(model, missing, None)
    with pytest.raises(ValueError, match=message):
        run_with(Generate("the", "1ba"), model=model, data=text_batches())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"prompts": [], "interval": 1}, ValueError, "prompts is empty"),
        ({"prompts": ["a", 3], "interval": 1}, TypeError, "prompts must be strings"),
        ({"prompts": "a", "interval": 1, "batch_size": 0}, ValueError, "batch_size"),
        *(({"prompts": "a", "interval": wrong}, ValueError, "interval must be positive") for wrong in (0, -1, "-1ba")),
        ({"prompts": "a", "interval": "never"}, ValueError, "interval='never'"),
    ],
)
def test_refuses_invalid_arguments(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        Generate(**arguments)


def test_the_annotation_of_prompts_is_a_union():
    """Code that builds callbacks from configurations reads the origin of the type."""
    annotations = inspect.signature(Generate).parameters["prompts"].annotation, get_type_hints(Generate.__init__)
    assert get_origin(annotations[0]) is get_origin(annotations[1]["prompts"]) is Union
