"""A parameter group that was added during the training of a sharded model is added again when resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer.optim import LinearScheduler
from tests.checkpoint.sharding import full
from tests.common import TwoLayers, trainer_of
from tests.ranks import Ranks
from tests.trainer.test_added_groups import add_at, follow, optimizer_of


def _of_a_rank(how: str, folder: str) -> list[tuple[list[torch.Tensor], list[list[float]]]]:
    def run(**more: Any) -> tuple[list[torch.Tensor], list[list[float]]]:
        torch.manual_seed(1)
        model = TwoLayers()
        optimizer = optimizer_of(model)
        used = follow(optimizer)
        config = {"fsdp": {"state_dict_type": how}}
        arguments: dict[str, Any] = {
            "parallelism_config": config,
            "schedulers": LinearScheduler(),
            "device": "cpu",
            **more,
        }
        callbacks = add_at("batch_end", 2, lr=0.03)
        trainer = trainer_of(model, optimizers=optimizer, callbacks=callbacks, max_duration="4ba", **arguments)
        trainer.fit()
        trainer.close()
        assert len(optimizer.param_groups) == 2
        return [full(parameter).detach() for parameter in model.parameters()], used

    straight = run(save_folder=folder, save_interval="3ba", save_filename="{batch}", save_num_checkpoints_to_keep=-1)
    path = next(str(one) for one in sorted(Path(folder).iterdir()) if "3" in one.name)
    return [straight, run(load_path=path)]


@pytest.mark.parametrize("how", ["full", "sharded"])
def test_sharded_weights(how: str, tmp_path: Path, two_ranks: Ranks) -> None:
    for (weights, rates), (resumed, used) in two_ranks.run(_of_a_rank, how, str(tmp_path)):
        assert used == rates[3:]
        assert all(map(torch.equal, weights, resumed))
