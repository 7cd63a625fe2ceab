"""Strategy selection."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as torch_dist

from composer import Trainer, dist
from composer.core.state import State
from composer.parallel import DDPStrategy, DDPSyncStrategy, SingleProcess, Strategy, choose_strategy
from tests.common import classifier, labeled_data
from tests.ranks import Ranks


def test_single_process() -> None:
    assert type(choose_strategy()) is SingleProcess
    assert type(choose_strategy(ddp_sync_strategy="forced_sync", find_unused_parameters=True)) is SingleProcess


def test_mistyped_name_is_rejected_in_single_process_too() -> None:
    with pytest.raises(ValueError, match=r"ddp_sync_strategy must be one of .*Did you mean 'forced_sync'\?"):
        choose_strategy(ddp_sync_strategy="force_sync")


def chosen() -> tuple[type, str, bool]:
    strategy = choose_strategy(ddp_sync_strategy=DDPSyncStrategy.MULTI_AUTO_SYNC, find_unused_parameters=True)
    assert isinstance(strategy, DDPStrategy)
    return type(strategy), str(strategy.sync), strategy.find_unused_parameters


def test_multiple_ranks(two_ranks: Ranks) -> None:
    assert two_ranks.run(chosen) == [(DDPStrategy, "multi_auto_sync", True)] * 2


class Custom(Strategy):
    """Averages gradients after the backward passes, as a user might."""

    name = "own"

    def prepare(self, state: State) -> None:
        self.parameters = list(state.model.parameters())
        for parameter in self.parameters:
            torch_dist.broadcast(parameter.detach(), src=0)

    def reduce(self) -> None:
        for parameter in self.parameters:
            torch_dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


@pytest.mark.parametrize(
    "argument", [{"ddp_sync_strategy": "forced_sync"}, {"find_unused_parameters": True}, {"deepspeed_config": {}}]
)
def test_custom_strategy_excludes_others(argument) -> None:
    own = Custom()
    assert choose_strategy(own) is own
    with pytest.raises(ValueError, match=next(iter(argument))):
        choose_strategy(own, **argument)


def trained() -> list[list[torch.Tensor]]:
    weights: list[list[torch.Tensor]] = []
    for strategy in (None, Custom()):
        torch.manual_seed(0)
        model = classifier()
        with Trainer(
            model=model,
            train_dataloader=labeled_data()[dist.get_global_rank() :],
            max_duration="3ba",
            optimizers=torch.optim.SGD(model.parameters(), lr=0.1),
            device_train_microbatch_size=3,
            parallelism_config=strategy,
            progress_bar=False,
        ) as trainer:
            trainer.fit()
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    return weights


def test_custom_strategy_trains_as_the_built_in_one(two_ranks: Ranks) -> None:
    answers = two_ranks.run(trained)
    for built_in, own in answers:
        torch.testing.assert_close(own, built_in)
    assert all(map(torch.equal, answers[0][1], answers[1][1]))
