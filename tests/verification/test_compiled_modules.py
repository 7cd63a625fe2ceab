"""The module that differs when it is compiled is named, the innermost first; hooks and side effects are left alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from composer.verification.compiled_modules import CompiledModules


class Branch(nn.Module):
    """Differs when it is compiled."""

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return scale * (x + 1 if torch.compiler.is_compiling() else x)


class Counter(nn.Module):
    """Counts its calls, on its input and in a buffer, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x.mul_(2) + self.calls


class Wrapper(nn.Module):
    """Calls a module with a keyword."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, scale=2.0)


class Uncompilable(nn.Module):
    """Fails when it is compiled."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            raise ValueError("not this one")
        return x


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (lambda: nn.Sequential(nn.Linear(2, 2), Counter()), None),
        (lambda: nn.Sequential(Counter(), nn.Sequential(nn.Tanh(), Wrapper(Branch()))), "1.1.inner"),
        (lambda: nn.Sequential(Branch(), Counter(), Wrapper(Branch())), "0"),
    ],
)
def test_first_module_that_differs(model, found) -> None:
    net, plain = model(), model()
    plain.load_state_dict(net.state_dict())
    modules = CompiledModules(net, {"backend": "eager"})
    torch.manual_seed(1)
    for step in range(3):
        x = torch.full((4, 2), float(step))
        before = torch.get_rng_state()
        assert torch.equal(net(x.clone()), plain(x.clone()))
        assert torch.equal(torch.get_rng_state(), before)
    assert modules.found == found
    assert (modules.relative > 0) == (found is not None)
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), plain.state_dict().values(), strict=True))


def test_modules_that_cannot_be_compiled_alone_are_told() -> None:
    net = nn.Sequential(Uncompilable(), Branch())
    modules = CompiledModules(net, {"backend": "eager", "fullgraph": True})
    net(torch.ones(1, 2))
    assert list(modules.failed) == ["0"]
    assert modules.found == "1"
