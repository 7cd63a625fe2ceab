"""Optimizers whose state is not, or not only, that of their parameters: wrappers, and counts of all parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer.checkpoint import get_optim_state_dict
from composer.checkpoint.optimizer_states import optimizer_state, set_optimizer_state
from composer.models import ComposerClassifier
from tests.checkpoint.content import same
from tests.common import trainer_of


class Lookahead(torch.optim.Optimizer):
    """Averages the weights with slow ones every third step; its state dict has a format of its own."""

    def __init__(self, base: torch.optim.Optimizer) -> None:
        self.base, self.count = base, 0
        super().__init__([p for group in base.param_groups for p in group["params"]], base.defaults)
        self.param_groups = base.param_groups
        self.slow = [p.detach().clone() for group in base.param_groups for p in group["params"]]

    def step(self, closure: Any = None) -> Any:
        loss = self.base.step(closure)
        self.count += 1
        if self.count % 3 == 0:
            parameters = [p for group in self.param_groups for p in group["params"]]
            for slow, parameter in zip(self.slow, parameters, strict=True):
                slow.lerp_(parameter.detach(), 0.5)
                parameter.data.copy_(slow)
        return loss

    def state_dict(self) -> dict[str, Any]:
        slow = {(0, index): tensor for index, tensor in enumerate(self.slow)}
        return {"base": self.base.state_dict(), "count": self.count, "slow": slow}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.base.load_state_dict(state_dict["base"])
        self.count = state_dict["count"]
        for slow, saved in zip(self.slow, state_dict["slow"].values(), strict=True):
            slow.copy_(saved)


class Counting(torch.optim.SGD):
    """Lowers the learning rate with a count and a tensor that belong to no parameter."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state["total_step"] = 0  # pyright: ignore[reportArgumentType]
        self.state["net.0.weight"] = torch.ones(2)  # pyright: ignore[reportArgumentType]

    def step(self, closure: Any = None) -> Any:
        state: Any = self.state
        state["total_step"] += 1
        state["net.0.weight"] *= 0.9
        for group in self.param_groups:
            group["lr"] = 0.1 * float(state["net.0.weight"][0]) / state["total_step"]
        return super().step(closure)


KINDS = {
    "wrapper": lambda parameters: Lookahead(torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
    "count": lambda parameters: Counting(parameters, lr=0.1, momentum=0.9),
}


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(24, 4, generator=generator), torch.randint(0, 3, (24,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=8)


def trained(kind: str, duration: str, **arguments: Any) -> nn.Module:
    net = network()
    optimizer = KINDS[kind](net.parameters())
    model = ComposerClassifier(net, num_classes=3)
    trainer = trainer_of(model, data(), optimizers=optimizer, max_duration=duration, seed=3, **arguments)
    trainer.fit()
    trainer.close()
    return net


@pytest.mark.parametrize("kind", KINDS)
def test_trains_as_a_loop_by_hand_and_resumes_bit_for_bit(kind: str, tmp_path: Path) -> None:
    by_hand = network()
    optimizer = KINDS[kind](by_hand.parameters())
    for _ in range(3):
        for x, y in data():
            optimizer.zero_grad()
            nn.functional.cross_entropy(by_hand(x), y).backward()
            optimizer.step()
    expected = trained(kind, "3ep")
    assert same(expected.state_dict(), by_hand.state_dict())
    trained(kind, "5ba", save_folder=tmp_path, save_interval="5ba")
    found = trained(kind, "3ep", load_path=tmp_path / "latest-rank0.pt")
    assert same(found.state_dict(), expected.state_dict())


def test_values_of_no_parameter_do_not_mix_with_those_of_one() -> None:
    model = nn.ModuleDict({"net": network()})
    optimizer = Counting(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = optimizer_state(model, optimizer)
    assert list(saved["other_state"]) == ["total_step", "net.0.weight"]
    assert list(saved["state"]["net.0.weight"]) == ["momentum_buffer"]
    other = Counting(model.parameters(), lr=0.1, momentum=0.9)
    set_optimizer_state(model, other, saved)
    assert same(other.state_dict(), optimizer.state_dict())


def test_what_does_not_fit_is_an_error() -> None:
    net = network()
    wrapper, plain = KINDS["wrapper"](net.parameters()), torch.optim.SGD(net.parameters(), lr=0.1)
    saved = optimizer_state(net, wrapper)
    assert list(get_optim_state_dict(net, wrapper, precision="bf16")) == ["base", "count", "slow"]
    with pytest.raises(ValueError, match=r"entries base, count, slow for SGD.*has param_groups, state.*load_ignore"):
        set_optimizer_state(net, plain, saved)
    with pytest.raises(ValueError, match=r"entries param_groups, state for Lookahead.*has base, count, slow"):
        set_optimizer_state(net, wrapper, optimizer_state(net, plain))
    with pytest.raises(ValueError, match=r"weights of 0.bias are not loaded, but Lookahead has a state_dict of"):
        set_optimizer_state(net, wrapper, saved, excluded=["0.bias", "frozen"])
    with pytest.raises(ValueError, match="the state of Lookahead is not by parameter"):
        get_optim_state_dict(net, wrapper, ignore_keys="0.*")


def _sharded(folder: Path, kind: str) -> str:
    try:
        trained(kind, "2ba", save_folder=folder, save_interval="2ba", parallelism_config={"fsdp": {}})
    except ValueError as error:
        return str(error)
    return ""


def test_sharded_tensors_of_a_wrapper_are_not_saved(two_ranks: Any, tmp_path: Path) -> None:
    for message in two_ranks.run(_sharded, tmp_path / "wrapper", "wrapper"):
        assert "save_ignore_keys=['state/optimizers*']" in message
    assert two_ranks.run(_sharded, tmp_path / "count", "count") == ["", ""]
