"""Facts of a run, and the settings of FSDP that a strategy keeps."""

from __future__ import annotations

from typing import Any

import pytest

from composer.estimation.run_facts import with_own_settings
from composer.parallel.config import FSDPConfig, ParallelismConfig, as_parallelism_config

OWN: dict[str, Any] = {"activation_checkpointing": 2, "data_parallel_shard_degree": 4}
CHANGED = {"parallelism_config": {"fsdp": {"activation_cpu_offload": True}}, "fsdp_config": None}


@pytest.mark.parametrize(
    "given",
    [
        {"parallelism_config": {"fsdp": OWN}},
        {"parallelism_config": ParallelismConfig(fsdp=FSDPConfig(**OWN))},
        {"parallelism_config": None, "fsdp_config": OWN},
    ],
    ids=["mapping", "object", "fsdp_config"],
)
def test_a_strategy_keeps_other_settings(given: dict[str, Any]) -> None:
    config = as_parallelism_config(with_own_settings(CHANGED, given)["parallelism_config"])
    assert config is not None and config.fsdp is not None
    assert config.fsdp.activation_checkpointing == 2 and config.fsdp.activation_cpu_offload
    assert config.fsdp.data_parallel_shard_degree != 4


def test_a_strategy_is_all_there_is() -> None:
    assert with_own_settings(CHANGED, {"parallelism_config": None, "fsdp_config": None}) == CHANGED
