"""Compare packing with padding: useful tokens a second of training on texts of skewed length, and the cost of both."""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from benchmarks import environment
from benchmarks.report import Goal, Report, spread

VOCABULARY, LENGTH, BATCH, STEPS = 4096, 256, 16, 8
PADDING, SORTED, PACKING = "padding", "padding, texts of similar length together", "packing"
# Batches whose texts are sorted by length, as "group_by_length" of other libraries does.
POOL = 8
NUMBERS = (32, 128, 512)

Batch = dict[str, Tensor]


def documents() -> list[Tensor]:
    """Return the docstrings of Python's standard library as tokens, in random order; longer ones are cut."""
    texts: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                texts += [found] if (found := ast.get_docstring(node)) else []
    words = [re.findall(r"\w+|[^\w\s]", text)[:LENGTH] for text in texts]
    common = Counter(word for text in words for word in text).most_common(VOCABULARY - 1)
    known = {word: number for number, (word, _) in enumerate(common, start=1)}
    tokens = [torch.tensor([known.get(word, 0) for word in text]) for text in words if len(text) > 1]
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(0)).tolist()
    return [tokens[number] for number in order]


def by_length(texts: Sequence[Tensor]) -> list[Tensor]:
    """Return texts in the order of their lengths within each pool of batches.

    Args:
        texts: The texts.
    """
    size = POOL * BATCH
    return [text for first in range(0, len(texts), size) for text in sorted(texts[first : first + size], key=len)]


def padded(texts: Sequence[Tensor]) -> Batch:
    """Return texts as a padded batch, with the mask and the labels of a language model.

    Args:
        texts: The texts.
    """
    ids = pad_sequence(list(texts), batch_first=True)
    mask = torch.arange(ids.shape[1]) < torch.tensor([[len(text)] for text in texts])
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)}


def packed(texts: Sequence[Tensor]) -> Batch:
    """Return the same texts packed.

    Args:
        texts: The texts.
    """
    from composer.algorithms import SequencePacking

    return SequencePacking(LENGTH, keep=["input_ids", "labels", "position_ids"])(texts)


CONTENDERS: dict[str, Callable[[Sequence[Tensor]], Batch]] = {PADDING: padded, SORTED: padded, PACKING: packed}


class Training:
    """A trainer that goes on from call to call, over the same texts as the others.

    Args:
        name: How texts become batches, of :data:`CONTENDERS`.
        texts: The texts.
    """

    def __init__(self, name: str, texts: Sequence[Tensor]) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        from composer import Trainer
        from composer.models import HuggingFaceModel

        self.useful = self.computed = 0
        self._collate = CONTENDERS[name]
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=LENGTH,
            attn_implementation="sdpa",
        )
        model = HuggingFaceModel(LlamaForCausalLM(config))
        ordered = by_length(texts) if name == SORTED else list(texts)
        self._trainer = Trainer(
            model=model,
            train_dataloader=DataLoader(ordered, BATCH, collate_fn=self._collated, drop_last=True),
            optimizers=torch.optim.AdamW(model.parameters(), lr=1e-3),
            max_duration="0ba",
            progress_bar=False,
        )

    def _collated(self, texts: Sequence[Tensor]) -> Batch:
        batch = self._collate(texts)
        self.useful += sum(len(text) for text in texts)
        self.computed += batch["input_ids"].numel()
        return batch

    def train(self) -> float:
        """Train some steps; return useful tokens a CPU second, with the time to make batches."""
        before, begin = self.useful, time.process_time()
        self._trainer.fit(duration=f"{STEPS}ba")
        return (self.useful - before) / (time.process_time() - begin)


def collation(texts: Sequence[Tensor], rounds: int) -> Iterator[tuple[int, list[float]]]:
    """Yield numbers of texts, and how many times the CPU time of padding packing them takes, for each round.

    Args:
        texts: The texts.
        rounds: Number of times that each is timed.
    """
    for number in NUMBERS:
        some, repeats = texts[:number], max(1, 2048 // number)
        ratios: list[float] = []
        for _ in range(rounds):
            times: list[float] = []
            for collate in (padded, packed):
                begin = time.process_time()
                for _ in range(repeats):
                    collate(some)
                times.append(time.process_time() - begin)
            ratios.append(times[1] / times[0])
        yield number, ratios


def measure(rounds: int = 15) -> Report:
    """Compare training on packed and on padded batches of the same texts.

    Args:
        rounds: Number of times that each is timed.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _report(documents(), rounds)
    finally:
        torch.set_num_threads(threads)


def _report(texts: Sequence[Tensor], rounds: int) -> Report:
    trainings = {name: Training(name, texts) for name in CONTENDERS}
    samples: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for training in trainings.values():
        training.train()
    for number in range(rounds):
        for name in list(CONTENDERS)[:: 1 if number % 2 else -1]:
            samples[name].append(trainings[name].train())
    rows: list[list[Any]] = []
    for name, values in samples.items():
        # In a round, all train on the same texts but for the order.
        ratios = [value / base for value, base in zip(values, samples[PADDING], strict=True)]
        empty = 1 - trainings[name].useful / trainings[name].computed
        rows.append([name, statistics.median(values), spread(values), statistics.median(ratios), empty * 100])
    goals = [Goal("time for a useful token, of padding's", 1 / rows[-1][3], round(1 / 1.85, 3))]
    for number, ratios in collation(texts, rounds):
        goals.append(Goal(f"packing {number} texts, of padding them", statistics.median(ratios), 1.5, "times"))
        samples[f"packing {number} texts, of padding them"] = ratios
    lengths = sorted(len(text) for text in texts)
    notes = [
        f"The {len(texts)} docstrings of Python's standard library as words, in random order: the median has "
        f"{lengths[len(lengths) // 2]} tokens, a tenth has more than {lengths[len(lengths) * 9 // 10]}, and those of "
        f"more than {LENGTH} are cut. Batches of {BATCH} texts, padded to the longest of them, or packed into rows of "
        f"{LENGTH} tokens. A Llama of 4 layers of width 128 and {VOCABULARY} tokens, AdamW, float32, one thread.",
        f"Useful tokens are those of texts. {rounds} rounds of {STEPS} steps of each, in turn, in one process; CPU "
        f"seconds with the time to make batches; ratios are medians of those of the rounds.",
        f"With texts of similar length together, {POOL} batches are sorted at a time, so that each has texts of one "
        f"length and training does not see them in random order.",
        "Batches have the same texts in the same order when packed and when padded, and the same gradient: documents "
        "of a row do not attend to each other.",
    ]
    columns = ["batches", "useful tokens a second", "spread", "of padding's", "places without a token, %"]
    title = "Packing and padding texts of skewed length"
    return Report("packing", title, columns, rows, goals, notes, samples, environment.describe())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    report = measure(parser.parse_args().rounds)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
