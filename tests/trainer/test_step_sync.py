"""Per-step all-reduce of counts, loss weights and losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from composer import Callback, dist
from composer.loggers import InMemoryLogger
from composer.trainer.step_sync import BatchWeight, StepCounts, StepSync
from tests.ranks import Ranks
from tests.trainer.multi_rank import Numbered, run_of


def reduce_counts() -> tuple[tuple[int, int, float, int | None], dict[str, float], bool]:
    rank, step_sync = dist.get_global_rank(), StepSync()
    step_sync.send_counts(8 - 3 * rank, 100 * rank, 0.5 + rank, 15 if rank else None)
    counts = step_sync.counts()
    assert step_sync.counts() is counts, "a second call returns the same result"
    sent = {"a": torch.tensor(float(rank)), "b": torch.tensor(2.0, dtype=torch.float64)}
    step_sync.send_losses(sent)
    losses = step_sync.averages(sent)
    step_sync.send_losses(sent)
    replaced = {"c": torch.tensor(3.0)}
    return (
        (counts.samples, counts.tokens, counts.seconds, counts.signum),
        {name: loss.item() for name, loss in losses.items()},
        step_sync.averages(replaced) == replaced,
    )


def test_all_ranks_get_the_same_counts(two_ranks: Ranks) -> None:
    assert two_ranks.run(reduce_counts) == [((13, 100, 1.0, 15), {"a": 0.5, "b": 2.0}, True)] * 2


def averaged(steps: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    """The averages of the losses that each rank has in each step."""
    rank, step_sync = dist.get_global_rank(), StepSync()
    found: list[dict[str, float]] = []
    for step in steps:
        step_sync.send_counts(1, 0, 0.0, None)
        # Of another dtype on each rank, as of models that compute some losses in float64.
        dtype = torch.float64 if rank else torch.float32
        sent = {name: torch.tensor(value, dtype=dtype) for name, value in step[rank].items()}
        step_sync.counts()
        step_sync.send_losses(sent)
        found.append({name: loss.item() for name, loss in step_sync.averages(sent).items()})
    return found


def test_losses_are_averaged_by_name_where_ranks_have_different_ones(two_ranks: Ranks) -> None:
    steps = [
        [{"a": 1.0, "x": 2.0, "y": 4.0}, {"y": 8.0, "a": 3.0}],
        [{"a": 1.0}, {"a": 3.0, "y": 8.0}],
        [{"a": 1.0}, {"a": 3.0, "c": 6.0}],
        [{"a": 1.0}, {"a": 3.0, "c": 8.0}],
    ]
    one, two = two_ranks.run(averaged, steps)
    assert one[0] == two[0] == {"a": 2.0, "x": 1.0, "y": 6.0}
    # Only rank 0 has had x, which counts as 0; y is taken to be missing on all ranks.
    assert (one[1], two[1]) == ({"a": 2.0, "x": 0.0}, {"a": 2.0, "x": 0.0, "y": 4.0})
    assert one[2] == two[2] == {"a": 2.0, "x": 0.0}
    assert one[3] == two[3] == {"a": 2.0, "x": 0.0, "c": 4.0}


def test_losses_that_come_and_go_on_all_ranks(two_ranks: Ranks) -> None:
    critic, both = {"critic": 1.0}, {"critic": 1.0, "generator": 5.0}
    at_first = [[step] * 2 for step in (both, critic, both)]
    assert two_ranks.run(averaged, at_first) == [[both, critic, both]] * 2
    # It is new in the second step, and averaged from then on, though it is not there in the third.
    later = [[step] * 2 for step in (critic, both, critic, both, critic)]
    assert two_ranks.run(averaged, later) == [[critic, critic, critic, both, critic]] * 2


def test_a_loss_of_higher_precision_is_not_rounded(two_ranks: Ranks) -> None:
    assert two_ranks.run(later_in_float64) == [[False, True]] * 2


def later_in_float64() -> list[bool]:
    step_sync, exact = StepSync(), list[bool]()
    for dtype in (torch.float32, torch.float64, torch.float64):
        step_sync.send_counts(1, 0, 0.0, None)
        step_sync.counts()
        sent = {"a": torch.tensor(1 / 3, dtype=dtype)}
        step_sync.send_losses(sent)
        exact.append(step_sync.averages(sent)["a"].item() == 1 / 3)
    return exact[1:]


def unread_losses() -> tuple[dict[str, float], bool, bool]:
    rank, step_sync = dist.get_global_rank(), StepSync()
    kept = {"a": torch.tensor(float(rank))}
    step_sync.keep_losses({"a": torch.tensor(7.0)})
    step_sync.keep_losses(kept)
    found = step_sync.averages_of_unread(kept)
    again = step_sync.averages_of_unread(found) is found
    step_sync.keep_losses(kept)
    step_sync.discard()
    return {name: loss.item() for name, loss in found.items()}, again, step_sync.averages_of_unread(kept) is kept


def test_losses_that_nothing_reads_are_averaged_once_at_the_end(two_ranks: Ranks) -> None:
    assert two_ranks.run(unread_losses) == [({"a": 0.5}, True, True)] * 2


def summed(rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> StepCounts:
    """The counts of ranks that send these arguments of :meth:`.StepSync.send_counts`."""
    sums: list[torch.Tensor] = []
    monkeypatch.setattr("composer.trainer.step_sync.start_all_reduce", sums.append)
    for row in rows:
        StepSync().send_counts(**{"samples": 1, "tokens": 0, "seconds": 0.0, "signum": None, **row})
    return StepCounts(torch.stack(sums).sum(0), len(rows))


class AddLoss(Callback):
    """Adds an entry to the losses after they were sent to the other ranks."""

    def __init__(self, in_place: bool, value: Any) -> None:
        self.in_place, self.value = in_place, value

    def after_train_batch(self, state, logger):
        if self.in_place:
            state.total_loss_dict["loss/train/penalty"] = self.value
        else:
            state.total_loss_dict = {**state.total_loss_dict, "loss/train/penalty": self.value}


def run_with_a_penalty(is_logged: bool, in_place: bool, value: Any) -> tuple[list[float], list[float], float]:
    log = InMemoryLogger()
    loader = DataLoader(Numbered(16), batch_size=4 // dist.get_world_size())
    loggers = {"loggers": log} if is_logged else {}
    trainer, watch = run_of("regression", loader, callbacks=[AddLoss(in_place, value)], **loggers)
    if not is_logged:
        trainer.state.callbacks.remove(watch)
    trainer.fit()
    losses = [float(value) for _, value in log.data.get("loss/train/total", [])]
    penalties = [float(value) for _, value in log.data.get("loss/train/penalty", [])]
    trainer.close()
    assert float(trainer.state.total_loss_dict["loss/train/penalty"]) == 0.25
    return losses, penalties, float(trainer.state.total_loss_dict["loss/train/total"])


@pytest.mark.parametrize("value", [0.25, torch.tensor(0.25)], ids=["number", "tensor"])
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("is_logged", [True, False])
def test_a_loss_that_a_callback_adds_after_the_gradients_is_kept(is_logged, in_place, value, two_ranks: Ranks) -> None:
    alone = run_with_a_penalty(is_logged, in_place, value)
    assert alone[1] == [0.25] * 4 * is_logged
    for losses, penalties, last in two_ranks.run(run_with_a_penalty, is_logged, in_place, value):
        # The others are still averaged.
        assert losses == pytest.approx(alone[0])
        assert (penalties, last) == (alone[1], pytest.approx(alone[2]))


SIGNALS = st.none() | st.integers(1, 64)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "samples": st.integers(0, 2**20),
            "tokens": st.integers(0, 2**30),
            "signum": SIGNALS,
            "stop": st.booleans(),
            "has_batch": st.booleans(),
            "metrics_due": st.booleans(),
            "reads_losses": st.booleans(),
            "weight": st.none() | st.builds(BatchWeight, st.integers(0, 2**30), st.just(0), st.integers(0, 5)),
        }
    ),
    min_size=1,
    max_size=40,
)


@given(ROWS)
@settings(max_examples=60, deadline=None)
def test_one_vector_has_all_sums_flags_and_the_largest_signal(rows) -> None:
    with pytest.MonkeyPatch.context() as patch:
        counts = summed(rows, patch)
    assert counts.samples == sum(row["samples"] for row in rows)
    assert counts.tokens == sum(row["tokens"] for row in rows)
    assert counts.signum == max((row["signum"] for row in rows if row["signum"]), default=None)
    assert counts.stop == any(row["stop"] for row in rows)
    assert counts.num_with_batch == sum(row["has_batch"] for row in rows)
    assert counts.metrics_due == any(row["metrics_due"] for row in rows)
    assert counts.losses_read == any(row["reads_losses"] for row in rows)
    assert counts.weights_late == any(row["weight"] is None for row in rows)
    busy = [row["weight"] for row in rows if row["has_batch"]]
    assert counts.weight == sum(weight.count for weight in busy if weight)
    numbers = {weight.microbatches if weight else 0 for weight in busy}
    # Known only if every rank with a batch knows its number, and all are the same.
    assert counts.microbatches == (numbers.pop() if len(numbers) == 1 and numbers != {0} else None)


@given(st.lists(SIGNALS, min_size=1, max_size=8), st.sampled_from([1, 2, 1024, 2**14, 2**15 - 8]))
@settings(deadline=None)
def test_the_signal_of_up_to_32_thousand_ranks(signals, copies) -> None:
    """The largest, however many ranks received it."""
    sums = torch.zeros(14, dtype=torch.float64)
    largest = max((signal for signal in signals if signal), default=None)
    for signal in signals:
        sums[3] += 0.0 if signal is None else 2.0 ** (15 * signal)
    if largest is not None:
        sums[3] += (copies - 1) * 2.0 ** (15 * largest)
    assert StepCounts(sums, copies).signum == largest
