"""MLPerfCallback: the lines of the log and their order, the system description, and refused arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import DataSpec
from composer.callbacks import MLPerfCallback
from composer.callbacks.mlperf import get_system_description
from tests.callbacks.cases import Case, Run, run_with
from tests.callbacks.memory import Keeper
from tests.common import CLASSES, FEATURES, labeled_data


def loader(samples: int = 8, batch_size: int = 2) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, FEATURES, generator=generator)
    return DataLoader(TensorDataset(x, x[:, :CLASSES].argmax(1)), batch_size=batch_size)


def evaluated() -> dict[str, Any]:
    return {"eval_dataloader": loader(6, 3)}


CASE = Case(
    make=lambda folder: MLPerfCallback(folder, 0, target=2.0),
    batches=loader,
    arguments=evaluated,
)


def trained(callback: MLPerfCallback, **arguments: Any) -> Run:
    run = run_with(callback, data=loader(), **({"max_duration": "2ep", "seed": 17} | evaluated() | arguments))
    run.trainer.fit()
    run.trainer.close()
    return run


def lines_of(callback: MLPerfCallback) -> list[dict[str, Any]]:
    lines = callback.log_path.read_text().splitlines()
    assert all(line.startswith(":::MLLOG {") for line in lines)
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]


def values_of(callback: MLPerfCallback) -> dict[str, Any]:
    return {line["key"]: line["value"] for line in lines_of(callback) if line["event_type"] == "POINT_IN_TIME"}


def test_lines_and_their_order(tmp_path) -> None:
    callback = MLPerfCallback(tmp_path, 3, target=2.0, system_name="box", submitter="me")
    trained(callback)
    lines = lines_of(callback)
    epoch = ["epoch_start", "block_start", "epoch_stop", "eval_start", "eval_stop", "eval_accuracy", "block_stop"]
    assert [line["key"] for line in lines] == [
        "init_start",
        *(f"submission_{key}" for key in ("benchmark", "division", "org", "platform", "status")),
        *("seed", "global_batch_size", "gradient_accumulation_steps", "train_samples", "eval_samples"),
        *("init_stop", "run_start", *epoch, *epoch, "run_stop"),
    ]
    for line in lines:
        assert line.keys() == {"namespace", "time_ms", "event_type", "key", "value", "metadata"}
        assert line["namespace"] == ""
        assert {"file", "lineno"} <= line["metadata"].keys()
        event_type = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(
            line["key"].rpartition("_")[2], "POINT_IN_TIME"
        )
        assert line["event_type"] == event_type
    times = [line["time_ms"] for line in lines]
    assert times == sorted(times)
    assert callback.log_path == tmp_path / "results" / "box" / "resnet" / "result_3.txt"


def test_values(tmp_path) -> None:
    callback = MLPerfCallback(tmp_path, 0, "bert", 2.0, "closed", submitter="me", system_name="box", status="cloud")
    run = trained(callback, device_train_microbatch_size=1)
    found = values_of(callback)
    accuracy = found.pop("eval_accuracy")
    assert accuracy == run.values("metrics/eval/MulticlassAccuracy")[-1]
    assert found == {
        "submission_benchmark": "bert",
        "submission_division": "closed",
        "submission_org": "me",
        "submission_platform": "box",
        "submission_status": "cloud",
        "seed": 17,
        "global_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "train_samples": 8,
        "eval_samples": 6,
    }


def test_epochs_count_from_one_and_evaluations_have_fractional_epochs(tmp_path) -> None:
    callback = MLPerfCallback(tmp_path, 0, target=2.0)
    trained(callback, eval_interval="2ba")
    events = [(line["key"], line["metadata"]) for line in lines_of(callback)]
    numbers = {
        key: [metadata["epoch_num"] for name, metadata in events if name == key]
        for key in ("epoch_start", "epoch_stop", "eval_start", "eval_accuracy", "run_stop")
    }
    assert numbers == {
        "epoch_start": [1, 2],
        "epoch_stop": [1, 2],
        "eval_start": [0.5, 1, 1.5, 2],
        "eval_accuracy": [0.5, 1, 1.5, 2],
        "run_stop": [2],
    }


@pytest.mark.parametrize(("leaves", "epochs"), [(True, 1), (False, 3)])
def test_the_clock_stops_when_the_target_is_reached(leaves, epochs, tmp_path) -> None:
    callback = MLPerfCallback(tmp_path, 0, target=0.0, exit_at_target=leaves)
    run = trained(callback, max_duration="3ep")
    assert run.trainer.state.timestamp.epoch == epochs
    [stop] = [line for line in lines_of(callback) if line["key"] == "run_stop"]
    assert stop["metadata"]["status"] == "success"
    assert stop["metadata"]["epoch_num"] == 1
    assert callback.success


def test_a_run_that_fails_is_aborted(tmp_path) -> None:
    callback = MLPerfCallback(tmp_path, 0, target=2.0)
    trained(callback)
    assert lines_of(callback)[-1]["metadata"]["status"] == "aborted"
    assert not callback.success


def test_other_evaluators_are_ignored(tmp_path) -> None:
    from composer import Evaluator

    evaluators = [Evaluator(label=label, dataloader=loader(4)) for label in ("eval", "other")]
    callback = MLPerfCallback(tmp_path, 0, target=2.0)
    trained(callback, eval_dataloader=evaluators, max_duration="1ep")
    assert [line["key"] for line in lines_of(callback)].count("eval_accuracy") == 1


def test_custom_lines(tmp_path) -> None:
    callback = MLPerfCallback(tmp_path, 0)
    with pytest.raises(RuntimeError, match="MLPerf log is not open"):
        callback.log_event("opt_name", "sgd")
    run = run_with(callback, data=loader(), **evaluated())
    callback.log_event("opt_base_learning_rate", 8.5, tensor="all")
    run.trainer.close()
    line = lines_of(callback)[-1]
    assert (line["key"], line["value"], line["metadata"]["tensor"]) == ("opt_base_learning_rate", 8.5, "all")


@pytest.mark.parametrize("as_text", [True, False])
def test_clears_caches_before_initialization(as_text, tmp_path) -> None:
    mark = tmp_path / "cleared"
    command: Any = [sys.executable, "-c", f"open({str(mark)!r}, 'w')"]
    if as_text:
        command = " ".join(f'"{part}"' for part in command)
    callback = MLPerfCallback(tmp_path, 0, cache_clear_cmd=command)
    run_with(callback, data=loader(), **evaluated()).trainer.close()
    assert mark.exists()
    first = lines_of(callback)[0]
    assert (first["key"], first["value"]) == ("cache_clear", True)
    with pytest.raises(subprocess.CalledProcessError):
        run_with(MLPerfCallback(tmp_path, 1, cache_clear_cmd="false"), data=loader(), **evaluated())


def test_files_are_uploaded(tmp_path) -> None:
    keeper = Keeper()
    callback = MLPerfCallback(tmp_path, 0, target=2.0, system_name="box")
    trained(callback, loggers=[keeper])
    assert [name for name, _ in keeper.files] == ["results/box/resnet/result_0.txt", "systems/box.json"]


def test_only_the_first_rank_writes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("composer.callbacks.mlperf.dist.get_global_rank", lambda: 1)
    callback = MLPerfCallback(tmp_path, 0)
    callback.init(None, None)  # pyright: ignore[reportArgumentType]
    callback.log_event("opt_name", "sgd")
    assert not list(tmp_path.iterdir())


def test_system_description(tmp_path) -> None:
    callback = MLPerfCallback(tmp_path, 0, target=2.0, system_name="a/b", host_processors_per_node=4)
    trained(callback)
    path = tmp_path / "systems" / "a-b.json"
    description = json.loads(path.read_text())
    assert description["system_name"] == "a/b"
    assert description["host_processors_per_node"] == "4"
    assert description["framework"].startswith("PyTorch ")
    assert description["host_memory_capacity"].endswith(" GiB")
    assert all(isinstance(value, str) for value in description.values())
    named = get_system_description("me", "open", "onprem")["system_name"]
    assert "x" in named


def test_does_not_overwrite_an_earlier_run(tmp_path) -> None:
    trained(MLPerfCallback(tmp_path, 0))
    with pytest.raises(FileExistsError):
        run_with(MLPerfCallback(tmp_path, 0), data=loader(), **evaluated())
    again = MLPerfCallback(tmp_path, 1)
    trained(again)
    trained(again)
    assert len(list(tmp_path.glob("results/*/resnet/result_[012].txt"))) == 3


@pytest.mark.parametrize(
    ("arguments", "more", "message"),
    [
        ({"metric_name": "MulticlassAcuracy"}, {}, "Did you mean 'eval/MulticlassAccuracy'"),
        ({"metric_label": "test"}, {}, "match no metric of an evaluator"),
        ({}, {"eval_dataloader": labeled_data(1)}, "eval_dataloader does not define it"),
    ],
)
def test_refuses_before_training(arguments, more, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        trained(MLPerfCallback(tmp_path, 0, **arguments), **more)


def test_the_number_of_samples_may_be_given(tmp_path) -> None:
    callback = MLPerfCallback(tmp_path, 0)
    trained(callback, eval_dataloader=DataSpec(loader(4), num_samples=100))
    assert values_of(callback)["eval_samples"] == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"benchmark": "renset"}, "Did you mean 'resnet'"),
        ({"division": "opened"}, "Did you mean 'open'"),
        ({"status": "cloudy"}, "Did you mean 'cloud'"),
        ({"index": -1}, "index"),
        ({"target": float("nan")}, "target must be a number that the metric can reach, such as 0.9, but got nan"),
    ],
)
def test_refuses_invalid_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        MLPerfCallback(Path("x"), **({"index": 0} | arguments))


@pytest.mark.parametrize("target", ["0.759", True, None])
def test_refuses_targets_that_are_not_numbers(target) -> None:
    with pytest.raises(TypeError, match=r"target must be a number, but got .* of type"):
        MLPerfCallback(Path("x"), 0, target=target)
