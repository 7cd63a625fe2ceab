"""Blame: planted bad rows are named first, over models, methods, ragged tokens, ranges of steps and two ranks."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import ComposerModel, Trainer
from composer.algorithms import GhostBatchNorm, LabelSmoothing, MixUp, SelectiveBackprop
from composer.loggers import InMemoryLogger
from composer.models import ComposerClassifier
from composer.trainer.blame import blame_next_steps
from composer.trainer.blame_report import Blame
from composer.trainer.row_ranking import robust_z
from tests.common import weights_of

CLASSES, SAMPLES, BATCH, FIRST = 4, 96, 16, 48


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, CLASSES))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))


def cnn() -> nn.Module:
    head = (nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES))
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), *head)


def samples(is_image: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of four classes that are easy to tell apart."""
    generator = torch.Generator().manual_seed(5)
    y = torch.randint(CLASSES, (SAMPLES,), generator=generator)
    if not is_image:
        x = torch.randn(SAMPLES, 6, generator=generator) * 0.4
        x[torch.arange(SAMPLES), y] += 2
        return x, y
    x = torch.randn(SAMPLES, 1, 8, 8, generator=generator) * 0.3
    for image, label in zip(x, y.tolist(), strict=True):
        image[0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 1.5
    return x, y


def plant(x: torch.Tensor, y: torch.Tensor, row: int, fault: str) -> None:
    """Damage a row in place."""
    if fault == "label":
        y[row] = (y[row] + 1) % CLASSES
    elif fault == "huge":
        x[row] *= 1000
    elif fault == "constant":
        x[row] = 0.5
    else:
        x[row].view(-1)[1] = float(fault)


def trained(make, algorithms=(), seed: int = 1, **arguments) -> tuple[Trainer, torch.Tensor, torch.Tensor]:
    """A trainer after some epochs on sound data; its dataset can be edited in place."""
    torch.manual_seed(seed)
    model = ComposerClassifier(make(), num_classes=CLASSES)
    x, y = samples(is_image=make is cnn)
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True),
        algorithms=list(algorithms),
        max_duration="20ep",
        optimizers=torch.optim.Adam(model.parameters(), lr=0.02),
        progress_bar=False,
        seed=seed,
        **arguments,
    )
    trainer.fit(duration=f"{FIRST}ba")
    trainer.state.max_duration = "20ep"
    return trainer, x, y


PLANTED = [
    (mlp, "label", ()),
    (mlp, "inf", ()),
    (mlp, "nan", (MixUp(0.4),)),
    (mlp, "huge", (LabelSmoothing(0.1),)),
    (mlp, "constant", ()),
    (mlp, "label", (MixUp(0.4), LabelSmoothing(0.1))),
    (mlp, "label", (SelectiveBackprop(start=0.0, end=1.0, keep=0.5, interrupt=0),)),
    (batch_norm, "label", (LabelSmoothing(0.1),)),
    (batch_norm, "inf", ()),
    (batch_norm, "nan", ()),
    (batch_norm, "huge", ()),
    (batch_norm, "constant", (MixUp(0.4),)),
    (batch_norm, "huge", (GhostBatchNorm(8),)),
    (batch_norm, "label", (MixUp(0.4, interpolate_loss=True),)),
    (cnn, "label", ()),
    (cnn, "-inf", (MixUp(0.4),)),
    (cnn, "huge", (MixUp(0.4, interpolate_loss=True),)),
    (cnn, "constant", (LabelSmoothing(0.1),)),
]


@pytest.mark.parametrize(
    ("make", "fault", "algorithms"),
    PLANTED,
    ids=lambda value: "+".join(type(one).__name__ for one in value) if isinstance(value, tuple) else None,
)
def test_a_planted_row_is_named_first_in_an_epoch(make, fault, algorithms) -> None:
    trainer, x, y = trained(make, algorithms)
    bad = 46
    plant(x, y, bad, fault)
    found = blame_next_steps(trainer, SAMPLES // BATCH)
    first = found.rows[0]
    assert first.index == bad, found
    assert first.stands_out
    assert len(found.rows) == SAMPLES
    assert {row.index for row in found.rows} == set(range(SAMPLES))
    assert str(found).splitlines()[0] == f"Step {FIRST}: loss {found.steps[0].loss:.6g}, {BATCH} rows."


class Tokens(ComposerModel):
    """A small transformer that predicts the next token of ragged rows."""

    def __init__(self, vocabulary: int = 12, width: int = 16) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.1, batch_first=True)

    def forward(self, batch):
        size = batch["input_ids"].shape[1]
        causal = torch.ones(size, size, dtype=torch.bool).triu(1)
        return self.head(self.layer(self.embed(batch["input_ids"]), src_mask=causal))

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)


class Rows(torch.utils.data.Dataset):
    """Ragged rows that count upwards, padded in the batch."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(6)
        starts = torch.randint(12, (48,), generator=generator).tolist()
        lengths = torch.randint(4, 10, (48,), generator=generator).tolist()
        self.rows = [(torch.arange(n + 1) + start) % 12 for start, n in zip(starts, lengths, strict=True)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index]

    @staticmethod
    def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        def padded(parts: list[torch.Tensor], value: int) -> torch.Tensor:
            return nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=value)

        return {
            "input_ids": padded([row[:-1] for row in rows], 0),
            "attention_mask": padded([torch.ones_like(row[:-1]) for row in rows], 0),
            "labels": padded([row[1:] for row in rows], -100),
        }


@pytest.mark.parametrize(("microbatch_size", "fault"), [(None, "garbage"), (3, "constant")])
def test_garbage_tokens_are_named_first(microbatch_size, fault) -> None:
    torch.manual_seed(2)
    model, data = Tokens(), Rows()
    trainer = Trainer(
        model=model,
        train_dataloader=DataLoader(data, batch_size=8, shuffle=True, collate_fn=Rows.collate),
        max_duration="30ep",
        optimizers=torch.optim.Adam(model.parameters(), lr=0.01),
        device_train_microbatch_size=microbatch_size,
        progress_bar=False,
        seed=3,
    )
    trainer.fit(duration="12ep")
    trainer.state.max_duration = "30ep"
    size, bad = len(data.rows[19]), 19
    data.rows[bad] = torch.full((size,), 7) if fault == "constant" else torch.arange(size) * 5 % 12
    found = blame_next_steps(trainer, 6)
    first = found.rows[0]
    assert first.index == bad, found
    assert first.contents.num_tokens == first.contents.num_labels == size - 1
    assert {step.method for step in found.steps} == {"sliced"}
    # Losses of ragged rows are weighted by their tokens.
    for step in found.steps:
        rows = [row for row in found.rows if row.step == step.step]
        assert sum(row.loss * row.weight for row in rows) == pytest.approx(step.loss, rel=1e-4)


@pytest.mark.parametrize("algorithms", [[], [MixUp(0.4)], [SelectiveBackprop(start=0.0, end=1.0, interrupt=0)]])
def test_blaming_the_next_step_leaves_the_run_unchanged(algorithms) -> None:
    ends = []
    for blames in (False, True):
        trainer, _, _ = trained(batch_norm, algorithms)
        if blames:
            blame_next_steps(trainer)
        trainer.fit(duration="10ba")
        ends.append(weights_of(trainer.state.model))
    assert torch.equal(*ends)


def test_steps_are_those_of_the_run(tmp_path) -> None:
    """A replay blames the same losses as the steps had in the run."""
    arguments = {"save_folder": str(tmp_path), "save_interval": "20ba", "run_name": "one"}

    def make(**more) -> tuple[Trainer, InMemoryLogger]:
        torch.manual_seed(1)
        model = ComposerClassifier(mlp(), num_classes=CLASSES)
        trainer = Trainer(
            model=model,
            train_dataloader=DataLoader(TensorDataset(*samples(False)), batch_size=BATCH, shuffle=True),
            max_duration="6ep",
            optimizers=torch.optim.Adam(model.parameters(), lr=0.02),
            progress_bar=False,
            seed=1,
            loggers=(log := InMemoryLogger()),
            **more,
        )
        return trainer, log

    trainer, log = make(**arguments)
    trainer.fit()
    losses = [float(value) for _, value in log.data["loss/train/total"]]
    again, _ = make()
    found = again.blame(23, 25, run=tmp_path)
    assert [step.step for step in found.steps] == [23, 24, 25]
    assert [step.loss for step in found.steps] == losses[23:26]
    again, _ = make()
    with pytest.raises(ValueError, match="must not be before the first, 23; got 20"):
        again.blame(23, 20, run=tmp_path)
    again, _ = make()
    with pytest.raises(ValueError, match="its last step is 35"):
        again.blame(30, 40, run=tmp_path)


def test_the_result_is_strict_json() -> None:
    trainer, x, y = trained(mlp)
    plant(x, y, 3, "nan")
    found = blame_next_steps(trainer, SAMPLES // BATCH)
    read = json.loads(json.dumps(found.to_json(top=2), allow_nan=False))
    assert len(read["rows"]) == 2
    row = read["rows"][0]
    assert (row["index"], row["loss"], row["score"]) == (3, "NaN", "Infinity")
    assert row["why"][0] == "The data contains 1 NaN or infinite value."
    assert row["contents"]["fields"][0]["num_non_finite"] == 1


def test_sound_rows_are_not_called_outliers() -> None:
    torch.manual_seed(3)
    model = ComposerClassifier(nn.Linear(6, CLASSES), num_classes=CLASSES)
    data = TensorDataset(torch.randn(256, 6), torch.randint(CLASSES, (256,)))
    loader = DataLoader(data, batch_size=64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    arguments = {"max_duration": "1ep", "optimizers": optimizer, "progress_bar": False, "seed": 1}
    trainer = Trainer(model=model, train_dataloader=loader, **arguments)
    found = blame_next_steps(trainer, 4)
    assert not found.outliers
    assert "No row stands out" in str(found)
    with pytest.raises(RuntimeError, match="Training ended after 1 of 9 steps, at batch 4"):
        blame_next_steps(trainer, 9)
    with pytest.raises(ValueError, match="num_steps must be at least 1"):
        blame_next_steps(trainer, 0)


def test_robust_z_is_not_raised_by_the_outlier_itself() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 1e9, math.nan]
    z = robust_z(values)
    assert z[5] > 1e8
    assert z[6] == math.inf
    assert z[:5].abs().max() < 2
    assert robust_z([1.0, 1.0, 1.0001], min_deviation=0.01)[2] < 0.1


def on_two_ranks() -> tuple[int | None, int, list[int | None], Blame]:
    trainer, x, y = trained(batch_norm)
    trainer.state.max_duration = "40ep"
    plant(x, y, 46, "label")
    found = blame_next_steps(trainer, SAMPLES // BATCH // 2)
    return found.rows[0].index, found.rows[0].rank, sorted(row.index for row in found.rows), str(found)


def test_two_ranks_rank_the_rows_of_both(two_ranks) -> None:
    (index, rank, indices, text), other = two_ranks.run(on_two_ranks)
    assert index == 46
    assert indices == list(range(SAMPLES))
    assert other == (index, rank, indices, text)
    assert f"of rank {rank}, dataset index 46" in text
