"""Methods that act over a run follow its fraction: a run of one epoch is one of as many batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer.algorithms import (
    EMA,
    SWA,
    LayerFreezing,
    PostHocEMA,
    ProgressiveResizing,
    SelectiveBackprop,
    StochasticDepth,
)
from composer.functional import register_residual_block
from composer.loggers import InMemoryLogger
from composer.models import ComposerClassifier

BATCHES = 10
METHODS = {
    "EMA": lambda: EMA("2ba", ema_start="0.3dur"),
    "LayerFreezing": lambda: LayerFreezing(0.1, 1.0, "1ba"),
    "PostHocEMA": lambda: PostHocEMA(snapshot_interval="0.3dur"),
    "ProgressiveResizing": lambda: ProgressiveResizing(delay_fraction=0.1, finetune_fraction=0.3),
    "SelectiveBackprop": lambda: SelectiveBackprop(0.3, 0.7, interrupt=0),
    "StochasticDepth": lambda: StochasticDepth(_Block, "block", 0.5, drop_warmup="0.7dur"),
    "SWA": lambda: SWA("0.3dur", "0.9dur", "1ba"),
}


class _Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x):
        return x + self.conv(x)


register_residual_block(_Block)


def _run(name: str | None, duration: str, epoch: int = BATCHES) -> tuple[list[torch.Tensor], dict[str, list[float]]]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), _Block(), _Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2))
    data = TensorDataset(torch.randn(epoch * 4, 1, 16, 16), torch.randint(2, (epoch * 4,)))
    log = InMemoryLogger()
    method = [] if name is None else [METHODS[name]()]
    trainer = Trainer(
        model=ComposerClassifier(net, num_classes=2),
        train_dataloader=DataLoader(data, 4),
        optimizers=torch.optim.SGD(net.parameters(), lr=0.1),
        algorithms=method,
        max_duration=duration,
        loggers=log,
        progress_bar=False,
    )
    trainer.fit()
    states = [value for one in method for value in tree_leaves(one.state_dict()) if isinstance(value, torch.Tensor)]
    values = {
        metric: [float(value) for _, value in points]
        for metric, points in log.data.items()
        if metric.startswith(("loss/", "progressive", "layer_freezing"))
    }
    return [*(parameter.detach() for parameter in net.parameters()), *states], values


@pytest.mark.parametrize("name", METHODS)
def test_an_epoch_is_its_batches(name: str) -> None:
    weights, values = _run(name, "1ep")
    expected, same_values = _run(name, f"{BATCHES}ba")
    assert len(weights) == len(expected) and all(map(torch.equal, weights, expected))
    assert values == same_values and values
    if name not in ("EMA", "PostHocEMA"):  # which leave training as it is
        plain, _ = _run(None, "1ep")
        assert not all(map(torch.equal, weights, plain))


def test_images_grow_to_their_full_size_in_three_epochs() -> None:
    _, values = _run("ProgressiveResizing", "3ep", 4)
    heights = values["progressive_resizing/height"]
    assert heights == sorted(heights) and heights[0] == 8 and heights[-3:] == [16, 16, 16]
