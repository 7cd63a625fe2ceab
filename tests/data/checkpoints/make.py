"""Makes the checkpoints beside this file with the predecessor.

PYTHONPATH=.bench/predecessor:. .bench/bin/python -P tests/data/checkpoints/make.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HERE = Path(__file__).resolve().parent


def samples(*shape: int, count: int) -> TensorDataset:
    """Random inputs of three classes."""
    return TensorDataset(
        torch.randn(count, *shape, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 3
    )


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 3))


def by_kind(module: nn.Module) -> torch.optim.Optimizer:
    """AdamW with a group of matrices and one of vectors."""
    matrices = [p for p in module.parameters() if p.ndim > 1]
    vectors = [p for p in module.parameters() if p.ndim == 1]
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)


def momentum(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)


def save(name: str, model: Any, data: TensorDataset, **arguments: Any) -> None:
    """Train and save."""
    from composer import Trainer

    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(data, 4, shuffle=True),
        device="cpu",
        device_train_microbatch_size=4,
        seed=7,
        run_name="old",
        progress_bar=False,
        **arguments,
    )
    trainer.fit()
    with tempfile.TemporaryDirectory() as folder:
        path = trainer.save_checkpoint(f"{folder}/whole.pt")
        content = torch.load(path, weights_only=False)
    content["state"]["metadata"]["composer_env_info"]["cpu_model"] = "unknown"
    torch.save(content, HERE / f"{name}.pt")
    trainer.close()


def main() -> None:
    import composer
    from composer.algorithms import EMA, BlurPool, LabelSmoothing
    from composer.callbacks import EarlyStopper, LRMonitor, SpeedMonitor
    from composer.models import ComposerClassifier
    from composer.optim import CosineAnnealingWithWarmupScheduler, LinearScheduler

    if not composer.__version__.startswith("0."):
        raise RuntimeError(f"This is to be run with the predecessor, but composer comes from {composer.__file__}.")
    model = ComposerClassifier(mlp(), num_classes=3)
    save(
        "sgd_momentum",
        model,
        samples(4, count=22),
        optimizers=momentum(model.module),
        max_duration="8ba",
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup="3ba", t_max="12ba"),
        callbacks=[SpeedMonitor(), LRMonitor(), EarlyStopper("MulticlassAccuracy", "train", patience="9ep")],
    )
    model = ComposerClassifier(mlp(), num_classes=3)
    save(
        "adamw_ema",
        model,
        samples(4, count=22),
        optimizers=by_kind(model.module),
        max_duration="8ba",
        schedulers=LinearScheduler(t_max="12ba"),
        algorithms=[EMA(half_life="3ba", update_interval="1ba"), LabelSmoothing(0.1)],
        save_metrics=True,
        eval_dataloader=DataLoader(samples(4, count=22), 4),
        eval_interval="3ba",
    )
    model = ComposerClassifier(net(), num_classes=3)
    save(
        "blurpool",
        model,
        samples(1, 8, 8, count=8),
        optimizers=momentum(model.module),
        max_duration="1ep",
        algorithms=[BlurPool(replace_convs=True, replace_maxpools=True, blur_first=True)],
    )


if __name__ == "__main__":
    main()
