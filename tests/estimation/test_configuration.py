"""What a configuration changes about a program."""

from __future__ import annotations

import pytest

from composer.estimation.configuration import Configuration
from composer.parallel.config import as_parallelism_config
from composer.trials import Assignment

SHARDED = [
    Configuration(8, "fsdp"),
    Configuration(16, "hsdp"),
    Configuration(8, "ddp").with_fsdp(activation_checkpointing=2),
    Configuration(8).with_fsdp(activation_checkpointing="selective"),
    Configuration().with_fsdp(activation_checkpointing=True, activation_cpu_offload=True),
]


@pytest.mark.parametrize("configuration", SHARDED)
def test_sharding_is_valid(configuration: Configuration) -> None:
    values = [Assignment.parse(text).value for text in configuration.lines()]
    (config,) = [as_parallelism_config(value) for value in values]
    assert config is not None and config.fsdp is not None


def test_hsdp_shards_within_a_node() -> None:
    (line,) = Configuration(32, "hsdp").lines()
    config = as_parallelism_config(Assignment.parse(line).value)
    assert config is not None and config.fsdp is not None
    assert (config.fsdp.data_parallel_shard_degree, config.fsdp.data_parallel_replicate_degree) == (8, 4)


def test_settings_are_added_to_those_of_the_program() -> None:
    given = Configuration(fsdp_argument="parallelism_config.fsdp").with_fsdp(activation_checkpointing=2)
    assert given.assignments() == ["parallelism_config.fsdp.activation_checkpointing=2"]


def test_ddp_is_kept_where_only_activations_change() -> None:
    (line,) = Configuration(8).with_fsdp(activation_checkpointing=2).lines()
    assert "'sharding_strategy': 'NO_SHARD'" in line


def test_names_of_trials_differ() -> None:
    all_of_them = [
        Configuration(),
        Configuration(2),
        Configuration(microbatch=2),
        Configuration(eval_microbatch=2),
        Configuration(precision="amp_bf16"),
        Configuration(optimizer="DecoupledSGDW"),
        Configuration(changes=("algorithms+=EMA()",)),
        Configuration(changes=("algorithms-=EMA()",)),
        Configuration(changes=("run_name=" + "x" * 100,)),
        Configuration(changes=("run_name=" + "x" * 101,)),
        *SHARDED,
    ]
    names = [configuration.name for configuration in all_of_them]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) < 80
