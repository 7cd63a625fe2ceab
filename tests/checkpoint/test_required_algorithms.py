"""Load recreates the algorithms that changed the layers, even if the weights fit without them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from composer import Trainer
from composer.algorithms import GhostBatchNorm, LowPrecisionGroupNorm, LowPrecisionLayerNorm, StochasticDepth
from composer.checkpoint.recreate_algorithms import algorithm_from, recreate_algorithms
from composer.core.event import Event
from composer.core.logger import Logger
from composer.core.state import State
from composer.models import ComposerClassifier
from composer.nn import GhostBatchNorm2d, LPGroupNorm, LPLayerNorm
from composer.nn.stochastic_depth import StochasticBlock, register_residual_block
from composer.warnings import ComposerWarning


class RequiredBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


register_residual_block(RequiredBlock)

CASES = {
    "ghosts": (lambda: GhostBatchNorm(ghost_batch_size=2), GhostBatchNorm2d),
    "blocks": (lambda: StochasticDepth("RequiredBlock", drop_rate=0.5), StochasticBlock),
    "layers": (LowPrecisionLayerNorm, LPLayerNorm),
    "groups before loading": (lambda: LowPrecisionGroupNorm("before_load"), LPGroupNorm),
    "groups after loading": (lambda: LowPrecisionGroupNorm("after_load"), LPGroupNorm),
}


def trainer(**arguments) -> Trainer:
    torch.manual_seed(0)
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4), RequiredBlock(), nn.GroupNorm(2, 4)),
        *(nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 2)),
    )
    data = [(torch.randn(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])) for _ in range(2)]
    return Trainer(
        model=ComposerClassifier(net, num_classes=2),
        optimizers=torch.optim.SGD(net.parameters(), lr=0.1),
        train_dataloader=data,
        max_duration="2ba",
        precision="amp_bf16",
        device="cpu",
        progress_bar=False,
        **arguments,
    )


@pytest.mark.parametrize("case", CASES)
def test_replaced_layers_are_recreated(case, tmp_path) -> None:
    make, kind = CASES[case]
    first = trainer(algorithms=[make()])
    first.fit(duration="1ba")
    path = first.save_checkpoint(str(tmp_path / "one.pt"))
    with pytest.warns(ComposerWarning, match="Automatically adding required_on_load") as caught:
        second = trainer(load_path=path)
    assert len(caught) == 1
    assert [type(one) for one in second.state.algorithms] == [type(make())]
    assert sum(isinstance(module, kind) for module in second.state.model.modules()) == 1
    first.fit(duration="1ba")
    second.fit()
    for (name, one), other in zip(
        first.state.model.state_dict().items(), second.state.model.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name


def test_older_description_of_the_same_algorithm_matches() -> None:
    description = (
        "StochasticDepth(target_layer_name='ResNetBottleneck',stochastic_method='block',drop_rate=0.2,"
        "drop_distribution='linear',drop_warmup=Time(0.0, TimeUnit.DURATION))"
    )
    state = State(model=nn.Linear(1, 1))
    state.algorithms = [StochasticDepth("ResNetBottleneck"), LowPrecisionLayerNorm()]
    saved = [
        ("StochasticDepth", {"repr": description}),
        ("LowPrecisionLayerNorm", {"repr": "LowPrecisionLayerNorm(apply_at=Event.INIT)"}),
    ]
    recreate_algorithms(state, Logger(state), saved, (), ())  # warnings are errors
    assert len(state.algorithms) == 2
    other = [("LowPrecisionLayerNorm", {"repr": "LowPrecisionLayerNorm(apply_at=Event.AFTER_LOAD)"})]
    with pytest.warns(ComposerWarning, match="is loaded with LowPrecisionLayerNorm.*behave differently"):
        recreate_algorithms(state, Logger(state), other, (), ())
    made = algorithm_from(other[0][1]["repr"], LowPrecisionLayerNorm)
    assert isinstance(made, LowPrecisionLayerNorm)
    assert made.apply_at is Event.AFTER_LOAD
