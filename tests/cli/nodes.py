"""A run started by multiple launchers, observed from outside."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.design import ROOT

# For a machine that is busy with much else; nothing takes so long by itself.
LIMIT = 240.0
BATCHES = 12

# A linear model with one sample for each of two processes, or two for one; a checkpoint after every second batch. While
# there is a file "hold", it waits before the batch that the file names, and waits for others only shortly then. With
# "kill", a rank is killed in the first attempt, and in the second after it damaged the newest checkpoint.
TRAINING = f"""
import contextlib, json, os, pathlib, signal, sys, time
from datetime import timedelta
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from composer import Callback, ComposerModel, Trainer, dist
from composer.dist import _hang_watcher

folder, what = pathlib.Path(sys.argv[1]), sys.argv[2:]
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
_hang_watcher._PATIENCE, _hang_watcher._ANSWER = 1.0, 3.0

class Linear(ComposerModel):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 4)

    def forward(self, batch):
        return self.linear(batch[0])

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs, batch[1])

class Hold(Callback):
    def fit_start(self, state, logger):
        self.tell(state, "start")
        self.tell(state, f"start{{attempt}}")

    def batch_start(self, state, logger):
        batch = int(state.timestamp.batch)
        if self.holds(batch):
            # From now on: when all begin, a busy machine may let one wait for long.
            torch.distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=2))
        self.tell(state, batch)
        while self.holds(batch):
            time.sleep(0.02)
        if "kill" in what and dist.get_global_rank() == 1 and (attempt, batch) in ((0, 5), (1, 9)):
            if attempt == 1:
                os.truncate((folder / "checkpoints" / "latest-rank0.pt").resolve(), 1000)
            os.kill(os.getpid(), signal.SIGKILL)

    def holds(self, batch):
        with contextlib.suppress(FileNotFoundError):
            return int((folder / "hold").read_text()) == batch
        return False

    def fit_end(self, state, logger):
        whole = [getattr(p, "full_tensor", lambda: p)().detach().flatten() for p in state.model.parameters()]
        self.tell(state, "end", samples=int(state.timestamp.sample), weights=torch.cat(whole).tolist())

    def tell(self, state, name, **more):
        told = folder / f"{{name}}-{{dist.get_global_rank()}}of{{dist.get_world_size()}}"
        part = told.with_suffix(f".{{os.getpid()}}")
        part.write_text(json.dumps({{"from": int(state.timestamp.batch), "pid": os.getpid(), **more}}))
        part.rename(told)

generator = torch.Generator().manual_seed(1)
data = TensorDataset(*[torch.randn({2 * BATCHES}, width, generator=generator) for width in (2, 4)])
torch.manual_seed(0)
model = Linear()
fsdp = {{"fsdp": {{"state_dict_type": "sharded"}}}}
with Trainer(
    model=model, train_dataloader=DataLoader(data, batch_size=2 // int(os.environ.get("WORLD_SIZE", 1))),
    max_duration="1ep", optimizers=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5), progress_bar=False,
    device="cpu", callbacks=[Hold()], seed=1, run_name="run",
    parallelism_config=fsdp if "fsdp" in what else None,
    save_folder=str(folder / "checkpoints"), save_interval="2ba", autoresume=True,
) as trainer:
    trainer.fit()
"""


class Node:
    """A launcher of one rank or more.

    Args:
        folder: Where they write.
        arguments: For the launcher.
        what: For the training.
        prefix: A command that runs the launcher.
        environ: Environment variables that are not those of the tests.
    """

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        what: Sequence[str] = (),
        prefix: Sequence[str] = (),
        **environ: str,
    ) -> None:
        self.folder = folder
        script = folder / "training.py"
        script.write_text(TRAINING)
        names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"}
        kept = {name: value for name, value in os.environ.items() if name not in names}
        self._output = (folder / f"launcher-{time.monotonic_ns()}.txt").open("w+")
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "composer", *arguments, str(script), str(folder), *what],
            env={**kept, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "OMP_NUM_THREADS": "1", **environ},
            stdout=self._output,
            stderr=self._output,
            cwd=folder,
        )

    @property
    def output(self) -> str:
        """What the launcher and its first rank wrote."""
        return Path(self._output.name).read_text(errors="replace")

    def end(self) -> int:
        """Wait for the launcher and return its exit code."""
        try:
            return self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The launcher did not end:\n{self.output}") from None

    def close(self) -> None:
        """End the launcher, and with it its ranks."""
        self.process.kill()
        self.process.wait()
        self._output.close()


def told(folder: Path, name: str, rank: int = 0, size: int = 2) -> dict[str, Any]:
    """What a rank reported at the start of a batch, at the start or at the end.

    Args:
        folder: Of the nodes.
        name: "start", "end" or the number of the batch.
        rank: Which.
        size: Of how many.
    """
    return json.loads((folder / f"{name}-{rank}of{size}").read_text())


def hold(folder: Path, batch: int) -> None:
    """Have the ranks wait before a batch, until :func:`go_on`."""
    (folder / "hold.part").write_text(str(batch))
    (folder / "hold.part").rename(folder / "hold")


def go_on(folder: Path) -> None:
    """Have the ranks wait no longer."""
    (folder / "hold").unlink()


def wait_until(condition: Callable[[], bool], *nodes: Node) -> None:
    """Wait for something that happens while all launchers live.

    Args:
        condition: Whether it has.
        nodes: The launchers.
    """
    end = time.monotonic() + LIMIT
    while not condition():
        for node in nodes:
            assert node.process.poll() is None, node.output
        assert time.monotonic() < end, "\n".join(node.output for node in nodes)
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Whether a process lives, rather than waiting to be reaped."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return False


def alone() -> list[float]:
    """The weights that one process comes to, with all samples of each batch."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(2 * BATCHES, width, generator=generator) for width in (2, 4))
    torch.manual_seed(0)
    model = nn.Linear(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for batch in range(BATCHES):
        part = slice(2 * batch, 2 * batch + 2)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x[part]), y[part]).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()
