from __future__ import annotations

import pytest
import torch

from composer.core import State, Timestamp
from composer.core.file_names import (
    FORMAT_NAME_WITH_DIST_AND_TIME_TABLE,
    FORMAT_NAME_WITH_DIST_TABLE,
    PartialFilePath,
    format_name_with_dist,
    format_name_with_dist_and_time,
)


def placeholders(table: str) -> list[str]:
    return [row.split("``")[1].strip("{}") for row in table.splitlines()[2:]]


def test_the_tables_have_what_names_may_have() -> None:
    for name in placeholders(FORMAT_NAME_WITH_DIST_TABLE):
        assert "{" not in format_name_with_dist(f"{{{name}}}", "night")
    timed = placeholders(FORMAT_NAME_WITH_DIST_AND_TIME_TABLE)
    assert {"run_name", "rank", "epoch", "batch_in_epoch", "total_wct"} <= set(timed)
    for name in timed:
        assert "{" not in format_name_with_dist_and_time(f"{{{name}}}", "night", Timestamp(epoch=3))


def test_a_mistyped_placeholder_is_answered_with_the_right_one() -> None:
    with pytest.raises(ValueError, match="Did you mean 'epoch'"):
        format_name_with_dist_and_time("{epch}", "night", Timestamp())
    with pytest.raises(ValueError, match="does not change in training"):
        PartialFilePath("a.pt", "{epoch}")


def test_paths() -> None:
    state = State(torch.nn.Linear(1, 1), run_name="night")
    state.timestamp = Timestamp(epoch=2, batch=7)
    path = PartialFilePath("ep{epoch}-ba{batch:03d}.pt", "s3://bucket/{run_name}")
    assert path.format(state) == "s3://bucket/night/ep2-ba007.pt"
    assert path.format(state, keep_placeholders=True) == "s3://bucket/{run_name}/ep{epoch}-ba{batch:03d}.pt"
    assert PartialFilePath("{run_name}/ep{epoch}").format(state, is_dir=True) == "night/ep2/"
