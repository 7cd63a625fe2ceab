"""WorldResize: an epoch is resumed exactly with a different number of ranks."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from composer import ComposerModel, Trainer
from composer.loggers import InMemoryLogger
from composer.warnings import ComposerWarning
from tests.common import FEATURES, Regression, regression_data
from tests.parallel.matrix import STRATEGIES
from tests.ranks import Ranks
from tests.trainer.multi_rank import Numbered, Stream, flat, numbered, run_of, weights, whole

N = 53


def rank_samples(
    size: int, load: str | None, steps: int | None, save: str | None, arguments: dict[str, Any]
) -> dict[str, Any]:
    """Train some steps, or the rest of the epoch, from a checkpoint to the next."""
    with warnings.catch_warnings():
        # Random numbers, which this training does not need, cannot be those of another number of processes.
        warnings.simplefilter("ignore", ComposerWarning)
        loader = numbered(N, size, shuffle=True, drop_last=arguments.pop("drop_last", False))
        trainer, watch = run_of("regression", loader, load_path=load, **arguments)
        before = int(trainer.state.timestamp.batch)
        trainer.fit(duration=None if steps is None else f"{steps}ba")
    if save is not None:
        trainer.save_checkpoint(save)
    trainer.close()
    return {
        "numbers": watch.numbers,
        "weights": weights(trainer),
        "samples": int(trainer.state.timestamp.sample),
        "batches": int(trainer.state.timestamp.batch) - before,
        "epochs": int(trainer.state.timestamp.epoch),
        "losses": watch.losses,
    }


def chain(
    plan: list[tuple[int, int, int | None]], folder: Path, ranks: dict[int, Ranks], **arguments: Any
) -> list[list[dict[str, Any]]]:
    """Let one number of processes after the other train; the plan has the processes, batch size and steps of each."""
    found: list[list[dict[str, Any]]] = []
    path = None
    for number, (size, batch_size, steps) in enumerate(plan):
        save = None if steps is None else str(folder / f"{number}.pt")
        given = (batch_size, path, steps, save, dict(arguments))
        found.append([rank_samples(*given)] if size == 1 else ranks[size].run(rank_samples, *given))
        path = save
    return found


@pytest.fixture
def ranks(two_ranks: Ranks, four_ranks: Ranks) -> dict[int, Ranks]:
    return {2: two_ranks, 4: four_ranks}


@pytest.mark.parametrize(
    "plan",
    [
        [(2, 4, 3), (1, 8, None)],
        [(2, 4, 3), (4, 2, None)],
        [(1, 8, 2), (2, 4, None)],
        [(4, 2, 5), (2, 4, None)],
        [(2, 4, 1), (4, 2, 2), (1, 8, 1), (2, 4, None)],
        [(2, 4, 3), (2, 4, None)],
    ],
)
def test_WorldResize_weights_continue(plan, tmp_path, ranks) -> None:
    """With as many samples in a step as before, the steps are those of a run that no one stopped."""
    straight = rank_samples(8, None, None, None, {})
    found = chain(plan, tmp_path, ranks)
    assert {index for one in found for rank in one for step in rank["numbers"] for index in step} == set(range(N))
    for rank in found[-1]:
        assert (rank["samples"], rank["epochs"]) == (N, 1)
        torch.testing.assert_close(rank["weights"], straight["weights"], rtol=0, atol=1e-9)
    assert sum(one[0]["batches"] for one in found) == 7
    assert flat(one[0]["losses"] for one in found) == pytest.approx(straight["losses"])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("plan", [[(2, 4, 3), (1, 4, None)], [(2, 4, 3), (4, 4, None)], [(4, 3, 2), (2, 5, None)]])
def test_WorldResize_with_other_batches(plan, drop_last, tmp_path, ranks) -> None:
    """The samples of the epoch are exact all the same, and it ends when they are used up."""
    before, after = chain(plan, tmp_path, ranks, drop_last=drop_last, max_duration="2ep")
    done = plan[0][0] * plan[0][1] * plan[0][2]
    step = plan[1][0] * plan[1][1]
    rest, whole = N - done, N
    if drop_last:
        rest, whole = rest - rest % step, N - N % step
    for rank in after:
        assert rank["samples"] == done + rest + whole
        assert (rank["epochs"], rank["batches"]) == (2, -(-rest // step) + -(-whole // step))
    first = [index for rank in before for numbers in rank["numbers"] for index in numbers]
    steps = -(-rest // step)
    second = {index for rank in after for numbers in rank["numbers"][:steps] for index in numbers}
    assert (len(first), len(set(first))) == (done, done)
    assert not set(first) & second
    assert len(second) == rest


def streamed(load: str | None, save: str | None) -> torch.Tensor:
    """Each process has data of its own, of which it knows the place."""
    trainer, _ = run_of("regression", DataLoader(Stream([9, 6]), batch_size=2), load_path=load)
    trainer.fit(duration=None if save is None else "2ba")
    if save is not None:
        trainer.save_checkpoint(save)
    trainer.close()
    return weights(trainer)


def test_per_rank_data_resume_with_the_same_world_size(tmp_path, two_ranks: Ranks) -> None:
    straight = two_ranks.run(streamed, None, None)
    two_ranks.run(streamed, None, str(tmp_path / "half.pt"))
    resumed = two_ranks.run(streamed, str(tmp_path / "half.pt"), None)
    assert all(torch.equal(one, straight[0]) for one in resumed)
    with (
        warnings.catch_warnings(),
        pytest.raises(ValueError, match="saved by 2 ranks with separate data, but the run now has 1 rank"),
    ):
        warnings.simplefilter("ignore", ComposerWarning)
        streamed(str(tmp_path / "half.pt"), None)


def loaded_and_saved(load: str, save: str) -> None:
    trainer, _ = run_of("regression", numbered(N, 4, shuffle=True), load_path=load)
    trainer.save_checkpoint(save)
    trainer.close()


def test_position_that_was_not_resumed_is_kept(tmp_path, ranks) -> None:
    first = rank_samples(8, None, 3, str(tmp_path / "a.pt"), {})
    ranks[2].run(loaded_and_saved, str(tmp_path / "a.pt"), str(tmp_path / "b.pt"))
    rest = rank_samples(8, str(tmp_path / "b.pt"), None, None, {})
    numbers = [index for step in first["numbers"] + rest["numbers"] for index in step]
    assert sorted(numbers) == list(range(N))


class Deep(Regression):
    """Layers of different sizes, for buckets that contain more than one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Sequential(nn.Linear(FEATURES, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def continued(load: str | None, save: str | None, arguments: dict[str, Any]) -> dict[str, Tensor]:
    """Train two batches and save, or the rest of the epoch, with sums over ranks that round."""
    torch.manual_seed(5)
    model: ComposerModel = Deep()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(Numbered(48, torch.float32), batch_size=2),
        max_duration="1ep",
        optimizers=torch.optim.AdamW(model.parameters(), lr=0.01),
        load_path=load,
        seed=7,
        progress_bar=False,
        **arguments,
    )
    trainer.fit(duration="2ba" if save is not None else None)
    if save is not None:
        trainer.save_checkpoint(save)
    trainer.close()
    return {name: whole(value).clone() for name, value in trainer.state.model.state_dict().items()}


@pytest.mark.parametrize(
    "arguments",
    [
        *STRATEGIES.values(),
        {"find_unused_parameters": True},
        {"ddp_sync_strategy": "forced_sync"},
        {"ddp_sync_strategy": "multi_auto_sync", "device_train_microbatch_size": 1},
    ],
    ids=[*STRATEGIES, "unused parameters", "forced_sync", "multi_auto_sync"],
)
def test_resuming_is_exact_with_four_ranks(arguments, tmp_path, four_ranks: Ranks) -> None:
    """A sum of more than two numbers is rounded by its order, which must not depend on the place in the run."""
    straight = four_ranks.run(continued, None, None, arguments)
    four_ranks.run(continued, None, str(tmp_path / "half.pt"), arguments)
    resumed = four_ranks.run(continued, str(tmp_path / "half.pt"), None, arguments)
    for found, expected in zip(resumed, straight, strict=True):
        assert all(torch.equal(found[name], value) for name, value in expected.items())


class Adversarial(Regression):
    """Has a loss of the generator in every third batch only, from the first on."""

    def loss(self, outputs, batch):
        losses = {"critic": super().loss(outputs, batch[1:])}
        if int(batch[0][0]) % 3 == 0:
            losses["generator"] = losses["critic"] * 2
        return losses

    def forward(self, batch):
        return super().forward(batch[1:])


def logged_losses(load: str | None, save: str | None) -> dict[int, float]:
    torch.manual_seed(5)
    model, log = Adversarial(), InMemoryLogger()
    trainer = Trainer(
        model=model,
        train_dataloader=[[torch.full((2,), i), *batch] for i, batch in enumerate(regression_data(8))],
        max_duration="1ep",
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        load_path=load,
        loggers=log,
        progress_bar=False,
    )
    trainer.fit(duration="2ba" if save is not None else None)
    if save is not None:
        trainer.save_checkpoint(save)
    trainer.close()
    return {int(time.batch): float(value) for time, value in log.data["loss/train/generator"]}


def test_a_loss_that_was_known_before_the_checkpoint_misses_no_value(tmp_path, two_ranks: Ranks) -> None:
    straight = two_ranks.run(logged_losses, None, None)
    before = two_ranks.run(logged_losses, None, str(tmp_path / "half.pt"))
    after = two_ranks.run(logged_losses, str(tmp_path / "half.pt"), None)
    assert [*straight[0]] == [0, 3, 6]
    assert [one | other for one, other in zip(before, after, strict=True)] == straight
