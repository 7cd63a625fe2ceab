"""Training data of every type, and their transfer to the device."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from composer import DataSpec
from composer.devices import get_device
from composer.trainer.batch_loading import load, to_device
from tests.common import At, Received, Recorder, Regression, Unsized, regression_data, trainer_of


def x_of(state) -> torch.Tensor:
    return state.batch[0].clone()


class Augmented(Dataset):
    """Its samples are drawn when they are fetched."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int):
        x, y = regression_data(1, 12)[0]
        return x[index] + torch.rand(()), y[index]


def loader(batch_size: int = 3, **more) -> DataLoader:
    (x, y) = regression_data(1, 10)[0]
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, **more)


def test_a_data_loader() -> None:
    seen = At("before_forward", x_of)
    trainer = trainer_of(data=loader(), callbacks=seen)
    assert trainer.state.dataloader_len == 4
    trainer.fit()
    assert [len(x) for x in seen.found] == [3, 3, 3, 1]
    assert torch.equal(torch.cat(seen.found), regression_data(1, 10)[0][0])
    assert trainer.state.timestamp.sample == 10


def test_worker_processes_deliver_the_same_batches() -> None:
    found = []
    for workers in (0, 2):
        seen = At("before_forward", x_of)
        data = loader(shuffle=True, generator=torch.Generator().manual_seed(2), num_workers=workers)
        trainer = trainer_of(data=data, max_duration="6ba", callbacks=seen)
        trainer.fit()
        trainer.close()
        found.append(torch.cat(seen.found))
    assert torch.equal(*found)


@pytest.mark.parametrize("form", ["list", "tuple", "unsized", "spec", "mapping"])
def test_any_iterable(form) -> None:
    batches = regression_data(3)
    data = {
        "list": batches,
        "tuple": tuple(batches),
        "unsized": Unsized(batches),
        "spec": DataSpec(batches),
        "mapping": {"dataloader": batches, "num_samples": 6},
    }[form]
    trainer = trainer_of(data=data, max_duration="2ep")
    trainer.fit()
    assert trainer.state.timestamp.batch == 6
    assert trainer.state.train_phase.loader.num_samples == (6 if form == "mapping" else None)


@pytest.mark.parametrize("make", [iter, lambda batches: (batch for batch in batches)], ids=["iterator", "generator"])
def test_single_pass_iterator_trains_once_then_raises(make) -> None:
    trainer = trainer_of(data=make(regression_data(3)), max_duration="2ep")
    with pytest.raises(
        ValueError, match=r"yielded no batch in epoch 1: .* is an iterator, which can be read once; use"
    ):
        trainer.fit()
    assert trainer.state.timestamp.batch == 3
    trainer = trainer_of(data=make(regression_data(3)), max_duration="1ep")
    trainer.fit()
    assert trainer.state.timestamp.batch == 3


@pytest.mark.parametrize("data", [[], Unsized([])], ids=["sized", "unsized"])
def test_no_data_is_an_error(data) -> None:
    with pytest.raises(ValueError, match=r"train_dataloader yielded no batch in epoch 0: .*It is empty"):
        trainer_of(data=data).fit()


def test_a_loader_that_drops_its_only_batch_raises() -> None:
    with pytest.raises(ValueError, match=r"drops its only batch \(drop_last=True\)"):
        trainer_of(data=loader(batch_size=20, drop_last=True)).fit()


def test_data_errors_are_raised() -> None:
    class Broken(Unsized):
        def __iter__(self):
            yield from self.batches
            raise OSError("disk on fire")

    trainer = trainer_of(data=Broken(regression_data(2)))
    with pytest.raises(OSError, match="disk on fire"):
        trainer.fit()
    assert trainer.state.timestamp.batch == 2


@pytest.mark.parametrize("sized", [True, False])
def test_subset_of_the_batches(sized) -> None:
    seen, recorder = At("before_forward", x_of), Recorder()
    data = regression_data(5)
    trainer = trainer_of(
        data=data if sized else Unsized(data),
        train_subset_num_batches=2,
        max_duration="2ep",
        callbacks=[seen, recorder],
    )
    assert trainer.state.dataloader_len == 2
    trainer.fit()
    assert torch.equal(torch.cat(seen.found), torch.cat([data[i][0] for i in (0, 1, 0, 1)]))
    assert recorder.events.count("epoch_end") == 2


def test_data_shorter_than_their_length() -> None:
    class Less(list):
        def __len__(self):
            return 9

    trainer = trainer_of(data=Less(regression_data(2)), max_duration="2ep")
    trainer.fit()
    assert (trainer.state.timestamp.batch, trainer.state.timestamp.epoch) == (4, 2)


def test_the_label_names_the_metrics() -> None:
    log, labels = Received(), At("batch_start", lambda state: state.dataloader_label)
    trainer_of(Regression(metrics=True), train_dataloader_label="wiki", callbacks=labels, loggers=log).fit()
    assert set(labels.found) == {"wiki"}
    assert log.series("metrics/wiki/MeanSquaredError")


def test_the_sampler_is_given_the_epoch() -> None:
    data = TensorDataset(*regression_data(1, 8)[0])
    sampler = DistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=3)
    seen = At("before_forward", x_of)
    trainer_of(data=DataLoader(data, batch_size=8, sampler=sampler), max_duration="3ep", callbacks=seen).fit()
    for epoch, x in enumerate(seen.found):
        sampler.set_epoch(epoch)
        assert torch.equal(x, data.tensors[0][list(sampler)])
    assert not torch.equal(seen.found[0], seen.found[1])


# ---------------------------------------------------------------------------------------------------- overfitting


@pytest.mark.parametrize("max_duration", ["3ep", "6ba"])
def test_overfit_batches_repeats_the_first_ones(max_duration) -> None:
    """Every epoch has only these batches, also for what asks how long an epoch is."""
    seen, recorder = At("before_forward", x_of), Recorder()
    trainer = trainer_of(
        data=loader(shuffle=True), overfit_batches=2, max_duration=max_duration, callbacks=[seen, recorder]
    )
    trainer.fit()
    first, second = seen.found[:2]
    assert [torch.equal(a, b) for a, b in zip(seen.found, [first, second] * 3, strict=True)] == [True] * 6
    assert trainer.state.timestamp.epoch == 3
    assert trainer.state.dataloader_len == 2
    assert recorder.events.count("epoch_end") == 3


def test_overfit_batches_of_new_data() -> None:
    seen = At("before_forward", x_of)
    trainer = trainer_of(overfit_batches=1, callbacks=seen)
    trainer.fit()
    other = regression_data(3, seed=8)
    trainer.fit(train_dataloader=other, duration="1ep")
    assert torch.equal(torch.stack(seen.found), torch.stack([regression_data()[0][0], other[0][0]]))


class Drawn:
    """Its batches are drawn when they are fetched."""

    def __iter__(self):
        for x, y in regression_data(4):
            yield torch.randn_like(x), y


@pytest.mark.parametrize("data", [Drawn, lambda: DataLoader(Augmented(), batch_size=3)])
def test_overfit_batches_that_are_drawn_are_the_same_after_resuming(data, tmp_path) -> None:
    seen = At("before_forward", x_of)
    options = {"overfit_batches": 2, "max_duration": "3ep", "seed": 1}
    trainer_of(data=data(), callbacks=seen, save_folder=str(tmp_path), save_interval="1ba", **options).fit()
    for batch in (1, 2, 3):
        rest = At("before_forward", x_of)
        path = next(tmp_path.glob(f"ep*-ba{batch}-rank0.pt"))
        trainer_of(data=data(), callbacks=rest, load_path=str(path), **options).fit()
        assert torch.equal(torch.stack(rest.found), torch.stack(seen.found[batch:]))


@pytest.mark.parametrize("form", [tuple, list, lambda pair: dict(zip("xy", pair, strict=True))])
def test_overfit_batches_are_not_changed_by_batch_edits(form) -> None:
    """The same objects come again in each epoch."""

    class OfAny(Regression):
        def forward(self, batch):
            return self.linear(batch["x"] if isinstance(batch, dict) else batch[0])

        def loss(self, outputs, batch):
            return outputs.mean()

    data = [form(pair) for pair in regression_data(1)]
    key = "x" if isinstance(data[0], dict) else 0

    def edit(state) -> None:
        state.batch_set_item(key, state.batch_get_item(key) * 0)

    seen = At("after_dataloader", lambda state: state.batch_get_item(key).clone())
    trainer_of(OfAny(), data, overfit_batches=1, max_duration="3ep", callbacks=[seen, At("batch_start", edit)]).fit()
    assert all(torch.equal(x, regression_data(1)[0][0]) for x in seen.found)


@pytest.mark.parametrize("name", ["overfit_batches", "eval_batches_before_fit"])
@pytest.mark.parametrize("value", [-1, 1.5, True, "2"])
def test_batch_limits_are_validated(name, value) -> None:
    with pytest.raises(ValueError if value == -1 else TypeError, match=f"{name} must be .* got {value!r}"):
        trainer_of(**{name: value})


# ---------------------------------------------------------------------------------------------------- device


def test_batch_transforms_apply_before_after_dataloader() -> None:
    seen = At("after_dataloader", x_of)
    trainer_of(data=DataSpec(regression_data(1), batch_transforms=lambda b: (b[0] * 0 + 3, b[1])), callbacks=seen).fit()
    assert torch.equal(seen.found[0], torch.full((2, 4), 3.0))


def test_device_transfer_keeps_the_batch_structure() -> None:
    batch = {"x": torch.ones(2), "more": [torch.zeros(1), "text", 3], "none": None}
    moved = to_device(batch, get_device("cpu"))
    assert moved is batch  # where all is there already, nothing is copied
    assert load(batch, DataSpec([], batch_transforms=lambda b: b["x"]), get_device("cpu")).tolist() == [1, 1]


@pytest.mark.gpu
def test_batches_are_complete_on_device_if_the_host_runs_ahead() -> None:
    data = [(torch.full((256, 1024), float(i)).pin_memory(), torch.zeros(256, 1)) for i in range(20)]
    model = Regression()
    model.linear = torch.nn.Linear(1024, 1)
    sums = At("before_forward", lambda state: (state.batch[0].device.type, state.batch[0].sum()))
    trainer_of(model, data, lr=0.0, callbacks=sums, device="gpu").fit()
    assert {kind for kind, _ in sums.found} == {"cuda"}
    assert [total.item() for _, total in sums.found] == [256 * 1024.0 * i for i in range(20)]
