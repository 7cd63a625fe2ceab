"""Training data on multiple ranks: each sample once, the same steps as one process, uneven inputs do not hang."""

from __future__ import annotations

import io
import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import dist
from tests.common import Received, Regression, Unsized, regression_data, trainer_of
from tests.ranks import Ranks
from tests.trainer.multi_rank import Numbered, Ragged, Stream, flat, numbered, run_of, weights

LENGTHS = [6, 1, 0, 3, 2, 6, 5, 0, 0, 4, 1, 2, 3]


def loader_of(kind: str, n: int, size: int, **more: Any) -> DataLoader[Any]:
    return DataLoader(Ragged(LENGTHS[:n]) if kind == "ragged" else Numbered(n), batch_size=size, **more)


def trained(kind: str, n: int, size: int, sampler: bool = False, **arguments: Any) -> dict[str, Any]:
    """What a run of two epochs did."""
    loader = loader_of(kind, n, size, shuffle=True)
    if sampler:
        data = loader.dataset
        loader = DataLoader(data, batch_size=size, sampler=dist.get_sampler(data, shuffle=True, seed=3))
    log = Received()
    trainer, watch = run_of(kind, loader, max_duration="2ep", loggers=log, **arguments)
    trainer.fit()
    return {
        "gradients": torch.stack(watch.gradients),
        "losses": watch.losses,
        "samples": watch.samples,
        "weights": weights(trainer),
        "length": int(trainer.state.dataloader_len),
        "log": log.series("metrics/train/MeanSquaredError"),
        "epochs": int(trainer.state.timestamp.epoch),
    }


@pytest.mark.parametrize(
    ("kind", "n", "size", "arguments"),
    [
        ("regression", 12, 3, {}),
        ("regression", 11, 3, {"device_train_microbatch_size": 2}),
        ("regression", 13, 3, {}),  # the last step has one sample, and one process has none
        ("regression", 13, 3, {"device_train_microbatch_size": 1, "ddp_sync_strategy": "multi_auto_sync"}),
        ("ragged", 12, 3, {}),
        ("ragged", 11, 3, {"device_train_microbatch_size": 1}),
        ("ragged", 13, 3, {"device_train_microbatch_size": 2, "ddp_sync_strategy": "forced_sync"}),
        ("regression", 13, 3, {"sampler": True}),
        ("regression", 13, 3, {"parallelism_config": {"fsdp": {}}}),
        ("ragged", 13, 3, {"parallelism_config": {"fsdp": {}}, "device_train_microbatch_size": 2}),
    ],
)
def test_AccumEquality_of_two_ranks(kind, n, size, arguments, two_ranks: Ranks) -> None:
    """Ragged token counts, padding, a last short batch: gradients, losses and counts are those of one process."""
    alone = trained(kind, n, 2 * size, sampler=arguments.get("sampler", False))
    for found in two_ranks.run(_trained, kind, n, size, arguments):
        torch.testing.assert_close(found["gradients"], alone["gradients"], rtol=0, atol=1e-6)
        torch.testing.assert_close(found["weights"], alone["weights"], rtol=0, atol=1e-9)
        assert found["losses"] == pytest.approx(alone["losses"], abs=1e-6)
        assert (found["samples"], found["length"], found["epochs"]) == (alone["samples"], alone["length"], 2)
        assert [step for step, _ in found["log"]] == [step for step, _ in alone["log"]]
        assert [x for _, x in found["log"]] == pytest.approx([x for _, x in alone["log"]], rel=1e-5)


def _trained(kind: str, n: int, size: int, arguments: dict[str, Any]) -> dict[str, Any]:
    with warnings.catch_warnings():
        # The outputs of the last layer are a view, which no one changes in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view", category=UserWarning)
        return trained(kind, n, size, **arguments)


# ------------------------------------------------------------------------------------------------ uneven data


def streamed(counts: list[int], epochs: int) -> Any:
    trainer, watch = run_of("regression", DataLoader(Stream(counts), batch_size=2), max_duration=f"{epochs}ep")
    trainer.fit()
    return watch.samples, watch.gradients, watch.numbers, int(trainer.state.timestamp.epoch)


@pytest.mark.parametrize("counts", [(6, 3), (1, 7), (4, 4), (5, 0)])
def test_per_rank_data_of_different_lengths(counts, two_ranks: Ranks) -> None:
    """Those that run out go along without counting, also one that never had a batch."""
    steps = -(-max(counts) // 2)
    for samples, gradients, numbers, epochs in two_ranks.run(streamed, list(counts), 2):
        assert epochs == 2
        assert len(samples) == 2 * steps
        assert samples[steps - 1] == sum(counts)
        assert samples[-1] == 2 * sum(counts)
        assert len(gradients) == 2 * steps
        assert all(numbers)
    # The gradient of a step in which one process has a batch is that of this batch.
    (_, gradients, numbers, *_), other = two_ranks.run(streamed, list(counts), 1)
    assert all(torch.equal(a, b) for a, b in zip(gradients, other[1], strict=True))
    data = Numbered(sum(counts))
    linear = torch.nn.Linear(4, 1, dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        linear.reset_parameters()
    for step in range(steps):
        taken = [
            index
            for rank, first in enumerate((0, counts[0]))
            for index in range(first + 2 * step, min(first + 2 * step + 2, first + counts[rank]))
        ]
        linear.zero_grad()
        torch.nn.functional.mse_loss(linear(data.x[taken]), data.y[taken]).backward()
        own = torch.cat([p.grad.flatten() for p in linear.parameters()])
        torch.testing.assert_close(gradients[step], own)
        with torch.no_grad():
            for parameter in linear.parameters():
                parameter -= 0.1 * parameter.grad


class Again(Regression):
    """Metrics of training come from a forward pass of their own."""

    def eval_forward(self, batch, outputs=None):
        return self(batch)


def measured(counts: list[int]) -> tuple[int, float]:
    model = Again(metrics=True, dtype=torch.float64)
    trainer = trainer_of(
        model,
        DataLoader(Stream(counts), batch_size=2),
        lr=0.0,
        parallelism_config={"fsdp": {}},
        device_train_microbatch_size=1,
    )
    trainer.fit()
    metric = trainer.state.train_metrics["MeanSquaredError"]
    return metric.update_count, float(metric.compute())


def test_rank_without_counted_samples_still_runs_forward_for_metrics(two_ranks: Ranks) -> None:
    """With sharded weights, other ranks wait for that."""
    (first, value), (second, other) = two_ranks.run(measured, [5, 2])
    assert (first, second) == (5, 2)
    assert value == other


def nothing() -> str:
    trainer, _ = run_of("regression", Unsized([]))
    with pytest.raises(ValueError, match="yielded no batch in epoch 0"):
        trainer.fit()
    trainer.close()
    return "told"


def test_no_data_on_any_rank_raises_on_all(two_ranks: Ranks) -> None:
    assert two_ranks.run(nothing) == ["told"] * 2


def lists(lengths: list[int], **arguments: Any) -> Any:
    data = [(x.double(), y.double()) for x, y in regression_data(lengths[dist.get_global_rank()])]
    trainer, watch = run_of("regression", data, max_duration="2ep", **arguments)
    length = int(trainer.state.dataloader_len)
    trainer.fit()
    return length, len(watch.losses), watch.samples[-1], int(trainer.state.timestamp.epoch)


def test_ranks_agree_on_the_epoch_length(two_ranks: Ranks) -> None:
    """Schedules go by it, so it has to be one."""
    assert two_ranks.run(lists, [3, 5]) == [(5, 10, 2 * (3 + 5) * 2, 2)] * 2


def subsets(arguments: dict[str, Any]) -> Any:
    trainer, watch = run_of("regression", numbered(13, 3, shuffle=True), **arguments)
    trainer.fit()
    return watch.samples, watch.numbers, int(trainer.state.dataloader_len)


def test_subsets_and_overfitting(two_ranks: Ranks) -> None:
    for samples, _, length in two_ranks.run(subsets, {"train_subset_num_batches": 2, "max_duration": "2ep"}):
        assert (samples, length) == ([6, 12, 18, 24], 2)
    # Three batches, of the last of which there is one sample, for one process.
    found = two_ranks.run(subsets, {"overfit_batches": 5, "max_duration": "2ep"})
    for samples, numbers, length in found:
        assert (samples, length) == ([6, 12, 13, 19, 25, 26], 3)
        assert numbers[:3] == numbers[3:]
    assert sorted(flat(found[0][1][:3] + found[1][1][:2])) == list(range(13))


def own_generators() -> list[list[int]]:
    generator = torch.Generator().manual_seed(dist.get_global_rank())
    trainer, watch = run_of("regression", numbered(8, 2, shuffle=True, generator=generator))
    trainer.fit()
    return watch.numbers


def test_different_generators_give_one_order(two_ranks: Ranks) -> None:
    found = two_ranks.run(own_generators)
    assert sorted(flat(found[0] + found[1])) == list(range(8))


def interval_of_metrics() -> list[int]:
    """Only rank 0 has loggers, which look at every third step."""
    logs = [Received(flush_interval=3)] if dist.get_global_rank() == 0 else []
    trainer, _ = run_of("regression", numbered(28, 2), loggers=logs)
    trainer.fit()
    return [step for step, _ in logs[0].series("metrics/train/MeanSquaredError")] if logs else []


def test_metrics_are_computed_on_all_ranks_if_one_reads_them(two_ranks: Ranks) -> None:
    assert two_ranks.run(interval_of_metrics) == [[2, 5, 7], []]


def shown() -> str:
    stream = io.StringIO()
    trainer, _ = run_of("regression", numbered(28, 2), max_duration="3ba", log_to_console=True, console_stream=stream)
    trainer.fit()
    return stream.getvalue()


def test_summary_within_an_epoch_has_metrics_of_all_ranks(two_ranks: Ranks) -> None:
    """One process shows it, and computes nothing alone for it."""
    first, _ = two_ranks.run(shown)
    assert "train/MeanSquaredError" in first.rpartition("trained")[2]
