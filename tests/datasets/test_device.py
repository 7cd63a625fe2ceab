"""The default device of the loaders."""

from __future__ import annotations

import pytest
import torch

from composer.datasets._device import default_device


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
@pytest.mark.parametrize(("visible", "index"), [(8, 3), (1, 0)])
def test_a_rank_that_sees_one_accelerator_uses_it(kind, visible, index, monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device(kind))
    monkeypatch.setattr(getattr(torch, kind), "device_count", lambda: visible)
    assert default_device() == torch.device(kind, index)


def test_the_default_device_without_accelerators_is_the_cpu(monkeypatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    assert default_device() == torch.device("cpu")
