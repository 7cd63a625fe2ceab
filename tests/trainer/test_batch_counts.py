"""Counting samples and tokens: on the host batch, before the transfer; a step does not synchronize with the device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from composer import ComposerModel, DataSpec, trees
from composer.devices import DeviceCPU
from tests.common import FEATURES, regression_data, trainer_of

READING = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")


class OnDevice(Tensor):
    """A tensor that was moved: what is computed of it is there too, and may not be read by the host."""

    is_cpu = False

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(function, "__name__", "") in READING:
            raise AssertionError(f"the host waits for the device: {function.__name__}")
        return super().__torch_function__(function, types, args, kwargs or {})


class Accelerator(DeviceCPU):
    """The CPU, as if what is moved to it were elsewhere."""

    def batch_to_device(self, batch: Any) -> Any:
        return trees.map_tensors(lambda tensor: tensor.as_subclass(OnDevice), batch)


def samples_of(batch: Any) -> Tensor:
    return torch.ones(batch["x"].shape[0], device=batch["x"].device).as_subclass(type(batch["x"])).sum()


def tokens_of(batch: Any) -> Any:
    return (batch["x"] != 7).sum()


def on_host(count: Any) -> Any:
    """A function that counts, and must not see a batch that was moved."""

    def counted(batch: Any) -> Any:
        assert type(batch["x"]) is Tensor, "counted after the copy to the device"
        return count(batch)

    return counted


class Mean(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, 1)

    def forward(self, batch):
        return self.layer(batch["x"])

    def loss(self, outputs, batch):
        return (outputs - batch["y"]).square().mean()


def data(number: int = 3) -> list[dict[str, Tensor]]:
    return [{"x": x, "y": y} for x, y in regression_data(number, 4)]


def trainer(spec: DataSpec, **arguments: Any) -> Any:
    """With data that is moved to a device from which nothing can be read."""
    made = trainer_of(Mean(), spec, **arguments)
    made.state.device = Accelerator()
    return made


def test_fake_device_can_be_moved_to_but_not_read() -> None:
    moved = Accelerator().batch_to_device({"x": torch.ones(2)})
    assert type(moved["x"]) is type(moved["x"].sum()) is OnDevice
    for read in (int, float, bool, Tensor.item, Tensor.tolist, Tensor.cpu):
        with pytest.raises(AssertionError, match="the host waits"):
            read(moved["x"].sum())


@pytest.mark.parametrize("count", ["samples", "tokens", "both"])
@pytest.mark.parametrize("size", [None, 3])
def test_functions_that_return_tensors_do_not_synchronize(count: str, size: int | None) -> None:
    functions = {"get_num_samples_in_batch": samples_of, "get_num_tokens_in_batch": tokens_of}
    chosen = {name: value for name, value in functions.items() if count == "both" or count in name}
    seen = trainer(DataSpec(data(), **chosen), device_train_microbatch_size=size)
    plain = trainer_of(Mean(), DataSpec(data()), device_train_microbatch_size=size)
    plain.state.model.load_state_dict(copy.deepcopy(seen.state.model.state_dict()))
    for each in (seen, plain):
        each.fit()
    assert (seen.state.timestamp.sample, seen.state.timestamp.batch) == (12, 3)
    assert seen.state.timestamp.token == (0 if count == "samples" else 12 * FEATURES)
    for one, other in zip(seen.state.model.parameters(), plain.state.model.parameters(), strict=True):
        torch.testing.assert_close(one.as_subclass(Tensor), other.as_subclass(Tensor))


def test_training_counts_before_the_copy() -> None:
    spec = DataSpec(
        data(), get_num_samples_in_batch=on_host(samples_of), get_num_tokens_in_batch=on_host(lambda batch: 5)
    )
    made = trainer(spec)
    made.fit()
    assert (made.state.timestamp.sample, made.state.timestamp.token) == (12, 15)


def test_evaluation_and_prediction_count_before_the_copy() -> None:
    made = trainer(DataSpec(data(1)))
    spec = DataSpec(data(), get_num_samples_in_batch=on_host(samples_of))
    made.eval(spec)
    assert made.state.eval_timestamp.sample == 12
    made.predict(spec, return_outputs=False)
    assert made.state.predict_timestamp.sample == 12


def test_counts_are_of_transformed_batches() -> None:
    def halve(batch: Any) -> Any:
        return {"ids": batch["x"][:2], "x": batch["x"][:2], "y": batch["y"][:2]}

    spec = DataSpec(
        data(),
        batch_transforms=halve,
        get_num_samples_in_batch=lambda batch: batch["ids"].shape[0],
        get_num_tokens_in_batch=lambda batch: batch["ids"].numel(),
    )
    made = trainer(spec)
    made.fit()
    assert (made.state.timestamp.sample, made.state.timestamp.token) == (6, 6 * FEATURES)
    with pytest.raises(AssertionError, match="the host waits for the device"):
        trainer(DataSpec(data(), batch_transforms=halve, get_num_tokens_in_batch=tokens_of)).fit()


def test_batches_that_are_on_the_device_already_are_counted_by_shape() -> None:
    moved = [Accelerator().batch_to_device(batch) for batch in data()]  # as TensorLoader and DevicePrefetcher yield
    made = trainer(DataSpec(moved), device_train_microbatch_size=3)
    made.fit()
    assert made.state.timestamp.sample == 12
    with pytest.raises(AssertionError, match="the host waits for the device"):
        trainer(DataSpec(moved, get_num_tokens_in_batch=tokens_of)).fit()
