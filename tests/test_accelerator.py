"""The fake accelerator detects each synchronization and each mix of devices, and computes correct values."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn

from tests.accelerator import DEVICE, FakeAccelerator, FakeDevice, OnDevice

WAITS = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "bool": lambda x: bool(x[0] > 0),
    "float": lambda x: float(x[0]),
    "int": lambda x: int(x[0]),
    "format": lambda x: f"{x[0]:.2f}",
    "if": lambda x: 1 if x[0] else 0,
    "index of a list": lambda x: list(range(10))[x[0].long()],
    "mask": lambda x: x[x > 0],
    "assignment by a mask": lambda x: x.__setitem__(x > 0, x[0]),
    "nonzero": torch.nonzero,
    "where of one argument": lambda x: torch.where(x > 0),
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "unique": torch.unique,
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "bincount": lambda x: torch.bincount(x.long()),
    "repeat_interleave": lambda x: torch.repeat_interleave(x, x.long()),
    "one_hot": lambda x: nn.functional.one_hot(x.long()),
    "inverse": lambda x: torch.linalg.inv(torch.diag(x)),
    "indices of the host": lambda x: x[torch.tensor([0, 1])],
    "a tensor of a number": lambda x: torch.tensor(1.0, device=x.device),
    "a tensor of a list": lambda x: x.new_tensor([1.0, 2.0]),
    "copy to the device": lambda x: torch.ones(3).to(x.device),
    "assignment of host values": lambda x: x.copy_(torch.ones(3)),
    "copy into host memory": lambda x: torch.ones(3).copy_(x),
    "clip with error_if_nonfinite": lambda x: nn.utils.clip_grad_norm_(_with_gradient(x), 1.0, error_if_nonfinite=True),
    "in another thread of autograd": lambda x: _backward(x, lambda grad: grad * grad[0].item()),
    "synchronize": lambda x: torch.accelerator.synchronize(),
}

FREE = {
    "arithmetic": lambda x: (x * 2 + 1).square().mean() ** 0.5,
    "numbers of the host": lambda x: x * torch.tensor(2.0),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.0),
    "indices of the device": lambda x: x[torch.arange(2, device=x.device)],
    "creation": lambda x: [torch.zeros(2, device=x.device), torch.rand_like(x), torch.full((), 1.0, device=x.device)],
    "assignment of a number": lambda x: x.__setitem__(0, 2.0),
    "non-blocking copy": lambda x: torch.ones(3).to(x.device, non_blocking=True),
    "one_hot of known width": lambda x: nn.functional.one_hot(x.long(), 5),
    "repeat_interleave of known size": lambda x: torch.repeat_interleave(x, x.long(), output_size=3),
    "clip": lambda x: nn.utils.clip_grad_norm_(_with_gradient(x), 1.0),
    "dtype": lambda x: x.to(torch.bfloat16).float(),
    "shape": lambda x: (len(x), x.shape, x.numel(), x.device, x.dtype),
}


def _with_gradient(x: torch.Tensor) -> list[torch.Tensor]:
    parameter = nn.Parameter(x.clone())
    parameter.grad = x.clone()
    return [parameter]


def _backward(x: torch.Tensor, hook) -> None:
    x = x.clone().requires_grad_()
    x.register_hook(hook)
    x.sum().backward()


@pytest.mark.parametrize("what", WAITS)
def test_synchronization_is_recorded(what) -> None:
    with FakeAccelerator() as accelerator:
        x = torch.ones(3, device=DEVICE)
        accelerator.step = 7
        WAITS[what](x)
    assert {step for step, *_ in accelerator.found} == {7}


@pytest.mark.parametrize("what", FREE)
def test_non_blocking_operations_are_not_recorded(what) -> None:
    with FakeAccelerator() as accelerator:
        x = torch.ones(3, device=DEVICE)
        accelerator.step = 7
        FREE[what](x)
    assert not accelerator.found


@pytest.mark.parametrize(
    "mix",
    [
        lambda x, y: x + y,
        lambda x, y: x.add_(y),
        lambda x, y: torch.stack([x, y]),
        lambda x, y: torch.lerp(x, y, 0.5),
        lambda x, y: torch._foreach_add([x], [y]),
        lambda x, y: y[x.long()],
        lambda x, y: nn.functional.linear(x, y.reshape(1, 3)),
    ],
)
def test_devices_do_not_mix(mix) -> None:
    with FakeAccelerator():
        x = torch.ones(3, device=DEVICE)
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            mix(x, torch.ones(3))


@pytest.mark.parametrize(
    "sample", [lambda x, **given: torch.rand(3, device=x.device, **given), lambda x, **given: x.normal_(**given)]
)
def test_host_generators_cannot_sample_on_the_device(sample) -> None:
    with FakeAccelerator():
        x = torch.ones(3, device=DEVICE)
        sample(x)
        with pytest.raises(RuntimeError, match="for generator but found 'cpu'"):
            sample(x, generator=torch.Generator())


def test_device_tensors_have_no_numpy_array() -> None:
    with FakeAccelerator():
        x = torch.ones(3, device=DEVICE)
        with pytest.raises((TypeError, RuntimeError), match=r"numpy|subclass"):
            x.numpy()


def trained(move, optimizer_of) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = optimizer_of(model.parameters())
    model = move(model)
    for _ in range(3):
        optimizer.zero_grad()
        x = torch.randn(5, 4).to(model[0].weight.device)
        model(x).square().mean().backward()
        optimizer.step()
    return [value.cpu() for value in model.state_dict().values()]


@pytest.mark.parametrize("more", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_results_match_the_cpu(kind, more) -> None:
    def make(parameters):
        return kind(parameters, lr=0.1, **more)

    expected = trained(lambda model: model, make)
    with FakeAccelerator():
        found = trained(FakeDevice().module_to_device, make)
    for one, other in zip(found, expected, strict=True):
        assert not isinstance(one, OnDevice)
        torch.testing.assert_close(one, other)


def test_copies_stay_on_the_original_device() -> None:
    with FakeAccelerator():
        original = nn.Parameter(torch.ones(3, device=DEVICE)), torch.arange(3, device=DEVICE)
        copied = copy.deepcopy(original)
        assert [type(value) for value in copied] == [OnDevice, OnDevice]
        assert isinstance(copied[0], nn.Parameter)
        assert copied[0].requires_grad
        with torch.no_grad():
            copied[0].add_(1)
        assert original[0].tolist() == [1, 1, 1]
        assert copied[0].tolist() == [2, 2, 2]


def test_saved_files_load_on_any_device() -> None:
    file = io.BytesIO()
    with FakeAccelerator():
        torch.save([nn.Parameter(torch.ones(3, device=DEVICE)), torch.arange(3, device=DEVICE)], file)
    file.seek(0)
    parameter, buffer = torch.load(file, weights_only=True)
    assert isinstance(parameter, nn.Parameter)
    assert parameter.tolist() == [1, 1, 1]
    assert buffer.tolist() == [0, 1, 2]
