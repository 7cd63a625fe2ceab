from __future__ import annotations

import pytest
import torch

from composer.optim.closure_use import may_use_closure, needs_closure


def test_which_optimizers_get_a_closure() -> None:
    class Demanding(torch.optim.SGD):
        def step(self, closure):
            return super().step(closure)

    class OtherName(torch.optim.SGD):
        def step(self, loss_function):
            return super().step(loss_function)

    assert needs_closure(Demanding)
    assert needs_closure(OtherName)
    assert may_use_closure(Demanding)
    assert not needs_closure(torch.optim.AdamW)
    assert not may_use_closure(torch.optim.AdamW)


_OF_TORCH = [
    cls
    for cls in vars(torch.optim).values()
    if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.LBFGS
]


@pytest.mark.parametrize("cls", _OF_TORCH, ids=lambda cls: cls.__name__)
def test_no_optimizer_of_torch_but_lbfgs_uses_a_closure(cls: type[torch.optim.Optimizer]) -> None:
    assert not may_use_closure(cls)
