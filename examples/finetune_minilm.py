"""Fine-tune a small BERT to classify sentences from the documentation of Python's standard library by subject.

The sentences come from the installed docstrings, so that only the model is downloaded. Each module is used either for
training or for testing: the test measures whether the model has learned subjects, not the names in a module.

    python examples/finetune_minilm.py                                                # under a minute on one core
    python examples/finetune_minilm.py --model bert-base-uncased --steps 500 --save runs   # on an accelerator

Needs the extra ``nlp``.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

from composer import Trainer
from composer.metrics import CrossEntropy, MicroAccuracy
from composer.models import HuggingFaceModel
from composer.optim import LinearWithWarmupScheduler

# Subject -> modules for training, modules for testing.
SUBJECTS = {
    "numbers": ("_pydecimal fractions random colorsys", "statistics numbers"),
    "files": ("tarfile shutil os tempfile gzip", "zipfile pathlib lzma bz2"),
    "messages": ("email smtplib imaplib", "mailbox poplib"),
    "concurrency": ("asyncio queue", "threading multiprocessing concurrent"),
    "programs": ("ast dis unittest pdb", "inspect traceback doctest"),
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sentences(modules: str, limit: int) -> list[str]:
    """Return unique sentences from the docstrings of modules, at most ``limit`` per module."""
    library = Path(sysconfig.get_path("stdlib"))
    found: list[str] = []
    for module in modules.split():
        of_module: dict[str, None] = {}
        for file in sorted([*library.glob(f"{module}.py"), *library.glob(f"{module}/**/*.py")]):
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8-sig")))
            texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, DOCUMENTED)]
            for paragraph in re.split(r"\n\s*\n", "\n\n".join(texts)):
                for sentence in re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split())):
                    if 6 <= len(sentence.split()) <= 30 and ">>>" not in sentence:
                        of_module[sentence] = None
        found += random.Random(0).sample(list(of_module), min(limit, len(of_module)))
    return found


def load_data(tokenizer: Any, limit: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return tokens and labels of all sentences, for training and for testing."""
    splits: tuple[list[Any], list[Any]] = ([], [])
    for label, split_modules in enumerate(SUBJECTS.values()):
        for split, modules in zip(splits, split_modules, strict=True):
            for text in sentences(modules, limit):
                split.append({**tokenizer(text, truncation=True, max_length=48), "labels": label})
    return splits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2", help="name on the hub, or folder")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--sentences", type=int, default=100, help="maximum number per module")
    parser.add_argument("--save", help="folder of checkpoints")
    given = parser.parse_args()

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    network = AutoModelForSequenceClassification.from_pretrained(given.model, num_labels=len(SUBJECTS))
    train, test = load_data(tokenizer, given.sentences)
    collate = DataCollatorWithPadding(tokenizer)

    def load(rows: Any, **arguments: Any) -> DataLoader[Any]:
        return DataLoader(rows, collate_fn=collate, **arguments)

    metrics = {"accuracy": MicroAccuracy(len(SUBJECTS)), "cross entropy": CrossEntropy()}
    model = HuggingFaceModel(network, tokenizer, use_logits=True, metrics=[], eval_metrics=metrics)
    trainer = Trainer(
        model=model,
        train_dataloader=load(train, batch_size=given.batch_size, shuffle=True),
        eval_dataloader=load(sorted(test, key=lambda one: len(one["input_ids"])), batch_size=64),
        eval_interval=0,
        max_duration=f"{given.steps}ba",
        optimizers=torch.optim.AdamW(network.parameters(), lr=given.lr, weight_decay=0.01),
        schedulers=LinearWithWarmupScheduler(t_warmup="0.1dur", alpha_f=0.0),
        save_folder=given.save,
        seed=0,
        progress_bar=False,
    )
    trainer.fit()
    trainer.eval()
    values = {name: float(metric.compute()) for name, metric in trainer.state.eval_metrics["eval"].items()}
    trainer.close()

    # Baseline: always predict the most frequent training label.
    (most, _), *_ = Counter(one["labels"] for one in train).most_common()
    guess = sum(one["labels"] == most for one in test) / len(test)
    print(f"{len(train)} training sentences, {len(test)} test sentences; subjects: {', '.join(SUBJECTS)}")
    print(
        f"accuracy {values['accuracy']:.1%}, cross entropy {values['cross entropy']:.2f}; "
        f"most frequent label {guess:.1%}"
    )


if __name__ == "__main__":
    main()
