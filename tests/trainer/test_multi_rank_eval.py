"""Evaluation and prediction on multiple ranks give the results of a single process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Evaluator, dist
from tests.common import At, Recorder, Unsized
from tests.ranks import Ranks
from tests.trainer.multi_rank import Numbered, Stream, numbered, run_of


def evaluated(
    n: int, size: int, sampler: bool, microbatch: int | None, subset: int = -1, fsdp: bool = False
) -> dict[str, Any]:
    """The values of an evaluation and what callbacks saw of it."""
    data = Numbered(n, torch.float32, classes=True)
    more = {"sampler": dist.get_sampler(data, shuffle=True)} if sampler else {}
    counts = At("eval_end", lambda state: (int(state.eval_timestamp.sample), int(state.dataloader_len)))
    recorder = Recorder()
    trainer, _ = run_of("classes", [], callbacks=[counts, recorder], parallelism_config={"fsdp": {}} if fsdp else None)
    loader = DataLoader(data, size, **more)
    trainer.eval(Evaluator(label="test", dataloader=loader, device_eval_microbatch_size=microbatch), subset)
    values = {name: value.item() for name, value in trainer.state.eval_metric_values.items()}
    trainer.close()
    return {"values": values, "counts": counts.found, "batches": recorder.events.count("eval_batch_end")}


@pytest.mark.parametrize("sampler", [False, True])
@pytest.mark.parametrize(("n", "size", "microbatch"), [(12, 3, None), (13, 3, 2), (1, 3, None), (7, 2, 1)])
def test_metrics_match_single_process(n, size, microbatch, sampler, two_ranks: Ranks) -> None:
    alone = evaluated(n, size, sampler, microbatch)
    steps = -(-n // (2 * size))
    for found in two_ranks.run(evaluated, n, size, sampler, microbatch):
        assert found["values"] == pytest.approx(alone["values"], rel=1e-6)
        assert alone["values"]
        assert found["counts"] == [(n, steps)]
        assert found["batches"] == steps


@pytest.mark.parametrize(("n", "size", "microbatch"), [(13, 3, 2), (1, 3, 1), (12, 3, None)])
def test_metrics_of_sharded_weights(n, size, microbatch, two_ranks: Ranks) -> None:
    """Each forward pass takes all processes, so those without a batch must not stay away."""
    alone = evaluated(n, size, False, microbatch)
    for found in two_ranks.run(evaluated, n, size, False, microbatch, -1, True):
        assert found["values"] == pytest.approx(alone["values"], rel=1e-6)
        assert found["counts"] == [(n, -(-n // (2 * size)))]


def test_subset_counts_steps(two_ranks: Ranks) -> None:
    alone = evaluated(12, 2, False, None, 4)
    for found in two_ranks.run(evaluated, 12, 2, False, None, 2):
        assert found["values"] == pytest.approx(alone["values"], rel=1e-6)
        assert found["counts"] == [(8, 2)]


def of_streams(counts: list[int]) -> tuple[float, int]:
    trainer, _ = run_of("regression", numbered(8, 2))
    seen = At("eval_end", lambda state: int(state.eval_timestamp.sample))
    trainer.state.callbacks.append(seen)
    trainer.eval(DataLoader(Stream(counts), batch_size=2))
    return trainer.state.eval_metric_values["MeanSquaredError"].item(), seen.found[0]


@pytest.mark.parametrize("counts", [(6, 3), (0, 5)])
def test_per_rank_data_of_different_lengths(counts, two_ranks: Ranks) -> None:
    trainer, _ = run_of("regression", numbered(8, 2))
    trainer.eval(DataLoader(Numbered(sum(counts)), batch_size=100))
    alone = trainer.state.eval_metric_values["MeanSquaredError"].item()
    for value, samples in two_ranks.run(of_streams, list(counts)):
        assert value == pytest.approx(alone, rel=1e-6)
        assert samples == sum(counts)


def while_training() -> tuple[list[Any], list[Any]]:
    """Evaluations in the middle of the epoch, where processes have different numbers of batches."""
    recorder = Recorder()
    trainer, watch = run_of(
        "regression", numbered(13, 3), eval_dataloader=numbered(7, 2), eval_interval="1ba", callbacks=[recorder]
    )
    trainer.fit()
    return recorder.events, [trainer.state.eval_metric_values["MeanSquaredError"].item(), *watch.losses]


def test_evaluations_while_training(two_ranks: Ranks) -> None:
    (events, values), (others, other_values) = two_ranks.run(while_training)
    assert events == others
    assert values == other_values
    alone = run_of("regression", numbered(13, 6), eval_dataloader=numbered(7, 2))
    alone[0].fit()
    assert values[1:] == pytest.approx(alone[1].losses)
    assert values[0] == pytest.approx(alone[0].state.eval_metric_values["MeanSquaredError"].item())


# ---------------------------------------------------------------------------------------------------- predictions


def predicted(n: int, size: int, **arguments: Any) -> list[torch.Tensor]:
    trainer, _ = run_of("regression", numbered(8, 2))
    found = trainer.predict(DataLoader(Numbered(n), batch_size=size), **arguments)
    trainer.close()
    return found


def _predicted(n: int, size: int, arguments: dict[str, Any]) -> list[torch.Tensor]:
    return predicted(n, size, **arguments)


@pytest.mark.parametrize(("n", "size"), [(12, 3), (13, 3), (1, 4), (300, 2)])
def test_predictions_come_in_order(n, size, two_ranks: Ranks) -> None:
    alone = predicted(n, size)
    for found in two_ranks.run(predicted, n, size):
        assert len(found) == len(alone)
        assert all(torch.equal(a, b) for a, b in zip(found, alone, strict=True))


def test_unused_and_partial_predictions(two_ranks: Ranks) -> None:
    assert two_ranks.run(_predicted, 9, 2, {"return_outputs": False}) == [[], []]
    assert [len(found) for found in two_ranks.run(_predicted, 9, 2, {"subset_num_batches": 2})] == [4, 4]


def of_own_data() -> list[float]:
    trainer, _ = run_of("regression", numbered(8, 2))
    rank = dist.get_global_rank()
    trainer.state.model.linear.weight.data.fill_(1.0)
    trainer.state.model.linear.bias.data.zero_()
    batches = [(torch.full((1, 4), 1.0 + rank + 10 * i, dtype=torch.float64), None) for i in range(3 - rank)]
    return [output.item() / 4 for output in trainer.predict(Unsized(batches))]


def test_predictions_of_per_rank_data_are_ordered_by_step_and_rank(two_ranks: Ranks) -> None:
    assert two_ranks.run(of_own_data) == [[1.0, 2.0, 11.0, 12.0, 21.0]] * 2
