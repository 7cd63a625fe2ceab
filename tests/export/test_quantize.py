from __future__ import annotations

import copy
import functools
from pathlib import Path

import pytest
import torch
from torch import nn

from composer.export import export_for_inference, quantize_dynamic, quantize_int8
from tests.export.reading import load_program, load_script, run_onnx


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def test_weights_are_rounded_to_256_steps() -> None:
    net = network()
    small = quantize_dynamic(net)
    assert small[0].weight().dtype == torch.qint8
    step = net[0].weight.abs().max() / 127.5
    assert (small[0].weight().dequantize() - net[0].weight).abs().max() <= 0.51 * step
    assert isinstance(net[0], nn.Linear)
    x = torch.randn(64, 8)
    assert 0 < (small(x) - net(x)).abs().mean() < 0.02 * net(x).abs().mean() + 0.01


def test_arguments() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.LSTM(8, 4)).eval()
    assert type(quantize_dynamic(net)[1]) is nn.LSTM
    only = quantize_dynamic(net, qconfig_spec={nn.LSTM})
    assert type(only[0]) is nn.Linear and type(only[1]) is not nn.LSTM
    assert quantize_dynamic(net, dtype=torch.float16)[0].weight().dtype == torch.float32
    mapping = {nn.Linear: torch.ao.nn.quantized.dynamic.Linear}
    assert isinstance(quantize_dynamic(net, mapping=mapping, inplace=True)[0], mapping[nn.Linear])
    assert isinstance(net[0], mapping[nn.Linear])


def test_is_exported_to_torchscript_only(tmp_path: Path) -> None:
    net, x, path = network(), torch.randn(3, 8), tmp_path / "net.pt"
    export_for_inference(net, "torchscript", str(path), transforms=quantize_dynamic)
    torch.testing.assert_close(load_script(path)(x), quantize_dynamic(net)(x))
    for form in ("onnx", "torch_export"):
        with pytest.raises(
            ValueError, match=f"quantize_dynamic cannot be exported to {form}; export it to torchscript"
        ):
            export_for_inference(net, form, str(path), sample_input=x, transforms=quantize_dynamic)


@pytest.fixture
def wide() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


@pytest.mark.parametrize("activations", [False, True])
def test_weights_have_127_steps_on_either_side(wide: nn.Module, activations: bool) -> None:
    pytest.importorskip("torchao")
    before, x = copy.deepcopy(wide.state_dict()), torch.randn(64, 32)
    small = quantize_int8(wide, activations=activations)
    torch.testing.assert_close(wide.state_dict(), before)
    weight = small[0].weight
    weight = (weight.dequantize() if hasattr(weight, "dequantize") else weight).detach()
    step = wide[0].weight.abs().amax(1, keepdim=True) / 127
    assert bool(((weight - wide[0].weight).abs() <= 0.51 * step).all())
    assert (weight / step).round().unique().numel() > 100
    assert 0 < (small(x) - wide(x)).abs().mean() < 0.03 * wide(x).abs().mean()


def test_only_selected_modules_are_quantized(wide: nn.Module) -> None:
    pytest.importorskip("torchao")
    assert quantize_int8(wide, choose=lambda module, name: name == "2", inplace=True) is wide
    assert type(wide[0].weight) is nn.Parameter
    assert [name for name, _ in wide[2].named_parameters()] != ["weight", "bias"]


def test_quantized_weights_are_exported(wide: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    x, path = torch.randn(5, 32), tmp_path / "net"
    expected = quantize_int8(wide)(x)
    for form in ("torch_export", "onnx"):
        export_for_inference(wide, form, str(path), sample_input=x[:2], transforms=quantize_int8)
        found = run_onnx(path, {"input": x})["output"] if form == "onnx" else load_program(path)(x)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    export_for_inference(wide, "torch_export", str(path), sample_input=x, transforms=quantize_int8)
    program = torch.export.load(str(path))
    kinds = {type(tensor) for tensor in program.state_dict.values()}
    assert kinds <= {torch.Tensor, nn.Parameter}  # of no class that would have to be imported
    assert torch.int8 in {tensor.dtype for tensor in program.state_dict.values()}


def test_quantized_activations_are_exported_by_torch_only(wide: nn.Module, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    x, path = torch.randn(5, 32), tmp_path / "net"
    both = functools.partial(quantize_int8, activations=True)
    export_for_inference(wide, "torch_export", str(path), sample_input=x[:2], transforms=both)
    torch.testing.assert_close(load_program(path)(x), both(wide)(x))
    with pytest.raises(ValueError, match=r"quantize_int8\(activations=True\) cannot be exported to onnx"):
        export_for_inference(wide, "onnx", str(path), sample_input=x, transforms=both)
    for transform in (both, quantize_int8):
        with pytest.raises(ValueError, match="cannot be exported to torchscript; export it to torch_export"):
            export_for_inference(wide, "torchscript", str(path), sample_input=x, transforms=transform)
