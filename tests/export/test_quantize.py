from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from composer.export import export_for_inference, quantize_dynamic
from tests.export.reading import load_script


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
        with pytest.raises(ValueError, match=f"quantize_dynamic has no {form} form; export it to torchscript"):
            export_for_inference(net, form, str(path), sample_input=x, transforms=quantize_dynamic)
