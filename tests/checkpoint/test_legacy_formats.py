"""Checkpoints of Composer 0.32.1 load, and training continues. They were written by `make.py` in their folder."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Trainer
from composer.algorithms import EMA, SWA, BlurPool, LabelSmoothing
from composer.callbacks import EarlyStopper, LRMonitor, SpeedMonitor
from composer.checkpoint.legacy_formats import CONSTANTS, upgrade
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingWithWarmupScheduler, LinearScheduler
from composer.warnings import ComposerWarning
from tests.data.checkpoints.make import by_kind, mlp, momentum, net, samples

FOLDER = Path(__file__).resolve().parents[1] / "data" / "checkpoints"


def content(name: str) -> dict[str, Any]:
    """The file as it is; written by the script beside it, and so not to be mistrusted."""
    return torch.load(FOLDER / f"{name}.pt", weights_only=False)["state"]


def trainer(name: str, module: torch.nn.Module, optimizer: Any, data: Any, **arguments: Any) -> Trainer:
    arguments.setdefault("max_duration", "12ba")
    return Trainer(
        model=ComposerClassifier(module, num_classes=3),
        train_dataloader=DataLoader(data, 4, shuffle=True),
        optimizers=optimizer,
        progress_bar=False,
        load_path=str(FOLDER / f"{name}.pt"),
        **arguments,
    )


def check_converted(loaded: Trainer, saved: dict[str, Any]) -> None:
    """Weights, optimizer and time are those of the file."""
    state = loaded.state
    weights = state.model.state_dict()
    constant = [name for name in saved["model"] if name.endswith(CONSTANTS)]
    assert weights.keys() == saved["model"].keys() - set(constant)
    assert all(torch.equal(value, saved["model"][name]) for name, value in weights.items())
    (kept,) = saved["optimizers"].values()
    names = {parameter: name for name, parameter in state.model.named_parameters()}
    found = {names[parameter]: value for parameter, value in state.optimizers[0].state.items()}
    assert found.keys() == kept["state"].keys()
    for name, value in kept["state"].items():
        torch.testing.assert_close(dict(found[name]), value, rtol=0, atol=0)
    told = saved["timestamp"]["Timestamp"]
    counters = ("iteration", "epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch")
    assert {name: int(getattr(state.timestamp, name)) for name in counters} == {name: told[name] for name in counters}
    assert state.timestamp.total_wct == told["total_wct"]
    assert state.rank_zero_seed == 7


def rates(loaded: Trainer) -> list[float]:
    """Train on; return the learning rates of the first group at each step."""
    monitor = LRMonitor()
    seen: list[float] = []
    monitor.batch_start = lambda state, logger: seen.append(state.optimizers[0].param_groups[0]["lr"])
    loaded.state.callbacks.append(monitor)
    before = loaded.state.model.state_dict()["module.0.weight"].clone()
    loaded.fit()
    assert not torch.equal(before, loaded.state.model.state_dict()["module.0.weight"])
    assert all(bool(value.isfinite().all()) for value in loaded.state.model.state_dict().values())
    return seen


def test_momentum_saved_within_an_epoch() -> None:
    module = mlp()
    loaded = trainer(
        "sgd_momentum",
        module,
        momentum(module),
        samples(4, count=22),
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup="3ba", t_max="12ba"),
        callbacks=[SpeedMonitor(), EarlyStopper("MulticlassAccuracy", "train", patience="9ep")],
    )
    check_converted(loaded, content("sgd_momentum"))
    assert loaded.state.timestamp.batch_in_epoch == 2
    expected = [0.1 * (1 + math.cos(math.pi * (step - 3) / 9)) / 2 for step in range(8, 12)]
    assert rates(loaded) == pytest.approx(expected)
    assert (int(loaded.state.timestamp.epoch), int(loaded.state.timestamp.batch)) == (2, 12)


def test_adamw_with_two_groups_and_an_average() -> None:
    module = mlp()
    average = EMA(half_life="3ba", update_interval="1ba")
    loaded = trainer(
        "adamw_ema",
        module,
        by_kind(module),
        samples(4, count=22),
        schedulers=LinearScheduler(t_max="12ba"),
        algorithms=[average, LabelSmoothing(0.1)],
    )
    saved = content("adamw_ema")
    check_converted(loaded, saved)
    assert [group["weight_decay"] for group in loaded.state.optimizers[0].param_groups] == [0.1, 0.0]
    (kept,) = [value for name, value in saved["algorithms"] if name == "EMA"]
    parts = [*kept["ema_model"]["named_parameters_dict"].values()]
    assert parts, "the file has an average"
    found = _tensors(average.state_dict())
    assert all(any(torch.equal(one, other) for other in found if one.shape == other.shape) for one in parts)
    assert rates(loaded) == pytest.approx([0.01 * (1 - step / 12) for step in range(8, 12)])


def _tensors(node: Any) -> list[torch.Tensor]:
    if isinstance(node, torch.Tensor):
        return [node]
    values = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    return [tensor for value in values for tensor in _tensors(value)]


def test_replaced_layers_are_recreated() -> None:
    module = net()
    with pytest.warns(ComposerWarning, match=r"required_on_load algorithm BlurPool\(replace_convs=True.*was saved"):
        loaded = trainer("blurpool", module, momentum(module), samples(1, 8, 8, count=8), max_duration="2ep")
    assert [type(algorithm) for algorithm in loaded.state.algorithms] == [BlurPool]
    check_converted(loaded, content("blurpool"))
    rates(loaded)
    assert int(loaded.state.timestamp.epoch) == 2


def test_averaged_weights_swapped_in_when_saved() -> None:
    value = {
        "repr": "EMA()",
        "ema_started": True,
        "ema_weights_active": True,
        "ema_model": {
            "named_parameters_dict": {"weight": torch.ones(1)},
            "named_buffers_dict": {"mean": torch.zeros(1)},
        },
    }
    model = {"weight": torch.full((1,), 5.0), "mean": torch.full((1,), 6.0), "other": torch.ones(1)}
    read = {"state": {"model": model, "algorithms": [("EMA", value)]}}
    upgrade(read)
    average = EMA()
    average.load_state_dict(read["state"]["algorithms"][0][1])
    kept = average.state_dict()
    assert kept["averages"] == {"weight": 5.0, "mean": 6.0}
    assert kept["training"] == {"weight": 1.0, "mean": 0.0}


@pytest.mark.parametrize("completed", [False, True])
def test_swa_average(completed) -> None:
    kept = {"n_averaged": torch.tensor(3), "module.linear.weight": torch.full((1, 4), 2.0)}
    value = {"repr": "SWA()", "swa_model": kept, "swa_completed": completed, "swa_started": True, "step_counter": 3}
    optimizer = {"param_groups": [{"lr": 0.25, "params": []}]}
    read = {"state": {"model": {}, "algorithms": {"SWA": value}, "optimizers": {"SGD": optimizer}}}
    upgrade(read)
    ((name, state),) = read["state"]["algorithms"]
    average = SWA()
    average.load_state_dict(state)
    assert (name, average.num_averaged, average.swa_completed) == ("SWA", 3, completed)
    assert (state["rates"], list(state["averages"])) == ((None, []) if completed else ([0.25], ["linear.weight"]))


def test_current_format_is_unchanged() -> None:
    saved = [("EMA", {**EMA().state_dict()})]
    read = {"state": {"model": {}, "algorithms": saved}}
    upgrade(read)
    assert read["state"]["algorithms"] is saved


def test_weights_only() -> None:
    module = mlp()
    loaded = trainer("sgd_momentum", module, momentum(module), samples(4, count=22), load_weights_only=True)
    assert torch.equal(module[0].weight, content("sgd_momentum")["model"]["module.0.weight"])
    assert int(loaded.state.timestamp.batch) == 0
