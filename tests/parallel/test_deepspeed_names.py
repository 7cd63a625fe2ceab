"""Excluding entries of a DeepSpeed checkpoint: only weights that one of the models lacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer import Trainer
from tests.common import TwoLayers, regression_data, trainer_of, weights_of
from tests.parallel.test_deepspeed import config_of
from tests.ranks import Ranks

pytestmark = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs the extra 'deepspeed'")


class More(TwoLayers):
    """Has a weight that the checkpoint lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.more = torch.nn.Parameter(torch.ones(1))


def _trainer(model: TwoLayers, **arguments: Any) -> Trainer:
    return trainer_of(
        model,
        regression_data(2, 12),
        optimizers=torch.optim.AdamW(model.parameters(), lr=0.05),
        deepspeed_config={**config_of(2), "train_batch_size": 24},
        device="cpu",
        **arguments,
    )


def _begin(folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    with _trainer(TwoLayers(), save_folder=folder) as trainer:
        trainer.fit()
        saved = weights_of(trainer.state.model)
    arguments = {"load_path": f"{folder}/ep1-ba2", "load_weights_only": True}
    with pytest.raises(RuntimeError, match=r"(?s)another model.*more.*load_strict_model_weights=False"):
        _trainer(More(), **arguments)
    with pytest.raises(ValueError, match=r"'state/model/first\.\*' matches weights"):
        _trainer(TwoLayers(), load_path=f"{folder}/ep1-ba2", load_ignore_keys=["rng", "state/model/first.*"])
    with _trainer(More(), load_strict_model_weights=False, **arguments) as trainer:
        return saved, weights_of(trainer.state.model)


def test_common_weights_can_be_loaded(two_ranks: Ranks, tmp_path: Path) -> None:
    for saved, loaded in two_ranks.run(_begin, str(tmp_path)):
        assert loaded[0] == 1
        assert torch.equal(loaded[1:], saved)


def _chosen(index: int | None) -> list[int]:
    """The devices that DeepSpeed's engine makes current, of a process with local rank 3."""
    from deepspeed.runtime import engine

    from composer.parallel.deepspeed import _engine_args

    chosen: list[int] = []
    accelerator = SimpleNamespace(set_device=chosen.append, device_name=lambda index: "cpu")
    device = torch.device("cuda") if index is None else torch.device("cuda", index)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "get_accelerator", lambda: accelerator)
        patch.setattr(engine, "dist", SimpleNamespace(get_world_size=lambda: 1, get_rank=lambda: 0))
        engine.DeepSpeedEngine._set_distributed_vars(SimpleNamespace(local_rank=3), _engine_args(device))
    return chosen


@pytest.mark.parametrize(("index", "chosen"), [(None, [3]), (0, [0]), (2, [2])])
def test_the_engine_uses_the_device_of_the_run(two_ranks: Ranks, index: int | None, chosen: list[int]) -> None:
    assert two_ranks.run(_chosen, index) == [chosen, chosen]
