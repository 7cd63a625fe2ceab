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
    partial_format,
)


def placeholders(table: str) -> list[str]:
    return [row.split("``")[1].strip("{}") for row in table.splitlines()[2:]]


def test_documented_placeholders_are_complete() -> None:
    for name in placeholders(FORMAT_NAME_WITH_DIST_TABLE):
        assert "{" not in format_name_with_dist(f"{{{name}}}", "night")
    timed = placeholders(FORMAT_NAME_WITH_DIST_AND_TIME_TABLE)
    assert {"run_name", "rank", "epoch", "batch_in_epoch", "total_wct"} <= set(timed)
    for name in timed:
        assert "{" not in format_name_with_dist_and_time(f"{{{name}}}", "night", Timestamp(epoch=3))


def test_mistyped_placeholder_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match="Did you mean 'epoch'"):
        format_name_with_dist_and_time("{epch}", "night", Timestamp())
    with pytest.raises(ValueError, match="does not change during training"):
        PartialFilePath("a.pt", "{epoch}")


def test_paths() -> None:
    state = State(torch.nn.Linear(1, 1), run_name="night")
    state.timestamp = Timestamp(epoch=2, batch=7)
    path = PartialFilePath("ep{epoch}-ba{batch:03d}.pt", "s3://bucket/{run_name}")
    assert path.format(state) == "s3://bucket/night/ep2-ba007.pt"
    assert path.format(state, keep_placeholders=True) == "s3://bucket/{run_name}/ep{epoch}-ba{batch:03d}.pt"
    assert PartialFilePath("{run_name}/ep{epoch}").format(state, is_dir=True) == "night/ep2/"


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("{run_name}/{epoch}", "night/{epoch}"),
        ("{epoch:03d} {epoch!r:>5} {epoch!s}", "{epoch:03d} {epoch!r:>5} {epoch!s}"),
        ("{epoch.real} {epoch[key]} {epoch[0].real}", "{epoch.real} {epoch[key]} {epoch[0].real}"),
        ("{run_name!r:>8} {run_name:>{width}}", " 'night'    night"),
        ("{} {}", "first {}"),
        ("plain", "plain"),
    ],
)
def test_some_placeholders_are_replaced(text, result) -> None:
    assert partial_format(text, "first", run_name="night", width=8) == result


def test_remaining_placeholders_are_replaced_later() -> None:
    template = "{run_name}-{epoch:03d}-{loss:.2f}-{}"
    values = {"run_name": "night", "epoch": 7, "loss": 0.125}
    early = partial_format(partial_format(template, epoch=7), run_name="night")
    assert early.format("end", **values) == template.format("end", **values) == "night-007-0.12-end"
