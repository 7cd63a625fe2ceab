"""Train a small character-level GPT on the source code of Python's standard library, and generate text.

Muon optimizes the hidden matrices and AdamW the other parameters, with a warmup-stable-decay (WSD) schedule. The
microbatch size is found automatically: batches that do not fit in memory are split (gradient accumulation).

    python examples/char_gpt.py
    python examples/char_gpt.py --width 768 --layers 12 --length 512 --batch-size 128 --steps 20000 --device gpu
"""

from __future__ import annotations

import argparse
import math
import sysconfig
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from composer import ComposerModel, Evaluator, Trainer
from composer.metrics import LanguageCrossEntropy
from composer.optim import MuonAdamW, WarmupStableDecayScheduler

CHARACTERS = 128  # ASCII


class Block(nn.Module):
    """A transformer block: causal self-attention and an MLP."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        heads = self.query_key_value(self.norms[0](x)).unflatten(-1, (3, self.num_heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        return x + self.network(self.norms[1](x))


class GPT(ComposerModel):
    """Predict the next character, on batches of shape (B, S + 1)."""

    def __init__(self, width: int, num_layers: int, num_heads: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.characters = nn.Embedding(CHARACTERS, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CHARACTERS)
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def logits(self, characters: Tensor) -> Tensor:
        positions = torch.arange(characters.shape[1], device=characters.device)
        return self.head(self.norm(self.blocks(self.characters(characters) + self.positions(positions))))

    def forward(self, batch: Tensor) -> Tensor:
        return self.logits(batch[:, :-1])

    def loss(self, outputs: Tensor, batch: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), batch[:, 1:].flatten())

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        return {} if is_train else {"LanguageCrossEntropy": LanguageCrossEntropy()}

    def update_metric(self, batch: Tensor, outputs: Tensor, metric: Any) -> None:
        metric.update(outputs, batch[:, 1:])

    @torch.no_grad()
    def write(self, start: str, number: int, temperature: float = 0.7) -> str:
        """Generate ``number`` characters that continue a text."""
        self.eval()
        text = torch.tensor([list(start.encode("ascii"))], device=self.head.weight.device)
        for _ in range(number):
            logits = self.logits(text[:, -self.length :])[:, -1].float() / temperature
            text = torch.cat([text, torch.multinomial(logits.softmax(-1), 1)], dim=1)
        return bytes(text[0].tolist()).decode("ascii")


class Windows(Dataset[Tensor]):
    """Windows of ``length + 1`` consecutive characters of a text."""

    def __init__(self, text: Tensor, length: int) -> None:
        self.text, self.length = text, length

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index: int) -> Tensor:
        return self.text[index * self.length : (index + 1) * self.length + 1].long()


def read_text(limit: int) -> Tensor:
    """Return the first ``limit`` characters of the standard library's source code."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = "".join(path.read_text(encoding="utf-8", errors="ignore") for path in files)
    return torch.frombuffer(bytearray(text.encode("ascii", errors="ignore")[:limit]), dtype=torch.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=250, help="optimizer steps (default: 250)")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--length", type=int, default=64, help="context length in characters (default: 64)")
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--lr", type=float, default=8e-3)
    parser.add_argument("--characters", type=int, default=2_000_000, help="size of the text (default: 2,000,000)")
    parser.add_argument("--device", default="cpu", help='"cpu" or "gpu" (default: cpu)')
    args = parser.parse_args()

    text = read_text(args.characters)
    split = len(text) * 9 // 10
    train_set, test_set = Windows(text[:split], args.length), Windows(text[split:], args.length)
    torch.manual_seed(0)
    model = GPT(args.width, args.layers, num_heads=max(args.width // 32, 1), length=args.length)
    test = Evaluator(label="test", dataloader=DataLoader(test_set, batch_size=args.batch_size), subset_num_batches=20)
    with Trainer(
        model=model,
        train_dataloader=DataLoader(train_set, batch_size=args.batch_size, shuffle=True),
        eval_dataloader=test,
        eval_interval="0.5dur",
        max_duration=f"{args.steps}ba",
        optimizers=MuonAdamW(model, lr=args.lr, weight_decay=0.1, readout="head.*"),
        schedulers=WarmupStableDecayScheduler(t_warmup="0.05dur", t_decay="0.3dur"),
        device=args.device,
        device_train_microbatch_size="auto",
        seed=0,
        console_stream="stdout",
    ) as trainer:
        trainer.fit()
        loss = float(trainer.state.eval_metrics["test"]["LanguageCrossEntropy"].compute())
    model.cpu()
    counts = torch.bincount(text[:split].long(), minlength=CHARACTERS) + 1
    unigram = -(counts / counts.sum()).log2()[text[split:].long()].mean().item()
    print(f"\n{model.write('def read', 200)}\n")
    print(f"bits per character: {loss / math.log(2):.2f}; with character frequencies only: {unigram:.2f}")


if __name__ == "__main__":
    main()
