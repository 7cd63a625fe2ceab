"""Which strategy is chosen."""

from __future__ import annotations

import pytest

from composer.distributed import DDPStrategy, DDPSyncStrategy, SingleProcess, choose_strategy
from tests.ranks import Ranks


def test_one_process() -> None:
    assert type(choose_strategy()) is SingleProcess
    assert type(choose_strategy(ddp_sync_strategy="forced_sync", find_unused_parameters=True)) is SingleProcess


def test_a_mistyped_name_is_refused_in_one_process_too() -> None:
    with pytest.raises(ValueError, match=r"ddp_sync_strategy must be one of .*Did you mean 'forced_sync'\?"):
        choose_strategy(ddp_sync_strategy="force_sync")


def chosen() -> tuple[type, str, bool]:
    strategy = choose_strategy(ddp_sync_strategy=DDPSyncStrategy.MULTI_AUTO_SYNC, find_unused_parameters=True)
    assert isinstance(strategy, DDPStrategy)
    return type(strategy), str(strategy.sync), strategy.find_unused_parameters


def test_several_processes(two_ranks: Ranks) -> None:
    assert two_ranks.run(chosen) == [(DDPStrategy, "multi_auto_sync", True)] * 2
