"""export_memory_timeline_html: the memory in use over time as a picture."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from composer.profiler._memory_timeline import _device_in_use

pytest.importorskip("matplotlib")


def test_draws_what_was_in_use(tmp_path) -> None:
    from composer.profiler.utils import export_memory_timeline_html

    model, data = nn.Linear(256, 256), torch.ones(256, 256)
    with torch.profiler.profile(record_shapes=True, with_stack=True, profile_memory=True) as profile:
        model(data).sum().backward()
    figure = export_memory_timeline_html(profile, tmp_path / "a.html", "cpu", yxis_step_size=1e-4, return_fig=True)
    assert not list(tmp_path.iterdir())
    # Weights, data, outputs and gradients have 0.25 MiB each.
    assert 4e-4 < figure.gca().get_ylim()[1] < 2e-3
    assert export_memory_timeline_html(profile, tmp_path / "a.html", "cpu", yxis_step_size=1e-4) is None
    assert "data:image/png;base64," in (tmp_path / "a.html").read_text()


@pytest.mark.parametrize(
    ("kind", "used", "device"),
    [("cuda", True, "cuda:3"), ("xpu", True, "xpu:3"), ("cuda", False, "cpu"), (None, False, "cpu")],
)
def test_by_default_it_is_the_device_that_the_process_uses(kind, used, device, monkeypatch):
    accelerator = None if kind is None else torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: accelerator)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 3)
    monkeypatch.setattr(torch, "get_device_module", lambda kind: SimpleNamespace(is_initialized=lambda: used))
    assert _device_in_use() == device
