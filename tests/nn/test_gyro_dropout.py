from __future__ import annotations

import copy
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounter

from composer.nn import GyroDropoutLayer


@given(
    shape=st.sampled_from([(8,), (8, 5), (8, 3, 5), (8, 5, 3, 2), (8, 5, 2, 2, 2)]),
    tau=st.sampled_from([1, 2, 3, 8, 16]),
    p=st.sampled_from([0.0, 0.25, 0.9]),
)
def test_groups_share_a_mask_over_the_features(shape, tau, p):
    layer = GyroDropoutLayer(p, sigma=32, tau=tau)
    y = layer(torch.ones(shape))
    assert y.shape == shape
    factors = layer.masks[layer.chosen].float() / (1 - p)
    for row in range(8):
        mask = factors[row * tau // 8]
        if len(shape) > 3:
            mask = mask.view(-1, *[1] * (len(shape) - 2))
        torch.testing.assert_close(y[row], mask.expand(shape[1:]) if len(shape) > 1 else mask[0])


def test_share_dropped_and_gradient():
    torch.manual_seed(0)
    layer = GyroDropoutLayer(0.3, sigma=64, tau=32)
    x = torch.randn(64, 500, requires_grad=True)
    y = layer(x)
    assert (y == 0).float().mean().item() == pytest.approx(0.3, abs=0.02)
    y.sum().backward()
    assert torch.equal(x.grad == 0, y == 0)


def test_choice_stays_for_a_period():
    torch.manual_seed(0)
    layer, choices = GyroDropoutLayer(0.5, sigma=100, tau=4, period=3), []
    for _ in range(9):
        layer(torch.ones(4, 6))
        choices.append(layer.chosen.tolist())
        assert len(set(choices[-1])) == 4  # no mask twice
    assert [choices[i] == choices[i - 1] for i in range(1, 9)] == [True, True, False, True, True, False, True, True]
    layer.eval()
    x = torch.randn(4, 6)
    assert layer(x) is x
    assert layer.count == 9


def test_resumes_bit_for_bit():
    torch.manual_seed(0)
    layer = GyroDropoutLayer(0.5, sigma=20, tau=2, period=4)
    for _ in range(6):
        layer(torch.ones(4, 6))
    file = io.BytesIO()
    torch.save((layer.state_dict(), torch.get_rng_state()), file)
    file.seek(0)
    expected = [layer(torch.ones(4, 6)) for _ in range(6)]
    saved, random_state = torch.load(file, weights_only=True)
    fresh = GyroDropoutLayer(0.5, sigma=20, tau=2, period=4)
    fresh.load_state_dict(saved)
    torch.set_rng_state(random_state)
    assert all(torch.equal(fresh(torch.ones(4, 6)), y) for y in expected)
    copied = copy.deepcopy(fresh)
    copied.load_state_dict(saved)
    assert torch.equal(copied.masks, saved["masks"])


def test_dtype_memory_order_and_empty_batches():
    layer = GyroDropoutLayer(0.5, sigma=4, tau=2)
    x = torch.ones(4, 6, 3, 3, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    y = layer(x)
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert layer(torch.ones(0, 6)).shape == (0, 6)


def test_another_period_does_not_compile_the_layer_again():
    torch._dynamo.reset()
    compiled = CompileCounter()
    layer = GyroDropoutLayer(0.5, sigma=4, tau=2, period=2)
    layer(torch.ones(4, 6))  # samples the masks
    function = torch.compile(layer, backend=compiled, fullgraph=True)
    layer.count.zero_()
    selected = []
    for period in (2, 3, 1):
        layer.period = period
        function(torch.ones(4, 6))
        selected.append(layer.chosen.tolist())
    assert compiled.frame_count == 1
    assert (layer.period, str(layer)) == (1, "GyroDropoutLayer(p=0.5, sigma=4, tau=2, period=1)")
    assert selected[0] == selected[1]  # the second pass begins no period of three
    with pytest.raises(ValueError, match="period"):
        layer.period = 0


def test_one_module_registered_twice():
    layer = GyroDropoutLayer(0.5, sigma=4, tau=2)
    layer(torch.ones(4, 6))
    with pytest.raises(ValueError, match="masks for 6 features, but the input has 7"):
        layer(torch.ones(4, 7))


@pytest.mark.parametrize(("arguments", "message"), [((1.0,), "p"), ((0.5, 4, 8), "tau"), ((0.5, 4, 2, 0), "period")])
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        GyroDropoutLayer(*arguments)
