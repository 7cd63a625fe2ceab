"""Replicas that train apart resume bit for bit, in the middle of a round too, and on other numbers of ranks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import dist
from composer.algorithms import EMA, DiLoCo, LocalSGD, SpikeSkip, ZClip
from composer.core.replicas import Replicas
from tests.algorithms.low_communication import (
    Seen,
    differing,
    fitted,
    samples,
    trainer_with,
    weights_now,
)
from tests.common import trainer_of
from tests.ranks import Ranks

METHODS: dict[str, Callable[[], Any]] = {
    "diloco": lambda: DiLoCo(3),
    "int8": lambda: DiLoCo(3, compression="int8"),
    "local sgd": lambda: LocalSGD(3),
    "by epochs": lambda: DiLoCo("1ep"),
    "groups": lambda: DiLoCo(3, replica_size=2),
    "others": lambda: [ZClip(warmup_steps=2, z_threshold=0.1), DiLoCo(3), EMA("6ba", None, "3ba", "3ba")],
    "overlap": lambda: DiLoCo(3, overlap=2),
    "overlap by epochs": lambda: LocalSGD("1ep", overlap=3),
    "overlap in groups": lambda: DiLoCo(3, compression="int8", replica_size=2, overlap=1),
    "overlap with averages": lambda: [EMA("6ba", None, "3ba", "3ba"), DiLoCo(3, overlap=2)],
    "spikes": lambda: [DiLoCo(3), SpikeSkip(window=4, num_std=0.5)],
}


def saved_and_resumed(folder: str, method: str, steps: int, stop: int, saving: dict[str, Any]) -> list[Any]:
    """The weights of this rank after a run, and after one that was resumed after some steps."""
    arguments = {
        "max_duration": f"{steps}ba",
        "run_name": "run",
        "save_folder": folder,
        "save_interval": "1ba",
        **saving,
    }
    seen = Seen()
    whole = trainer_with(METHODS[method](), callbacks=seen, **arguments)
    expected = fitted(whole)
    again = Seen()
    resumed = trainer_with(
        METHODS[method](), callbacks=again, max_duration=f"{steps}ba", load_path=f"{folder}/ba{stop}.pt"
    )
    found = fitted(resumed)
    return [expected, found, seen.after_batch[stop:], again.after_batch, seen.losses[stop:], again.losses]


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 6, 7])
@pytest.mark.parametrize("save_async", [False, True], ids=["blocking", "asynchronous"])
def test_resumes_bit_for_bit_anywhere(two_ranks: Ranks, tmp_path: Path, stop: int, save_async: bool) -> None:
    saving = {"save_filename": "ba{batch}.pt", "save_async": save_async}
    check(two_ranks.run(saved_and_resumed, str(tmp_path), "diloco", 8, stop, saving))


@pytest.mark.parametrize("stop", range(3, 8))
@pytest.mark.parametrize("save_async", [False, True], ids=["blocking", "asynchronous"])
def test_resumes_bit_for_bit_while_an_average_is_pending(
    two_ranks: Ranks, tmp_path: Path, stop: int, save_async: bool
) -> None:
    saving = {"save_filename": "ba{batch}.pt", "save_async": save_async}
    check(two_ranks.run(saved_and_resumed, str(tmp_path), "overlap", 9, stop, saving))
    pending = torch.load(tmp_path / f"ba{stop}.pt", weights_only=True)["state"]["algorithms"][0][1]["pending"]
    assert (pending is not None) == (stop in (3, 4, 6, 7))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("stop", [2, 9])
def test_each_method_resumes_bit_for_bit(four_ranks: Ranks, tmp_path: Path, method: str, stop: int) -> None:
    saving = {"save_filename": "ba{batch}.pt"}
    check(four_ranks.run(saved_and_resumed, str(tmp_path), method, 11, stop, saving))


def check(results: list[list[Any]]) -> None:
    for expected, found, after_batch, again, losses, other_losses in results:
        assert len(after_batch) == len(again) > 0
        assert losses == other_losses
        for one, other in zip(after_batch, again, strict=True):
            assert not list(differing(one, other))
        assert not list(differing(expected, found))
    first, *others = results
    for other in others:
        assert not list(differing(first[1], other[1]))


def save_within_a_round(folder: str, replica_size: int, overlap: int = 0) -> list[Any]:
    trainer = trainer_with(
        DiLoCo(3, replica_size=replica_size, overlap=overlap),
        max_duration="5ba",
        callbacks=(seen := Seen()),
        run_name="run",
        save_folder=folder,
        save_filename="ba{batch}.pt",
        save_interval="1ba",
    )
    fitted(trainer)
    return seen.after_batch


def test_checkpoint_has_the_synchronized_weights_and_those_of_each_replica(four_ranks: Ranks, tmp_path: Path) -> None:
    first, _, third, _ = four_ranks.run(save_within_a_round, str(tmp_path), 2)
    state = torch.load(tmp_path / "ba4.pt", weights_only=True)["state"]
    assert not list(differing(state["model"], first[2]))
    assert len(state["replicas"]) == 2
    assert not list(differing(state["replicas"][0]["model"], first[3]))
    assert not list(differing(state["replicas"][1]["model"], third[3]))
    assert list(differing(first[3], third[3]))
    assert "optimizers" not in state["replicas"][0]
    moments = [state["optimizers"]["AdamW"], state["replicas"][1]["optimizers"]["AdamW"]]
    one, other = (each["state"]["first.weight"]["exp_avg"] for each in moments)
    assert not torch.equal(one, other)
    # At a synchronization the weights are those of the model.
    state = torch.load(tmp_path / "ba3.pt", weights_only=True)["state"]
    assert not list(differing(state["model"], third[2]))
    assert [sorted(one) for one in state["replicas"]] == [[], ["optimizers"]]


def resumed_weights(path: str, algorithm: Any, **more: Any) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = trainer_with(algorithm, load_path=path, **more)
    found = weights_now(trainer.state)
    trainer.close()
    return found


def test_checkpoint_in_a_window_has_the_average_and_the_weights_that_are_evaluated(
    two_ranks: Ranks, tmp_path: Path
) -> None:
    (first, second) = two_ranks.run(save_within_a_round, str(tmp_path), 1, 2)
    states = [torch.load(tmp_path / f"ba{step}.pt", weights_only=True)["state"] for step in (3, 4)]
    for step, state in zip((3, 4), states, strict=True):
        assert not list(differing(state["model"], states[0]["model"]))
        for replica, weights in zip(state["replicas"], (first, second), strict=True):
            assert not list(differing(replica["model"], weights[step - 1]))
        outer = state["algorithms"][0][1]["pending"]["outer"]["first.weight"]
        mean = (first[2]["first.weight"] + second[2]["first.weight"]) / 2
        torch.testing.assert_close(outer, state["model"]["first.weight"] - mean)


def on_two_ranks(path: str) -> dict[str, torch.Tensor]:
    return resumed_weights(path, DiLoCo(3))


def test_other_numbers_of_replicas_resume_from_the_average(four_ranks: Ranks, two_ranks: Ranks, tmp_path: Path) -> None:
    each = four_ranks.run(save_within_a_round, str(tmp_path), 1)
    mean = {name: torch.stack([one[3][name].double() for one in each]).mean(0) for name in each[0][3]}
    path = str(tmp_path / "ba4.pt")
    found = [*two_ranks.run(on_two_ranks, path), resumed_weights(path, None), resumed_weights(path, DiLoCo(3))]
    for one in found:
        for name, value in one.items():
            if value.is_floating_point():
                torch.testing.assert_close(value, mean[name].float())
    with pytest.warns(UserWarning, match=r"saved by 4 replicas, but there is now 1: .*average"):
        trainer_with(None, load_path=path).close()
    # Only weights: the synchronized ones.
    only = resumed_weights(path, None, load_weights_only=True)
    assert not list(differing(only, each[0][2]))


def continue_elsewhere(path: str, overlap: int = 0) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = trainer_with(
            DiLoCo(3, overlap=overlap), load_path=path, max_duration="8ba", callbacks=(seen := Seen())
        )
        fitted(trainer)
    return seen.after_batch


def test_training_continues_on_another_number_of_replicas(four_ranks: Ranks, two_ranks: Ranks, tmp_path: Path) -> None:
    four_ranks.run(save_within_a_round, str(tmp_path), 1)
    first, second = two_ranks.run(continue_elsewhere, str(tmp_path / "ba4.pt"))
    assert len(first) == 4
    assert [bool(list(differing(*pair))) for pair in zip(first, second, strict=True)] == [True, False, True, False]


def test_a_pending_average_is_applied_on_another_number_of_replicas(
    four_ranks: Ranks, two_ranks: Ranks, tmp_path: Path
) -> None:
    each = four_ranks.run(save_within_a_round, str(tmp_path), 1, 2)
    path = str(tmp_path / "ba4.pt")
    first, second = two_ranks.run(continue_elsewhere, path, 2)
    assert [bool(list(differing(*pair))) for pair in zip(first, second, strict=True)] == [True] * 3 + [False]
    # Also without the overlap, at the next step.
    plain, other = two_ranks.run(continue_elsewhere, path)
    assert [bool(list(differing(*pair))) for pair in zip(plain, other, strict=True)] == [True, False, True, False]
    # And without the method: the average of the weights.
    mean = torch.stack([one[3]["first.weight"].double() for one in each]).mean(0)
    torch.testing.assert_close(resumed_weights(path, None)["first.weight"], mean.float())
    assert len(continue_elsewhere(path, 2)) == 4


def test_ignored_entries_are_not_loaded_with_the_replicas(two_ranks: Ranks, tmp_path: Path) -> None:
    two_ranks.run(save_within_a_round, str(tmp_path), 1)
    for steps in two_ranks.run(steps_of_adam, str(tmp_path / "ba4.pt")):
        assert steps == ([], [4.0])


def steps_of_adam(path: str) -> tuple[list[float], list[float]]:
    found = []
    for ignore in (["state/optimizers*"], ["rng"]):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer = trainer_with(DiLoCo(3), load_path=path, load_ignore_keys=ignore)
        assert any("single replicas" in str(one.message) for one in caught) == (ignore != ["rng"])
        states = trainer.state.optimizers[0].state.values()
        found.append(sorted({float(state["step"]) for state in states}))
        trainer.close()
    return found[0], found[1]


def test_single_process_resumes_within_a_round(tmp_path: Path) -> None:
    check_single = saved_and_resumed(str(tmp_path), "diloco", 8, 4, {"save_filename": "ba{batch}.pt"})
    expected, found, after_batch, again, losses, other_losses = check_single
    assert not list(differing(expected, found))
    assert losses == other_losses
    assert len(after_batch) == len(again) == 4
    state = torch.load(tmp_path / "ba4.pt", weights_only=True)["state"]
    assert list(differing(state["model"], state["replicas"][0]["model"]))


def saved_while_evaluating(folder: str) -> list[Any]:
    seen, local = Seen(), []
    trainer = trainer_with(
        DiLoCo(3), max_duration="5ba", eval_dataloader=torch.utils.data.DataLoader(samples(), 3), eval_interval="4ba"
    )

    class Save(Seen):
        def batch_end(self, state: Any, logger: Any) -> None:
            local.append(weights_now(state))

        def eval_start(self, state: Any, logger: Any) -> None:
            trainer.save_checkpoint(f"{folder}/evaluating_at_{int(state.timestamp.batch)}.pt")

    trainer.state.callbacks.append(Save())
    trainer.fit()
    trainer.close()
    return [seen, local[3]]


def test_a_checkpoint_during_an_evaluation_has_the_weights_of_each_replica(two_ranks: Ranks, tmp_path: Path) -> None:
    (_, first), (_, second) = two_ranks.run(saved_while_evaluating, str(tmp_path))
    state = torch.load(tmp_path / "evaluating_at_4.pt", weights_only=True)["state"]
    assert not list(differing(state["replicas"][0]["model"], first))
    assert not list(differing(state["replicas"][1]["model"], second))


def test_tied_weights_are_saved_once_by_both_names() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    state = Replicas(synchronized=[(model[0].weight, torch.full((2, 2), 3.0))]).synchronized_state(model)
    assert state["0.weight"] is state["1.weight"]
    assert state["1.weight"].eq(3).all()


def test_runs_without_replicas_save_none(tmp_path: Path) -> None:
    trainer = trainer_of()
    assert dist.get_world_size() == 1
    trainer.save_checkpoint(str(tmp_path / "plain.pt"))
    assert "replicas" not in torch.load(tmp_path / "plain.pt", weights_only=True)["state"]
    trainer.close()


class RenamedDiLoCo(DiLoCo):
    """Its states are saved by another name."""


OTHERS: dict[str, Callable[[], Any]] = {
    "local sgd": lambda: LocalSGD(3),
    "subclass": lambda: RenamedDiLoCo(3),
    "overlap": lambda: LocalSGD(3, overlap=1),
}


def continued_with(path: str, other: str, **more: Any) -> list[Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = trainer_with(OTHERS[other](), load_path=path, max_duration="10ba", callbacks=(seen := Seen()), **more)
    begin = weights_now(trainer.state)
    end = fitted(trainer)
    return [begin, seen.after_batch, end, [str(one.message) for one in caught]]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("overlap", [0, 2])
def test_another_method_continues_a_round_from_the_average(
    two_ranks: Ranks, tmp_path: Path, other: str, overlap: int
) -> None:
    each = two_ranks.run(save_within_a_round, str(tmp_path), 1, overlap)
    mean = torch.stack([one[3]["first.weight"].double() for one in each]).mean(0).float()
    first, second = two_ranks.run(continued_with, str(tmp_path / "ba4.pt"), other)
    for begin, *_ in (first, second):
        torch.testing.assert_close(begin["first.weight"], mean)
    assert not list(differing(first[0], second[0]))
    assert not list(differing(first[2], second[2]))
    at_ends = [bool(list(differing(*pair))) for pair in zip(first[1], second[1], strict=True)]
    if other != "overlap":
        assert at_ends == [True, False, True, True, False, False]
    name = type(OTHERS[other]()).__name__
    assert [text for text in first[3] if f"without a state of {name} that could continue it" in text]
    assert not [text for text in second[3] if "replica" in text]


def test_without_the_saved_method_the_average_is_taken(two_ranks: Ranks, tmp_path: Path) -> None:
    """Such as of a checkpoint that was saved without the algorithms."""
    two_ranks.run(save_within_a_round, str(tmp_path), 1)
    content = torch.load(tmp_path / "ba4.pt", weights_only=True)
    del content["state"]["algorithms"]
    torch.save(content, tmp_path / "without.pt")
    first, second = two_ranks.run(resumed_with_the_same, str(tmp_path / "without.pt"))
    assert not list(differing(first, second))


def resumed_with_the_same(path: str) -> dict[str, torch.Tensor]:
    return resumed_weights(path, DiLoCo(3))
