"""All ranks stop after the same step if any of them requests it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Callback, dist
from composer.callbacks import EarlyStopper, NaNMonitor, ThresholdStopper
from composer.loggers import CSVLogger, InMemoryLogger
from tests.common import Regression, regression_data, trainer_of
from tests.ranks import Ranks


class AskToStop(Callback):
    """Asks to stop at an event, when so many batches are done; in one process only unless all are to ask."""

    def __init__(self, event: str, batch: int, rank: int | None, everywhere: bool = False) -> None:
        self.event, self.batch, self.rank, self.everywhere = event, batch, rank, everywhere

    def run_event(self, event, state, logger):
        mine = self.rank is None or self.rank == dist.get_global_rank()
        if mine and event == self.event and state.timestamp.batch == self.batch:
            state.stop_training(everywhere=self.everywhere)


def ends(cases: list[tuple[str, tuple[Any, ...]]]) -> list[tuple[int, int]]:
    """Train 3 epochs of 4 batches, however these are counted; return where each training ended, in batches, epochs."""
    found: list[tuple[int, int]] = []
    for duration, asked in cases:
        with trainer_of(max_duration=duration, callbacks=AskToStop(*asked)) as trainer:
            trainer.fit()
            assert trainer.state.finished
            found.append((trainer.state.timestamp.batch.value, trainer.state.timestamp.epoch.value))
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_stop_request_of_one_rank_reaches_all_with_the_next_batch(rank: int, two_ranks: Ranks) -> None:
    cases = [
        # Requested after the second batch, reduced with the third.
        ("3ep", ("batch_end", 2, rank)),
        ("12ba", ("batch_end", 2, rank)),
        ("48sp", ("batch_end", 2, rank)),
        # Requested during the third, which has been reduced already.
        ("3ep", ("before_forward", 2, rank)),
        ("3ep", ("fit_start", 0, rank)),
        # Requested after the last batch of an epoch, reduced with the first of the next.
        ("3ep", ("batch_end", 4, rank)),
        ("3ep", ("epoch_end", 4, rank)),
        # Said too late to matter.
        ("3ep", ("batch_end", 12, rank)),
    ]
    expected = [(3, 0), (3, 0), (3, 0), (4, 1), (1, 0), (5, 1), (5, 1), (12, 3)]
    assert two_ranks.run(ends, cases) == [expected] * 2


def test_identical_requests_stop_like_a_single_process(two_ranks: Ranks) -> None:
    cases = [
        ("3ep", ("batch_end", 2, None, True)),
        ("3ep", ("before_forward", 2, None, True)),
        ("3ep", ("epoch_end", 4, None, True)),
    ]
    expected = [(2, 0), (3, 0), (4, 1)]
    assert ends(cases) == expected
    assert two_ranks.run(ends, cases) == [expected] * 2


def test_single_process_does_not_communicate() -> None:
    assert ends([("3ep", ("batch_end", 2, None)), ("3ep", ("fit_start", 0, None))]) == [(2, 0), (0, 0)]


def asked_at_the_end() -> tuple[int, int]:
    """A wish that comes with the last batch ends that training, not the next."""
    with trainer_of(max_duration="4ba", callbacks=AskToStop("batch_end", 4, 1)) as trainer:
        trainer.fit()
        first = trainer.state.timestamp.batch.value
        trainer.fit(duration="3ba")
        return first, trainer.state.timestamp.batch.value


def test_stop_request_does_not_outlive_fit(two_ranks: Ranks) -> None:
    assert two_ranks.run(asked_at_the_end) == [(4, 7)] * 2


def local_data(batches: list[Any]) -> list[Any]:
    rank, size = dist.get_global_rank(), dist.get_world_size()
    return [tuple(part[rank::size] for part in batch) for batch in batches]


def stopped_by(kind: str) -> tuple[int, float]:
    """Train until a metric over all data says to stop; return when, and the metric."""
    torch.manual_seed(0)
    stoppers: dict[str, Any] = {
        "early": lambda: EarlyStopper("MeanSquaredError", "train", "less", min_delta=0.3, patience=1),
        "threshold": lambda: ThresholdStopper("MeanSquaredError", "train", 0.5, comp="less"),
        "threshold on batch": lambda: ThresholdStopper("MeanSquaredError", "train", 2, comp="less", stop_on_batch=True),
        "early on eval": lambda: EarlyStopper("MeanSquaredError", "eval", "less", min_delta=0.3, patience=1),
    }
    batches = local_data(regression_data(4, 8))
    with trainer_of(
        Regression(metrics=True),
        batches,
        max_duration="30ep",
        eval_dataloader=batches,
        callbacks=stoppers[kind](),
    ) as trainer:
        trainer.fit()
        value = trainer.state.eval_metrics["eval"]["MeanSquaredError"].compute()
        return trainer.state.timestamp.batch.value, float(value)


@pytest.mark.parametrize("kind", ["early", "threshold", "threshold on batch", "early on eval"])
def test_metrics_stop_multiple_ranks_as_they_stop_one(kind: str, two_ranks: Ranks) -> None:
    batches, value = stopped_by(kind)
    assert batches < 100
    assert two_ranks.run(stopped_by, kind) == [(batches, pytest.approx(value, rel=1e-4))] * 2


def stopped_on_uneven_data() -> int:
    """Look at a metric after each batch, though one process has a batch in the first step of an epoch only."""
    torch.manual_seed(0)
    batches = regression_data(4, 4, seed=dist.get_global_rank())[: 4 - 3 * dist.get_global_rank()]
    stopper = ThresholdStopper("MeanSquaredError", "train", 1, comp="less", stop_on_batch=True)
    with trainer_of(Regression(metrics=True), batches, max_duration="30ep", callbacks=stopper) as trainer:
        trainer.fit()
        return trainer.state.timestamp.batch.value


def test_metrics_of_uneven_data_stop_all_ranks_at_the_same_batch(two_ranks: Ranks) -> None:
    first, second = two_ranks.run(stopped_on_uneven_data)
    assert first == second < 120


def broken_on_one(rank: int) -> tuple[str, int]:
    """Train on data of which one process has a batch with a NaN, the third."""
    batches = regression_data(4, 4)
    if dist.get_global_rank() == rank:
        batches[2][0][0, 0] = torch.nan
    with trainer_of(data=batches, callbacks=NaNMonitor()) as trainer:
        with pytest.raises(RuntimeError, match="is NaN") as caught:
            trainer.fit()
        return str(caught.value)[:38], trainer.state.timestamp.batch.value


@pytest.mark.parametrize("rank", [0, 1])
def test_nan_on_one_rank_stops_all_at_the_same_batch(rank: int, two_ranks: Ranks) -> None:
    assert two_ranks.run(broken_on_one, rank) == [("The loss of batch 2 (epoch 0) is NaN. ", 3)] * 2


COLLECTIVES = ("all_reduce", "all_gather", "all_gather_object", "broadcast", "broadcast_object_list", "barrier")


class Fails(Callback):
    """Raises in the third batch, in the middle of it, and notes what its process asks of others from then on."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch, self.asked = patch, []

    def before_forward(self, state, logger):
        if state.timestamp.batch == 2:
            for name in (
                "all_reduce",
                "all_gather",
                "all_gather_object",
                "broadcast",
                "broadcast_object_list",
                "barrier",
            ):
                self.patch.setattr(torch.distributed, name, lambda *_, _name=name, **__: self.asked.append(_name))
            raise RuntimeError("stop here")


def failing(folder: str) -> tuple[list[str], int]:
    """Fail with all that could want others on the way out; return what was wanted, and the number of files."""
    with pytest.MonkeyPatch.context() as patch:
        fails = Fails(patch)
        with (
            pytest.raises(RuntimeError, match="stop here"),
            trainer_of(
                Regression(metrics=True),
                callbacks=fails,
                loggers=[InMemoryLogger(), CSVLogger(f"{folder}/{{rank}}.csv")],
                save_folder=folder,
                save_interval="1ba",
                save_on_exception=True,
                eval_dataloader=regression_data(2),
            ) as trainer,
        ):
            trainer.fit()
    return fails.asked, len(list(Path(folder).glob("exception-*")))


def test_failing_rank_does_not_wait(two_ranks: Ranks, tmp_path: Path) -> None:
    # Both fail in the same place, or one would be left waiting here.
    assert two_ranks.run(failing, str(tmp_path)) == [([], 0)] * 2
    assert len(list(tmp_path.glob("*.csv"))) == 2
