from __future__ import annotations

import pytest
import torch

from composer.callbacks import LRMonitor
from tests.callbacks.cases import Case, run_with
from tests.common import TwoLayers, classifier, regression_data

CASE = Case(make=lambda folder: LRMonitor(), logs=("lr-SGD/group0",))


def rate(step: int) -> float:
    return 1 / (1 + step)


@pytest.mark.parametrize("every_batch", [True, False])
def test_logs_the_learning_rate_of_each_step(every_batch):
    net = classifier()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    used = []
    optimizer.register_step_pre_hook(lambda o, args, kwargs: used.append(o.param_groups[0]["lr"]))
    run = run_with(
        LRMonitor(),
        model=net,
        optimizers=optimizer,
        schedulers=schedule,
        step_schedulers_every_batch=every_batch,
        max_duration="2ep",
    )
    run.trainer.fit()
    assert run.values("lr-SGD/group0") == used
    assert used == [rate(step if every_batch else step // 4) for step in range(8)]
    # On the axis of the loss, so that both can be read together.
    assert run.steps("lr-SGD/group0") == run.steps("loss/train/total") == list(range(8))


def test_every_group_of_every_optimizer_has_a_name():
    model = TwoLayers()
    first = torch.optim.SGD([{"params": [model.first.weight], "lr": 0.1}, {"params": [model.first.bias], "lr": 0.2}])
    second = torch.optim.SGD([model.second.weight], lr=torch.tensor(0.5))
    third = torch.optim.AdamW([model.second.bias], lr=0.25)
    run = run_with(LRMonitor(), model=model, data=regression_data(), optimizers=[first, second, third])
    run.trainer.fit()
    logged = {name: run.values(name)[0] for name in run.names if name.startswith("lr-")}
    expected = {"lr-SGD/group0": 0.1, "lr-SGD/group1": 0.2, "lr-SGD-2/group0": 0.5, "lr-AdamW/group0": 0.25}
    assert logged == expected
