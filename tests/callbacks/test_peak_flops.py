from __future__ import annotations

import types

import pytest
import torch

from composer import State
from composer.callbacks.peak_flops import GPU_AVAILABLE_FLOPS, find_accelerator, get_gpu_flops_available, peak_flops
from composer.precision import Precision


@pytest.mark.parametrize(
    ("device", "row"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200 nvl"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100 pcie"),
        ("NVIDIA H100 NVL", "h100 nvl"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", None),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA RTX A6000", "rtx a6000"),
        ("NVIDIA RTX 6000 Ada Generation", None),
        ("NVIDIA GeForce RTX 4090", "rtx 4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100-PCIE-16GB", "v100 pcie"),
        ("Tesla V100S-PCIE-32GB", "v100s"),
        ("Tesla T4", "t4"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("", None),
    ],
)
def test_device_names_select_their_rows(device, row):
    assert find_accelerator(device) == row


def test_every_row_can_be_found_and_grows_with_shorter_formats():
    for name, row in GPU_AVAILABLE_FLOPS.items():
        assert find_accelerator(f"Vendor {name.upper()}") == name
        speeds = [row[key] for key in ("fp32", "tf32", "bf16", "fp8") if key in row]
        assert speeds == sorted(speeds)
        assert 1e12 < row["fp32"] < 1e14 * 2
        assert row["fp16"] == row["amp_fp16"]
        assert row.get("bf16") == row.get("amp_bf16")


def test_peak_by_precision():
    name = "NVIDIA A100-SXM4-80GB"
    assert peak_flops(name, "amp_bf16") == 312e12
    assert peak_flops(name, Precision.FP32) == 19.5e12
    assert peak_flops(name, Precision.FP32, allow_tf32=True) == 156e12
    assert peak_flops(name, "amp_fp16", allow_tf32=True) == 312e12
    assert peak_flops(name, "amp_fp8") is None
    assert peak_flops("Tesla T4", "fp32", allow_tf32=True) == 8.1e12  # which has no TensorFloat-32
    assert peak_flops("Abacus", "fp32") is None


@pytest.mark.parametrize(("setting", "peak"), [("tf32", 494.7e12), ("ieee", 67e12)])
def test_of_the_device_of_a_run(setting, peak, monkeypatch):
    state = State(model=torch.nn.Linear(1, 1))
    assert get_gpu_flops_available(state) is None
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    matmul = types.SimpleNamespace(fp32_precision=setting)
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    state.device = types.SimpleNamespace(name="gpu", torch_device=torch.device("cuda", 0))
    assert get_gpu_flops_available(state) == peak
    state.device = types.SimpleNamespace(name="neuron", torch_device=torch.device("xla"))
    state.precision = "amp_bf16"
    assert get_gpu_flops_available(state) == 95e12
