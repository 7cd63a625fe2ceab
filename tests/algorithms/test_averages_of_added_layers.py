"""Averages of layers that are added during training: the same whether a run is resumed or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from composer import Algorithm, Callback, Trainer
from composer.algorithms import EMA, SWA, PostHocEMA
from composer.models import ComposerClassifier

METHODS = {
    "EMA": lambda: EMA(half_life="2ba"),
    "EMA, every two batches": lambda: EMA(half_life="4ba", update_interval="2ba"),
    "PostHocEMA": lambda: PostHocEMA(snapshot_interval="3ba"),
    "SWA": lambda: SWA(swa_start="0ep", swa_end="2ep", update_interval="2ba", schedule_swa_lr=True, swa_lr=0.1),
}


class AddLayer(Callback):
    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def batch_start(self, state: Any, logger: Any) -> None:
        if state.timestamp.batch == 2:
            state.model.module.append(self.layer)
            state.optimizers[0].add_param_group({"params": self.layer.parameters()})


def trained(method: Algorithm, folder: Path, load_path: str | None = None) -> list[dict[str, Tensor]]:
    """Train; return the averages, which SWA has put into the model."""
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    data = [(torch.randn(8, 4), torch.arange(8) % 4) for _ in range(6)]
    trainer = Trainer(
        model=ComposerClassifier(nn.Sequential(first, *([second] if load_path else [])), num_classes=4),
        train_dataloader=data,
        max_duration="2ep",
        optimizers=torch.optim.SGD(first.parameters(), lr=0.5),
        algorithms=method,
        callbacks=AddLayer(second),
        load_path=load_path,
        save_folder=str(folder),
        save_interval="1ba",
        save_overwrite=True,
        save_filename="{batch}.pt",
        progress_bar=False,
    )
    trainer.fit()
    if isinstance(method, PostHocEMA):
        return [dict(one.weights) for one in method.snapshots]
    averages = method.state_dict()["averages"] if isinstance(method, EMA) else trainer.state.model.state_dict()
    return [dict(averages)]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("at", [3, 4])
def test_a_resumed_run_has_the_same_averages(name: str, at: int, tmp_path: Path) -> None:
    whole = trained(METHODS[name](), tmp_path / "whole")
    resumed = trained(METHODS[name](), tmp_path / "resumed", load_path=str(tmp_path / "whole" / f"{at}.pt"))
    assert "module.1.weight" in whole[-1]
    assert len(whole) == len(resumed)
    for one, other in zip(whole, resumed, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[each], other[each]) for each in one)
