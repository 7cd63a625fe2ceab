"""A resumed run splits its batches into the microbatches of the uninterrupted one, so that sums are rounded alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from composer import Callback, ComposerModel, Evaluator, Trainer, dist
from composer.algorithms import BatchSizeWarmup
from composer.checkpoint import save_checkpoint
from composer.core import microbatch_sizes as size_cache
from tests.common import At, trainer_of, weights
from tests.ranks import Ranks

STEPS = 8


class Limited(ComposerModel):
    """Runs out of memory with more than a number of values."""

    def __init__(self, most: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.scale, self.most = nn.Linear(1, 1), most

    def forward(self, batch):
        if batch[0].numel() > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return torch.tanh(self.scale(batch[0][..., None])).mean((1, 2))[:, None]

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs, batch[1])

    def get_metrics(self, is_train):
        from torchmetrics import MeanSquaredError

        return {} if is_train else {"MeanSquaredError": MeanSquaredError()}

    def update_metric(self, batch, outputs, metric):
        metric.update(outputs, batch[1])


class SaveEach(Callback):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def batch_checkpoint(self, state, logger) -> None:
        save_checkpoint(state, self.folder / "{batch}.pt")


def shaped(*shapes: tuple[int, int], seed: int = 0) -> list[Any]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(shape, generator=generator), torch.randn(shape[0], 1, generator=generator)) for shape in shapes
    ]


DATA: dict[str, list[Any]] = {
    "longer and shorter": shaped((6, 3), (6, 5), (6, 12), (6, 5), (6, 3)),
    "more and fewer samples": shaped((3, 4), (7, 4), (5, 4), (7, 4)),
}


def trained(data: list[Any], *callbacks: Callback, most: int = 40, **arguments: Any) -> tuple[Trainer, list[Any]]:
    """A trainer after training, and the size after each step."""
    sizes = At("batch_end", lambda state: state.device_train_microbatch_size)
    arguments = {"max_duration": f"{STEPS}ba", "device_train_microbatch_size": "auto", "seed": 3, **arguments}
    trainer = trainer_of(Limited(most), data, callbacks=[sizes, *callbacks], **arguments)
    trainer.fit()
    trainer.close()
    return trainer, sizes.found


@pytest.mark.parametrize("kind", DATA)
def test_batches_of_several_shapes(kind: str, tmp_path: Path) -> None:
    straight, sizes = trained(DATA[kind], SaveEach(tmp_path))
    assert len(set(sizes)) > 1
    for stop in range(1, STEPS):
        resumed, rest = trained(DATA[kind], load_path=str(tmp_path / f"{stop}.pt"))
        assert rest == sizes[stop:], stop
        assert torch.equal(weights(resumed), weights(straight)), stop


def test_batches_that_are_joined(tmp_path: Path) -> None:
    data = shaped(*[(4, 4)] * 20)
    straight, sizes = trained(data, SaveEach(tmp_path), algorithms=BatchSizeWarmup({"3ba": 2}))
    assert sizes == [4] * 3 + [8] * 5
    for stop in (2, 4):
        path = str(tmp_path / f"{stop}.pt")
        resumed, rest = trained(data, load_path=path, algorithms=BatchSizeWarmup({"3ba": 2}))
        assert (rest, torch.equal(weights(resumed), weights(straight))) == (sizes[stop:], True)


def test_larger_sizes_are_tried_in_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first step, another program had the memory."""
    monkeypatch.setattr(size_cache, "_PATIENCE", 3)
    data = shaped((8, 4))

    def freed(state: Any) -> None:
        state.model.most = 40 if state.timestamp.batch.value else 20

    straight, sizes = trained(data, At("batch_start", freed), SaveEach(tmp_path))
    assert sizes == [4, 4, 4, 8, 8, 8, 8, 8]
    for stop in (1, 2, 3):
        resumed, rest = trained(data, load_path=str(tmp_path / f"{stop}.pt"))
        assert (rest, torch.equal(weights(resumed), weights(straight))) == (sizes[stop:], True)


def test_sizes_given_to_fit(tmp_path: Path) -> None:
    data = DATA["more and fewer samples"]

    def run(*callbacks: Callback, **arguments: Any) -> tuple[Trainer, list[Any]]:
        sizes = At("batch_end", lambda state: state.device_train_microbatch_size)
        trainer = trainer_of(Limited(40), data, callbacks=[sizes, *callbacks], max_duration="8ba", seed=3, **arguments)
        trainer.fit(device_train_microbatch_size="auto")
        return trainer, sizes.found

    straight, sizes = run(SaveEach(tmp_path))
    resumed, rest = run(load_path=str(tmp_path / "1.pt"))
    assert (rest, torch.equal(weights(resumed), weights(straight))) == (sizes[1:], True)


def test_a_number_is_not_replaced(tmp_path: Path) -> None:
    data = DATA["more and fewer samples"]
    trained(data, SaveEach(tmp_path))
    resumed, rest = trained(data, SaveEach(tmp_path), load_path=str(tmp_path / "4.pt"), device_train_microbatch_size=2)
    assert rest == [2] * 4
    assert "microbatch_sizes" not in torch.load(tmp_path / "8.pt", weights_only=True)["state"]
    resumed.close()


def test_sizes_of_evaluations(tmp_path: Path) -> None:
    """After the first evaluation has split what was too large, later ones split alike."""

    def evaluated(*callbacks: Callback, **arguments: Any) -> list[list[int]]:
        sizes: list[list[int]] = []
        begin = At("eval_start", lambda state: sizes.append([]))
        note = At("eval_after_forward", lambda state: sizes[-1].append(len(state.batch[0])))
        data = shaped((6, 10), (6, 10))
        evaluator = Evaluator(label="test", dataloader=data, eval_interval="2ba", device_eval_microbatch_size="auto")
        arguments = {"eval_dataloader": evaluator, "device_train_microbatch_size": None, **arguments}
        trained(shaped((2, 4)), begin, note, *callbacks, most=20, **arguments)
        return sizes

    straight = evaluated(SaveEach(tmp_path))
    assert straight == [[2, 1, 2, 1, 2, 2, 2], *[[2] * 6] * 3]
    assert evaluated(load_path=str(tmp_path / "5.pt")) == straight[2:]


def on_two(folder: str) -> list[bool]:
    shapes = [(4, 3), (8, 3), (4, 3)] if dist.get_global_rank() else [(4, 5), (4, 9), (4, 5)]
    data = shaped(*shapes, seed=dist.get_global_rank())
    straight, sizes = trained(data, SaveEach(Path(folder)), most=24, device="cpu")
    found: list[bool] = []
    for stop in (1, 2, 5):
        resumed, rest = trained(data, most=24, device="cpu", load_path=f"{folder}/{stop}.pt")
        found += [rest == sizes[stop:], torch.equal(weights(resumed), weights(straight))]
    return found


def test_each_rank_has_its_sizes(tmp_path: Path, two_ranks: Ranks) -> None:
    assert two_ranks.run(on_two, str(tmp_path)) == [[True] * 6] * 2
