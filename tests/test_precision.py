"""Precision names and contexts."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from composer.devices import DeviceCPU
from composer.precision import Precision, default_precision, get_precision_context


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("fp32", Precision.FP32),
        ("FP32", Precision.FP32),
        ("float32", Precision.FP32),
        ("amp", Precision.AMP_FP16),
        ("fp16", Precision.AMP_FP16),
        ("amp_fp16", Precision.AMP_FP16),
        ("Amp_Bf16", Precision.AMP_BF16),
        ("bf16", Precision.AMP_BF16),
        ("fp8", Precision.AMP_FP8),
        ("AMP_FP8", Precision.AMP_FP8),
        (Precision.FP32, Precision.FP32),
        ("bf16-mixed", Precision.AMP_BF16),
        ("16-mixed", Precision.AMP_FP16),
        ("32-true", Precision.FP32),
        (16, Precision.AMP_FP16),
        (32, Precision.FP32),
        (torch.bfloat16, Precision.AMP_BF16),
        (torch.float16, Precision.AMP_FP16),
        (torch.float32, Precision.FP32),
        (Precision.AMP, Precision.AMP_FP16),
        (Precision.BF16, Precision.AMP_BF16),
    ],
)
def test_names(name, member):
    assert Precision(name) is member


def test_strings_compare_and_print():
    assert Precision.AMP_BF16 == "amp_bf16"
    assert f"{Precision.AMP_BF16}" == "amp_bf16"


@pytest.mark.parametrize("name", ["amp_bf61", "", None, 64, True, torch.float64, "16-true"])
def test_unknown_names(name):
    with pytest.raises(ValueError, match="precision must be one of 'fp32', 'amp_fp16', 'amp_bf16', 'amp_fp8'"):
        Precision(name)
    with pytest.raises(ValueError, match=r"Did you mean 'amp_bf16'\?"):
        Precision("amp_bf61")


def product_dtype():
    return torch.ones(2, 2).mm(torch.ones(2, 2)).dtype


def test_bf16_on_the_cpu():
    with get_precision_context("amp_bf16", device_type="cpu"):
        assert product_dtype() is torch.bfloat16
    assert product_dtype() is torch.float32


def test_fp32_turns_autocast_off():
    context = get_precision_context("fp32", device_type="cpu")
    with context:
        assert product_dtype() is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        with context, context:
            assert product_dtype() is torch.float32
        assert product_dtype() is torch.bfloat16
        with pytest.raises(KeyError), context:
            raise KeyError
        assert product_dtype() is torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_default_device_type(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    with get_precision_context(Precision.AMP_BF16):
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("name", ["amp_fp16", "amp_fp8"])
def test_reduced_precision_requires_an_accelerator(name):
    error = ValueError
    with pytest.raises(error, match=f"{name} requires an accelerator; on the CPU use 'amp_bf16' or 'fp32'"):
        get_precision_context(name, device_type="cpu")


def test_precision_config_belongs_to_fp8():
    with pytest.raises(ValueError, match="precision_config applies to precision amp_fp8 only"):
        get_precision_context("amp_bf16", {"margin": 0}, device_type="cpu")


def test_fp8_needs_a_new_gpu_and_the_package(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(RuntimeError, match=r"8\.9 or higher, but found compute capability 8\.0"):
        get_precision_context("amp_fp8", device_type="cuda")
    with pytest.raises(RuntimeError, match="found device type 'mps'"):
        get_precision_context("amp_fp8", device_type="mps")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    with pytest.raises(ImportError, match=r"amp_fp8 needs .*pip install 'transformer-engine\[pytorch\]'"):
        get_precision_context("amp_fp8", device_type="cuda")


@pytest.mark.filterwarnings("ignore:.*CUDA is not available.*")
def test_fp8_recipe(monkeypatch):
    calls = []

    @contextlib.contextmanager
    def fp8_autocast(enabled, fp8_recipe):
        calls.append((enabled, fp8_recipe))
        yield

    engine, recipes = ModuleType("transformer_engine.pytorch"), ModuleType("transformer_engine.common.recipe")
    engine.fp8_autocast = fp8_autocast
    recipes.Format, recipes.DelayedScaling = SimpleNamespace(HYBRID="hybrid"), dict
    for name, module in {
        "transformer_engine": ModuleType("transformer_engine"),
        "transformer_engine.common": ModuleType("transformer_engine.common"),
        "transformer_engine.pytorch": engine,
        "transformer_engine.common.recipe": recipes,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    with get_precision_context("amp_fp8", {"amax_history_len": 4}, fp8_autocast_enabled=False, device_type="cuda"):
        pass
    recipe = {"fp8_format": "hybrid", "amax_history_len": 4, "amax_compute_algo": "max"}
    assert calls == [(False, recipe)]


def test_default_precision(monkeypatch):
    assert default_precision(DeviceCPU()) is Precision.FP32
    gpu = SimpleNamespace(torch_device=torch.device("cuda", 0))
    for supported, expected in ((True, Precision.AMP_BF16), (False, Precision.AMP_FP16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, yes=supported: yes)
        assert default_precision(gpu) is expected
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: major > 14)
    assert default_precision(SimpleNamespace(torch_device=torch.device("mps"))) is Precision.AMP_FP16
    assert default_precision(SimpleNamespace(torch_device=torch.device("xpu"))) is Precision.AMP_BF16
