"""Evidence that a planted fault is real, without ``composer verify``: runs that should be equal, in this process."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from composer import Callback, DataSpec, Trainer, trees
from composer.trainer.overrides import TrainerOverrides, override_trainers
from tests.verification.parts import features

__all__ = ["DIFFERS", "Outcome", "differ_on_ranks", "on_rank", "run"]

STEPS, SAVED = 11, 7  # the checkpoint is in the middle of the second epoch of data with 48 rows

Make = Callable[[], Trainer]


class Watch(Callback):
    """Record the rows and losses of a run."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []
        self.losses: list[Tensor] = []

    def after_dataloader(self, state: Any, logger: Any) -> None:
        x = state.batch["input_ids"] if isinstance(state.batch, Mapping) else state.batch[0]
        self.rows.extend(x.clone().unbind())

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(state.total_loss_dict["loss/train/total"].clone())


class Outcome:
    """What a run came to.

    Attributes:
        trainer: The trainer.
        rows: All inputs that it trained on, in order.
        losses: The loss of each step.
        tensors: Parameters, buffers and tensors of the optimizer at the end.
    """

    def __init__(self, trainer: Trainer, watch: Watch) -> None:
        self.trainer, self.rows, self.losses = trainer, watch.rows, watch.losses
        model = trainer.state.model
        states = [optimizer.state_dict()["state"] for optimizer in trainer.state.optimizers]
        found = [*model.parameters(), *model.buffers(), *trees.leaves(states)]
        self.tensors = [each.detach().clone() for each in found if isinstance(each, Tensor)]
        # Values that are not finite differ from themselves.
        assert all(bool(each.isfinite().all()) for each in (*self.losses, *self.tensors) if each.is_floating_point())

    def equals(self, other: Outcome) -> bool:
        """Whether another run is the same bit for bit, as far as both have losses."""
        number = min(len(self.losses), len(other.losses))
        ours, theirs = [[*one.losses[len(one.losses) - number :], *one.tensors] for one in (self, other)]
        return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))

    def is_close(self, other: Outcome) -> bool:
        """Whether another run differs by rounding only."""
        return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(self.tensors, other.tensors, strict=True))


class _Changes(TrainerOverrides):
    """Replaces arguments of the trainer."""

    def __init__(self, watch: Watch, changes: dict[str, Any]) -> None:
        self.watch, self.changes = watch, changes

    def init(self, trainer: Trainer, init: Callable[..., None], arguments: dict[str, Any]) -> None:
        changed = {name: new(arguments) if callable(new) else new for name, new in self.changes.items()}
        arguments = {**arguments, **changed}
        init(**{**arguments, "callbacks": [*(arguments.get("callbacks") or []), self.watch]})


def run(make: Make, steps: int = STEPS, **changes: Any) -> Outcome:
    """Train for some steps with changed arguments; a change that is a function gets the program's arguments."""
    watch = Watch()
    with override_trainers(_Changes(watch, {"max_duration": f"{steps}ba", **changes})):
        trainer = make()
    if steps:
        trainer.fit()
    trainer.close()
    return Outcome(trainer, watch)


def _repeat(make: Make) -> bool:
    return not run(make).equals(run(make))


def _microbatches(make: Make) -> bool:
    return not run(make, 2).is_close(run(make, 2, device_train_microbatch_size=2))


def _without(**changes: Any) -> Callable[[Make], bool]:
    """Compare a run with one that lacks something."""
    return lambda make: not run(make).equals(run(make, **changes))


def _resume(make: Make) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        full = run(make, save_folder=folder, save_interval=f"{SAVED}ba", save_latest_filename=None)
        (path,) = [each for each in Path(folder).glob("*.pt") if f"ba{SAVED}-" in each.name]
        resumed = run(make, load_path=str(path))
    assert len(resumed.losses) == STEPS - SAVED
    return not full.equals(resumed)


def _checkpoint(make: Make) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        trained = run(make, 3, save_folder=folder, save_interval="3ba", save_latest_filename=None)
        (path,) = Path(folder).glob("*.pt")
        loaded = run(make, 0, max_duration="3ba", load_path=str(path))
    return not all(map(torch.equal, trained.tensors, loaded.tensors))


def _saving(make: Make) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        saves = run(make, save_folder=folder, save_interval=f"{SAVED}ba")
    return not saves.equals(run(make))


def _data(make: Make) -> bool:
    """Whether rows of an epoch repeat or are missing, are counted wrong, or are not what they were."""
    before = _stored(run(make, 1))
    outcome = run(make, max_duration="1ep")
    seen, there = _counted(outcome.rows), _counted(features())
    is_modified = len(before) != 0 and not all(map(torch.equal, before, _stored(outcome)))
    return seen != there or is_modified or outcome.trainer.state.timestamp.sample.value != len(outcome.rows)


def _stored(outcome: Outcome) -> list[Tensor]:
    """The tensors of the data set after a run."""
    dataset: Any = outcome.trainer.state.train_dataloader.dataset
    return [value.clone() for value in vars(dataset).values() if isinstance(value, Tensor)]


def _counted(rows: Any) -> Counter[tuple[float, ...]]:
    return Counter(tuple(row.tolist()) for row in rows)


def _with_workers(number: int) -> Callable[[Mapping[str, Any]], Any]:
    """Return a change of the number of loader workers."""

    def change(arguments: Mapping[str, Any]) -> DataLoader[Any]:
        given = arguments["train_dataloader"]
        assert not isinstance(given, DataSpec)
        stream = isinstance(given.dataset, torch.utils.data.IterableDataset)
        order = {"batch_size": given.batch_size} if stream else {"batch_sampler": given.batch_sampler}
        return DataLoader(given.dataset, collate_fn=given.collate_fn, num_workers=number, **order)

    return change


def _workers(make: Make) -> bool:
    found = [run(make, 4, train_dataloader=_with_workers(number)) for number in (0, 2)]
    return not found[0].equals(found[1])


def _precision(make: Make) -> bool:
    lower, full = run(make, 1, precision="amp_bf16").losses[0], run(make, 1, precision="fp32").losses[0]
    start, *trained = (
        list(run(make, steps, precision=precision).trainer.state.model.parameters())
        for steps, precision in ((0, "fp32"), (1, "amp_bf16"), (1, "fp32"))
    )
    changed = [torch.cat([(b - a).flatten() for a, b in zip(start, each, strict=True)]) for each in trained]
    differs = (changed[0] - changed[1]).norm() > 0.3 * changed[1].norm()
    return abs(lower / full - 1).item() > 0.02 or bool(differs)


DIFFERS: dict[str, Callable[[Make], bool]] = {
    "repeat": _repeat,
    "microbatches": _microbatches,
    "resume": _resume,
    "checkpoint": _checkpoint,
    "saving": _saving,
    "data": _data,
    "callbacks": _without(callbacks=None),
    "loggers": _without(loggers=None),
    "evaluation": _without(eval_interval=0),
    "methods": _without(algorithms=None),
    "compile": _without(compile_config=None),
    "workers": _workers,
    "precision": _precision,
}
"""Checks by name, each of which returns whether runs that should be equal differ."""


def on_rank(make: Make) -> dict[str, Any]:
    """Run an epoch on this rank; return what can be compared with the other rank."""
    outcome = run(make, max_duration="1ep")
    random = torch.get_rng_state().tolist()
    plain = run(make, max_duration="1ep", callbacks=None)
    state = outcome.trainer.state
    hidden = [value for module in state.model.modules() for value in trees.leaves(vars(module))]
    drawn = [vars(part)["drawn"] for part in (*state.model.modules(), *state.algorithms) if "drawn" in vars(part)]
    return {
        "tensors": [each.tolist() for each in outcome.tensors],
        "hidden": [value.tolist() for value in hidden if isinstance(value, Tensor)],
        "plain": [each.tolist() for each in plain.tensors],
        "rows": [tuple(row.tolist()) for row in outcome.rows],
        "random": random,
        "drawn": [value.tolist() for value in drawn],
    }


def differ_on_ranks(cause: str, ranks: list[dict[str, Any]]) -> bool:
    """Return whether the runs of two ranks show a cause."""
    first, second = ranks
    if cause == "ranks_diverge":
        return first["tensors"] != second["tensors"] or first["hidden"] != second["hidden"]
    if cause == "repeated_samples":
        return bool(set(first["rows"]) & set(second["rows"]))
    if cause == "lost_samples":
        return set(_counted(features())) > set(first["rows"]) | set(second["rows"])
    if cause == "same_random_numbers_on_ranks":
        return first["random"] == second["random"] or first["drawn"] == second["drawn"] != []
    return first["tensors"] != first["plain"]  # gradients that a callback reduces again
