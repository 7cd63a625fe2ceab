"""Compare DiLoCo and local SGD with data parallelism (DDP) on four ranks, at equal tokens: loss and bytes sent.

They start from random weights, and from weights that DDP has trained before, as DiLoCo was introduced (Douillard et al.
2023, https://arxiv.org/abs/2311.08105).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks import environment
from benchmarks.language_model import SEQUENCE, LanguageModel
from benchmarks.report import Goal, Report, spread
from benchmarks.sent_bytes import PARAMETERS, STEP, SentBytes
from benchmarks.tasks import source_code
from composer import Algorithm, Evaluator, Trainer, dist
from composer.algorithms import DiLoCo, LocalSGD
from composer.optim import ConstantWithWarmupScheduler, LinearWithWarmupScheduler

RANKS, BATCH, STEPS, SYNC_EVERY = 4, 4, 240, 16
TRAINED_STEPS, TRAINED_LR = 1440, 4e-3  # of DDP, before the runs that start from trained weights
BASELINE = "DDP"
LOCAL_SGD = f"LocalSGD({SYNC_EVERY}, 'int8')"
DILOCO = f"DiLoCo({SYNC_EVERY}, 0.7, 0.3, 'int8')"


@dataclass(frozen=True)
class Contender:
    """A way to train.

    Attributes:
        lr: Peak learning rate of the (inner) optimizer, from random weights.
        trained_lr: The same from trained weights.
        make: Makes the algorithm; None averages the gradients of each step.
    """

    lr: float
    trained_lr: float
    make: Callable[[], Algorithm] | None = None


CONTENDERS = {
    BASELINE: Contender(4e-3, 2e-3),
    LOCAL_SGD: Contender(4e-3, 4e-3, lambda: LocalSGD(SYNC_EVERY, "int8")),
    DILOCO: Contender(4e-3, 4e-3, lambda: DiLoCo(SYNC_EVERY, 0.7, 0.3, "int8")),
}
RANDOM, TRAINED = "random weights", "trained weights"
# Quantile 0.975 of Student's t distribution, by the number of pairs.
_QUANTILES = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365}


def train(
    contender: str,
    seed: int,
    steps: int,
    counter: SentBytes | None = None,
    trained: Mapping[str, Tensor] | None = None,
) -> float:
    """Train on this rank and the others; return the loss on held-out text.

    Args:
        contender: One of the contenders.
        seed: Of the weights and of the order of the data.
        steps: Number of steps.
        counter: Counts the bytes that are sent; None leaves the run alone.
        trained: The weights to start from; None starts from random ones.
    """
    used, data = CONTENDERS[contender], source_code()
    torch.manual_seed(seed)
    model = LanguageModel()
    lr = used.lr
    if trained is not None:
        model.load_state_dict(trained)
        lr = used.trained_lr
    with contextlib.nullcontext() if counter is None else counter.watching() as callback:
        trainer = Trainer(
            model=model,
            train_dataloader=DataLoader(data["train"], BATCH, shuffle=True, drop_last=True),
            eval_dataloader=Evaluator(label="eval", dataloader=DataLoader(data["held_out"], 25)),
            eval_interval=f"{steps}ba",
            max_duration=f"{steps}ba",
            optimizers=_optimizer(model, lr),
            schedulers=LinearWithWarmupScheduler(t_warmup="0.1dur"),
            step_schedulers_every_batch=True,
            algorithms=[] if used.make is None else [used.make()],
            callbacks=[] if callback is None else [callback],
            device="cpu",
            seed=seed,
            progress_bar=False,
        )
        trainer.fit()
        loss = float(trainer.state.eval_metric_values["CrossEntropy"])
        trainer.close()
    return loss


def _optimizer(model: LanguageModel, lr: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)


def trained_weights(seed: int, steps: int) -> dict[str, Tensor]:
    """Return weights after training with DDP at a constant learning rate.

    Args:
        seed: Of the weights and of the order of the data, which differs from that of the runs after it.
        steps: Number of steps.
    """
    torch.manual_seed(seed)
    model = LanguageModel()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(source_code()["train"], BATCH, shuffle=True, drop_last=True),
        max_duration=f"{steps}ba",
        optimizers=_optimizer(model, TRAINED_LR),
        schedulers=ConstantWithWarmupScheduler(t_warmup=f"{min(50, steps)}ba"),
        step_schedulers_every_batch=True,
        device="cpu",
        seed=1000 + seed,
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()
    return {name: weight.clone() for name, weight in model.state_dict().items()}


def on_rank(
    contenders: Sequence[str], seeds: Sequence[int], steps: int, trained_steps: int
) -> dict[str, dict[str, Any]]:
    """Train each contender with each seed from both starts, and for two rounds while bytes are counted.

    Args:
        contenders: The contenders.
        seeds: The seeds.
        steps: Number of steps of a run.
        trained_steps: Number of steps of DDP before the runs that start from trained weights.
    """
    found: dict[str, dict[str, Any]] = {name: {RANDOM: [], TRAINED: [], "sent": {}} for name in contenders}
    for name in contenders:
        counter, counted = SentBytes(), 2 * SYNC_EVERY
        train(name, seeds[0], counted, counter)
        found[name]["sent"] = {purpose: sent / counted for purpose, sent in counter.sent.items()}
    for seed in seeds:
        starts = {RANDOM: None, TRAINED: trained_weights(seed, trained_steps)}
        for start, weights in starts.items():
            for name in contenders:
                loss = train(name, seed, steps, trained=weights)
                found[name][start].append(loss)
                if dist.get_global_rank() == 0:
                    print(f"seed {seed}, from {start}, {name}: {loss:.4f}", file=sys.stderr, flush=True)
    return found


def _one_process(rank: int, folder: str, arguments: tuple[Any, ...]) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": RANKS}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)
    store, limit = f"file://{folder}/store", timedelta(seconds=600)
    torch_dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS, timeout=limit)
    found = on_rank(*arguments)
    if rank == 0:
        Path(folder, "found").write_text(json.dumps(found))
    torch_dist.barrier()
    torch_dist.destroy_process_group()


def ask(*arguments: Any) -> dict[str, dict[str, Any]]:
    """Return what :func:`on_rank` returns on the first of several new processes.

    Args:
        arguments: Of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_one_process, (folder, arguments), nprocs=RANKS)  # pyright: ignore[reportPrivateImportUsage]
        return json.loads(Path(folder, "found").read_text())


def interval(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of a mean, by Student's t distribution.

    >>> round(interval([1.0, 2.0, 3.0, 4.0, 5.0]), 3)
    1.963
    """
    if len(values) not in _QUANTILES:
        return math.nan
    return _QUANTILES[len(values)] * statistics.stdev(values) / math.sqrt(len(values))


def measure(
    seeds: Sequence[int] = range(5),
    steps: int = STEPS,
    contenders: Sequence[str] = tuple(CONTENDERS),
    trained_steps: int = TRAINED_STEPS,
) -> Report:
    """Train each contender with each seed from both starts.

    Args:
        seeds: The seeds; runs of one seed and start have the same initial weights and data.
        steps: Number of steps of a run.
        contenders: The contenders, of which the first is the baseline.
        trained_steps: Number of steps of DDP before the runs that start from trained weights.
    """
    found = ask(list(contenders), list(seeds), steps, trained_steps)
    rows: list[list[Any]] = []
    goals: list[Goal] = []
    plain = found[BASELINE]
    for start in (RANDOM, TRAINED):
        for name in contenders:
            losses, sent = found[name][start], found[name]["sent"]
            ratios = [own / other for own, other in zip(losses, plain[start], strict=True)]
            mean, width = statistics.mean(ratios), interval(ratios)
            fewer = _bytes(plain["sent"]) / _bytes(sent)
            bytes_sent = [sent.get(purpose, 0.0) for purpose in (PARAMETERS, STEP)]
            rows.append([f"{start}: {name}", statistics.mean(losses), spread(losses), mean, width, *bytes_sent, fewer])
            if name == DILOCO:
                goals.append(Goal(f"{name} from {start}: loss over DDP's, mean of the pairs", mean, 1.02))
    if DILOCO in contenders:
        goals.append(Goal(f"{DILOCO}: bytes over DDP's", _bytes(found[DILOCO]["sent"]) / _bytes(plain["sent"]), 1 / 50))
    columns = ["run", "loss", "spread", "of DDP's", "±", "bytes a step: parameters", "step sync.", "times fewer"]
    return Report(
        "low_communication",
        "Training with little communication",
        columns,
        rows,
        goals,
        _notes(contenders, len(list(seeds)), steps, trained_steps),
        found,
        environment.describe(),
    )


def _bytes(sent: Mapping[str, float]) -> float:
    return sent.get(PARAMETERS, 0.0) + sent.get(STEP, 0.0)


def _notes(contenders: Sequence[str], pairs: int, steps: int, trained_steps: int) -> list[str]:
    weights = sum(weight.numel() for weight in LanguageModel().parameters())
    rates = ", ".join(f"{name} {CONTENDERS[name].lr:g} and {CONTENDERS[name].trained_lr:g}" for name in contenders)
    return [
        f"Source code of Python's standard library as bytes, sequences of {SEQUENCE}, a transformer of two layers and "
        f"{weights:,} weights in float32, AdamW, {RANKS} gloo ranks with batches of "
        f"{BATCH} each, {steps} steps: {RANKS * BATCH * SEQUENCE * steps / 1e6:.1f} million tokens for each contender.",
        f"{pairs} pairs of runs: those of a seed and start have the same initial weights and the same data. The loss "
        f"is the cross entropy of held-out files at the end, of the synchronized weights.",
        f"Trained weights are those of DDP after {trained_steps} steps at a constant learning rate of {TRAINED_LR:g}; "
        f"each contender continues from them with a new optimizer and a schedule of its own. The bytes of those steps "
        f"are not counted.",
        f"Peak learning rates from random and from trained weights: {rates}. Chosen by single runs: from random "
        f"weights of 0.004 and 0.008 for DDP and of 0.004, 0.008 and 0.016 for the others, from trained weights of "
        f"0.002, 0.004 and 0.006 for DDP; so were the outer settings, of which few were tried.",
        f"Bytes that a rank sends a step: the mean over {2 * SYNC_EVERY} steps in which every collective is counted, "
        f"also those of DistributedDataParallel; an all-reduce as in a ring. Those of the step synchronization are "
        f"counts, loss weights and losses. Evaluations and the start are left out; 'times fewer' is of both columns.",
        "± is half the 95 % interval of the mean ratio.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="number of pairs")
    report = measure(range(parser.parse_args().seeds))
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
