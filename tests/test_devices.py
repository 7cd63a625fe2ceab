"""Devices."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import composer
from composer import devices
from composer.datasets._device import default_device
from composer.devices import Device, DeviceAccelerator, DeviceCPU, DeviceGPU, DeviceMPS, get_device
from tests.design import ROOT

NO_ACCELERATOR = not torch.accelerator.is_available()
needs_none = pytest.mark.skipif(not NO_ACCELERATOR, reason="this machine has an accelerator")


class Pair(NamedTuple):
    x: Any
    y: Any


class Meta(Device):
    """A device that is everywhere, to see that tensors move."""

    name = "meta"
    dist_backend = ""
    torch_device = torch.device("meta")


@pytest.mark.parametrize("name", ["cpu", "CPU", " cpu ", torch.device("cpu")])
def test_cpu_by_name(name):
    device = get_device(name)
    assert isinstance(device, DeviceCPU)
    assert (device.name, device.dist_backend, device.torch_device) == ("cpu", "gloo", torch.device("cpu"))
    assert get_device(device) is device


def test_none_is_the_best_available():
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    expected = "cpu" if accelerator is None else accelerator.type
    assert get_device().torch_device.type == expected


@needs_none
@pytest.mark.parametrize("name", ["gpu", "cuda", "cuda:1", "mps", torch.device("cuda", 0)])
def test_missing_accelerator_error_lists_the_available(name):
    with pytest.raises(ValueError, match=r"device '(gpu|mps)' is not available here.*Available: 'cpu'"):
        get_device(name)


@pytest.mark.parametrize(
    ("name", "package"), [("tpu", "torch_xla"), ("neuron", "torch_xla"), ("hpu", "habana-torch-plugin")]
)
def test_missing_drivers(name, package, monkeypatch):
    for module in ("torch_xla", "habana_frameworks"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"pip install '{package}'"):
        get_device(name)


def test_wrong_names():
    with pytest.raises(ValueError, match=r"device 'gpuu' is not known\. Did you mean 'gpu'\? Available here: 'cpu'"):
        get_device("gpuu")
    with pytest.raises(ValueError, match="must look like 'gpu' or 'gpu:1'"):
        get_device("gpu:x")
    with pytest.raises(TypeError, match=r"device must be a name, a torch.device, a Device or None, but got 3"):
        get_device(3)


def test_a_batch_on_the_device_is_returned_itself():
    x = torch.ones(2)
    batches = [(x, x), [x], {"x": x}, Pair(x, "a"), OrderedDict(x=x), {"x": [x, {"y": (x, None, 3, "s")}]}, x, None, 5]
    for batch in batches:
        assert DeviceCPU().batch_to_device(batch) is batch


@pytest.mark.parametrize("device", [Meta(), DeviceCPU()])
def test_batch_on_another_device_is_moved_and_keeps_its_type(device):
    x = torch.ones(2, device="cpu" if device.name == "meta" else "meta")
    if device.name == "cpu":
        # No copy out of the meta device exists; that the attempt is made shows that the fast path looks.
        for batch in [(x, x), {"x": x}, [x], Pair(x, 1), (torch.ones(1), x)]:
            with pytest.raises(NotImplementedError, match="meta"):
                device.batch_to_device(batch)
        return
    for batch in [(x, 1), {"x": x}, [x, "a"], Pair(x, {"y": x}), OrderedDict(x=x)]:
        moved = device.batch_to_device(batch)
        assert type(moved) is type(batch)
        first = next(iter(moved.values())) if isinstance(moved, dict) else moved[0]
        assert first.device.type == "meta"
        assert x.device.type == "cpu"


def test_objects_move_by_their_own_method():
    seen = []
    graph = SimpleNamespace(to=lambda device: seen.append(device) or "moved")
    assert DeviceCPU().batch_to_device({"graph": graph, "cls": torch.Tensor}) == {"graph": "moved", "cls": torch.Tensor}
    assert seen == [torch.device("cpu")]
    packed = nn.utils.rnn.pack_sequence([torch.ones(2)])
    moved = Meta().batch_to_device((packed,))[0]
    assert moved.data.device.type == "meta"
    assert moved.batch_sizes.device.type == "cpu"


def test_modules_move():
    module = nn.Linear(2, 2)
    assert Meta().module_to_device(module) is module
    assert module.weight.device.type == "meta"


@pytest.mark.parametrize("capturable", [False, True])
def test_optimizer_state_moves_and_steps_stay(capturable):
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([parameter])
    parameter.sum().backward()
    optimizer.step()
    optimizer.param_groups[0]["capturable"] = capturable
    assert Meta().optimizer_to_device(optimizer) is optimizer
    state = optimizer.state[parameter]
    assert state["exp_avg"].device.type == "meta"
    assert state["step"].device.type == ("meta" if capturable else "cpu")


def test_nested_optimizer_state_moves():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([parameter])

    def closure():
        optimizer.zero_grad()
        loss = parameter.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    Meta().optimizer_to_device(optimizer)
    assert all(t.device.type == "meta" for t in optimizer.state[parameter]["old_dirs"])


def test_pickle_and_repr():
    device = pickle.loads(pickle.dumps(DeviceCPU()))
    assert device.torch_device == torch.device("cpu")
    assert repr(device) == "DeviceCPU()"


@pytest.fixture
def fake_cuda(monkeypatch):
    """As much of CUDA with two GPUs as choosing a device needs; gives the calls it got."""
    calls = []
    accelerator = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: accelerator)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(devices, "_set_tf32", calls.append)
    return calls


def test_gpu(fake_cuda, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    device = get_device()
    assert isinstance(device, DeviceGPU)
    assert (device.name, device.dist_backend, device.torch_device) == ("gpu", "nccl", torch.device("cuda", 1))
    assert fake_cuda == [torch.device("cuda", 1), True]
    assert repr(pickle.loads(pickle.dumps(device))) == "DeviceGPU(1)"
    assert get_device("gpu:0").torch_device.index == 0
    assert get_device(torch.device("cuda", 1)).torch_device.index == 1
    assert DeviceGPU(0, allow_tf32=False).torch_device.index == 0
    assert fake_cuda[-1] is False
    with pytest.raises(ValueError, match="less than the number of GPUs that PyTorch sees, 2, but is 2"):
        DeviceGPU(2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert DeviceGPU().torch_device.index == 0  # if each process sees one separate GPU
    with pytest.raises(ValueError, match=r"device 'mps' is not available here.*Available: 'cpu', 'gpu'"):
        DeviceMPS()


def test_copies_to_gpu_are_non_blocking(fake_cuda):
    seen = {}
    tensor = SimpleNamespace(to=lambda device, non_blocking: seen.update(device=device, non_blocking=non_blocking))
    DeviceGPU(0).tensor_to_device(tensor)
    assert seen == {"device": torch.device("cuda", 0), "non_blocking": True}


def test_other_accelerators(monkeypatch):
    accelerator, chosen = torch.device("xpu"), []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: accelerator)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 4)
    device = get_device()
    assert isinstance(device, DeviceAccelerator)
    assert (device.name, device.dist_backend, device.torch_device) == ("xpu", "xccl", torch.device("xpu", 0))
    assert chosen == [torch.device("xpu", 0)]
    assert get_device("xpu:3").torch_device.index == 3
    with pytest.raises(
        ValueError, match="less than the number of devices of type 'xpu' that PyTorch sees, 4, but is 4"
    ):
        get_device("xpu:4")


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mtia"])
def test_each_rank_uses_the_accelerator_of_its_local_rank(kind, monkeypatch):
    accelerator, chosen, seen = torch.device(kind), [], {"count": 4}
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: accelerator)
    monkeypatch.setattr(torch.accelerator, "set_device_index", chosen.append)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.get_device_module(kind), "device_count", lambda: seen["count"])
    for count, index in ((4, 3), (1, 0)):  # one by CUDA_VISIBLE_DEVICES, ZE_AFFINITY_MASK or the scheduler
        seen["count"] = count
        made = DeviceGPU() if kind == "cuda" else get_device(kind)
        assert made.torch_device == default_device() == chosen[-1] == torch.device(kind, index)
    assert (DeviceGPU(0) if kind == "cuda" else get_device(f"{kind}:0")).torch_device.index == 0
    seen["count"] = 2
    with pytest.raises(ValueError, match=r"PyTorch sees, 2, but is 3 \(the local rank\)"):
        DeviceGPU() if kind == "cuda" else get_device(kind)
    with pytest.raises(ValueError, match=r"PyTorch sees, 2, but is 3 \(the local rank\)"):
        default_device()


def test_mps(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("mps"))
    assert get_device().torch_device == torch.device("mps")


TF32 = """
import itertools
import torch
from composer.devices import _set_tf32

backends = torch.backends
habits = [
    lambda: None,
    *(lambda value=value: torch.set_float32_matmul_precision(value) for value in ("medium", "high")),
    *(lambda value=value: setattr(backends.cuda.matmul, "allow_tf32", value) for value in (True, False)),
    *(lambda value=value: setattr(backends.cudnn, "allow_tf32", value) for value in (True, False)),
    *(lambda value=value: setattr(backends, "fp32_precision", value) for value in ("tf32", "ieee")),
    *(lambda value=value: setattr(backends.cudnn, "fp32_precision", value) for value in ("tf32", "ieee")),
    *(lambda value=value: setattr(backends.cuda.matmul, "fp32_precision", value) for value in ("tf32", "ieee")),
    *(lambda value=value: setattr(backends.cudnn.conv, "fp32_precision", value) for value in ("tf32", "ieee")),
    *(lambda value=value: setattr(backends.cudnn.rnn, "fp32_precision", value) for value in ("tf32", "ieee")),
    *(lambda value=value: setattr(backends.mkldnn.matmul, "fp32_precision", value) for value in ("bf16", "ieee")),
]
for first, second, allow in itertools.product(habits, habits, (True, False)):
    first()
    second()
    _set_tf32(allow)
    assert torch.get_float32_matmul_precision() == ("high" if allow else "highest")
    assert backends.cuda.matmul.allow_tf32 is allow and backends.cudnn.allow_tf32 is allow
    for operation in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        assert operation.fp32_precision == ("tf32" if allow else "ieee")
    with backends.cudnn.flags():  # which reads and writes them
        pass
print("all agree")
"""


def test_tf32_settings_are_consistent():
    # In a separate process: these are settings of the process that cannot all be put back.
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", TF32], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "all agree\n", done.stderr


def test_names_of_other_libraries():
    assert repr(get_device("auto")) == repr(get_device(" AUTO ")) == repr(get_device(None))
    with pytest.raises(TypeError, match=r"device must be a name.* Did you mean 'gpu:0'\?"):
        get_device(0)
    with pytest.raises(TypeError, match=r"of type bool\.$"):
        get_device(True)


# Where else kinds of devices are listed, and why that is no table of what devices can do.
LISTS = {
    "devices.py": "the tables",
    "dist/setup.py": "backends of communication, which devices.py stands upon",
    "_compat/other_library_values.py": "names of devices elsewhere, in hints",
    "optim/_decoupled.py": "kernels that torch has for fused optimizers",
    "nn/ghost_batchnorm.py": "kernels that torch has for batch normalization",
    "callbacks/memory_monitor.py": "devices without figures, in its own table of figures",
    "dist/_simulated_group.py": "devices that the simulated process group is registered for",
    "exploration/training_probe.py": "devices that need no synchronization",
    "trials/block_steps.py": "devices that need no synchronization",
    "trials/peak_memory.py": "devices whose memory is that of the process",
    "estimation/cuda_operators.py": "a dispatch table of CUDA that stands on CPU tensors",
}


def test_device_capabilities_are_defined_in_one_module() -> None:
    """A second list would miss the next kind of device."""
    root = Path(composer.__file__).parent
    kinds = {"cpu", "cuda", "hip", "hpu", "ipu", "maia", "meta", "mps", "mtia", "npu", "privateuseone", "xla", "xpu"}
    found = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            entries = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", None)
            if entries is not None:
                values = {entry.value for entry in entries if isinstance(entry, ast.Constant)}
                if len(values & kinds) > 1:
                    found.add(path.relative_to(root).as_posix())
    assert found <= LISTS.keys()
