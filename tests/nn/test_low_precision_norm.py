from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.nn import LPGroupNorm, LPLayerNorm, LPRMSNorm
from composer.nn.low_precision_norm import lower_norm

NORMS = [
    lambda **kw: nn.LayerNorm((4, 5), eps=1e-3, elementwise_affine=kw.get("affine", True)),
    lambda **kw: nn.LayerNorm((4, 5), bias=False, elementwise_affine=kw.get("affine", True)),
    lambda **kw: nn.RMSNorm((4, 5), elementwise_affine=kw.get("affine", True)),
    lambda **kw: nn.GroupNorm(2, 4, eps=1e-3, affine=kw.get("affine", True)),
]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("make", NORMS)
def test_same_layer_where_autocast_is_off(make, affine):
    norm = make(affine=affine)
    for parameter in norm.parameters():
        nn.init.uniform_(parameter)
    new = lower_norm(norm)
    assert isinstance(new, (LPLayerNorm, LPRMSNorm, LPGroupNorm))
    assert isinstance(new, type(norm))
    assert list(new.state_dict()) == list(norm.state_dict())
    assert all(new.get_parameter(name) is value for name, value in norm.named_parameters())
    assert new.extra_repr() == norm.extra_repr()
    x = torch.randn(3, 4, 5)
    assert torch.equal(new(x), norm(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("make", NORMS)
def test_format_of_autocast(make, dtype):
    norm = make()
    new, x = lower_norm(norm), torch.randn(3, 4, 5)
    with torch.autocast("cpu", torch.bfloat16):
        out = new(x.to(dtype))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), norm(x), rtol=3e-2, atol=3e-2)
    out.float().square().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in new.parameters())
    with torch.autocast("cpu", torch.bfloat16, enabled=False):
        assert new(x).dtype == torch.float32


@pytest.mark.parametrize("make", NORMS)
def test_one_graph(make):
    torch.compiler.reset()
    new, x = lower_norm(make()), torch.randn(3, 4, 5)
    compiled = torch.compile(new, backend="eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), new(x))


def test_other_layers_stay():
    class Own(nn.LayerNorm):
        def forward(self, input):
            return super().forward(input.float())

    assert lower_norm(Own(3)) is None
    patched = nn.LayerNorm(3)
    patched.forward = lambda input: input
    assert lower_norm(patched) is None
    assert lower_norm(nn.BatchNorm1d(3)) is None
    assert lower_norm(lower_norm(nn.LayerNorm(3))) is None


@pytest.mark.parametrize("make", NORMS)
def test_hooks_and_attributes_stay(make):
    calls, model = [], nn.Sequential(make())
    norm = model[0]
    norm.note = "x"
    handles = [
        norm.register_forward_pre_hook(lambda *args: calls.append("forward_pre")),
        norm.register_full_backward_hook(lambda *args: calls.append("backward")),
        norm.register_load_state_dict_pre_hook(lambda module, *args: calls.append(module)),
    ]
    model[0] = new = lower_norm(norm)
    del norm
    for expected in (["forward_pre", "backward", new], []):
        calls.clear()
        model(torch.randn(3, 4, 5, requires_grad=True)).sum().backward()
        model.load_state_dict(model.state_dict())
        assert calls == expected
        for handle in handles:
            handle.remove()
    assert new.note == "x"


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("make", NORMS)
def test_meta_tensors(make, autocast):
    """Meta tensors have no autocast dtype."""
    norm = lower_norm(make()).to("meta")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = norm(torch.empty(3, 4, 5, device="meta"))
    assert (output.shape, output.dtype, output.device.type) == ((3, 4, 5), torch.float32, "meta")
    output.sum().backward()
    assert all(parameter.grad.is_meta for parameter in norm.parameters())
