"""Pretrain a small BERT with masked language modeling on the source code of Python's standard library.

ALiBi replaces the position embeddings, so that the model handles longer sequences than those of training. Sequence
length warmup (SeqLengthWarmup) saves time and stabilizes the start. Needs the extra ``nlp``.

    python examples/bert_pretraining.py
    python examples/bert_pretraining.py --hidden-size 768 --layers 12 --heads 12 --length 512 --batch-size 256 \\
        --vocabulary 30720 --lr 5e-4 --steps 70000 --device gpu
"""

from __future__ import annotations

import argparse
import re
import sysconfig
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from composer import Evaluator, Trainer
from composer.algorithms import Alibi, GatedLinearUnits, SeqLengthWarmup
from composer.models import create_bert_mlm
from composer.optim import DecoupledAdamW, LinearWithWarmupScheduler

UNKNOWN, MASK = 0, 1  # other token ids are sorted by frequency
MASKED_FRACTION = 0.3


class Rows(Dataset[Tensor]):
    """The token ids of a text, in rows of equal length."""

    def __init__(self, tokens: Tensor, length: int) -> None:
        self.rows = tokens[: len(tokens) // length * length].view(-1, length)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]


def masked(rows: list[Tensor]) -> dict[str, Tensor]:
    """Collate rows into a batch with random tokens masked; the labels of all others are ignored (-100)."""
    ids = torch.stack(rows)
    hidden = torch.rand(ids.shape) < MASKED_FRACTION
    return {
        "input_ids": ids.masked_fill(hidden, MASK),
        "attention_mask": torch.ones_like(ids),
        "labels": ids.masked_fill(~hidden, -100),
    }


def read_tokens(limit: int, vocabulary: int) -> Tensor:
    """Return token ids of words and punctuation, from the first ``limit`` characters of the standard library."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)[:limit]
    tokens = re.findall(r"\w+|[^\w\s]", text)
    ids = {token: index for index, (token, _) in enumerate(Counter(tokens).most_common(vocabulary - 2), start=2)}
    return torch.tensor([ids.get(token, UNKNOWN) for token in tokens])


def sizes(args: argparse.Namespace) -> dict[str, float]:
    """Return the model configuration for the command-line arguments."""
    return {
        "vocab_size": args.vocabulary,
        "hidden_size": args.hidden_size,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "intermediate_size": 4 * args.hidden_size,
        "max_position_embeddings": 2 * args.length,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.8 / args.hidden_size**0.5,  # 0.1 for hidden size 64
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300, help="optimizer steps (default: 300)")
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--length", type=int, default=32, help="tokens per row, after the warmup (default: 32)")
    parser.add_argument("--vocabulary", type=int, default=512, help="vocabulary size (default: 512)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--device", default="cpu", help='"cpu" or "gpu" (default: cpu)')
    args = parser.parse_args()

    tokens = read_tokens(4_000_000, args.vocabulary)
    split = len(tokens) * 9 // 10
    torch.manual_seed(0)
    model = create_bert_mlm(model_config=sizes(args))
    lengths, shortest = (args.length, 2 * args.length), max(args.length // 4, 1)
    tests = [
        Evaluator(
            label=f"rows of {length}",
            dataloader=DataLoader(Rows(tokens[split:], length), batch_size=args.batch_size, collate_fn=masked),
            subset_num_batches=20,
        )
        for length in lengths
    ]
    train_set = Rows(tokens[:split], args.length)
    with Trainer(
        model=model,
        train_dataloader=DataLoader(train_set, batch_size=args.batch_size, shuffle=True, collate_fn=masked),
        eval_dataloader=tests,
        eval_interval="1dur",
        max_duration=f"{args.steps}ba",
        optimizers=DecoupledAdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=1e-5),
        schedulers=LinearWithWarmupScheduler(t_warmup="0.06dur", alpha_f=0.02),
        algorithms=[
            # SeqLengthWarmup changes the sequence length, so ALiBi must not.
            Alibi(max_sequence_length=2 * args.length, train_sequence_length_scaling=1.0),
            SeqLengthWarmup(0.3, min_seq_length=shortest, max_seq_length=args.length, step_size=shortest),
            GatedLinearUnits(),
        ],
        device=args.device,
        seed=0,
        console_stream="stdout",
    ) as trainer:
        trainer.fit()
        values = trainer.state.eval_metrics
        for length in lengths:
            accuracy = float(values[f"rows of {length}"]["MaskedAccuracy"].compute())
            print(f"rows of {length} tokens: {accuracy:.1%} of the masked tokens are right")
    common = tokens[:split].bincount().argmax()
    print(f"always predicting the most common token: {(tokens[split:] == common).double().mean():.1%}")


if __name__ == "__main__":
    main()
