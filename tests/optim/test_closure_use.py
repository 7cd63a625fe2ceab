from __future__ import annotations

import torch

from composer.optim.closure_use import may_use_closure, needs_closure


def test_which_optimizers_get_a_closure() -> None:
    class Demanding(torch.optim.SGD):
        def step(self, closure):
            return super().step(closure)

    assert needs_closure(Demanding)
    assert may_use_closure(Demanding)
    assert not needs_closure(torch.optim.AdamW)
    assert not may_use_closure(torch.optim.AdamW)
