"""Load checkpoints into a run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from composer import Algorithm, State, Timestamp, dist
from composer.algorithms import BlurPool, LabelSmoothing
from composer.checkpoint import file_format
from composer.checkpoint.load import load_checkpoint, read_checkpoint, restore, safe_torch_load
from composer.checkpoint.safetensors_files import write_safetensors
from composer.checkpoint.save import collect, save_checkpoint
from composer.core import Engine
from composer.warnings import ComposerWarning
from tests.common import Regression, weights_of


def state(model: Any = None, **arguments: Any) -> State:
    model = Regression() if model is None else model
    return State(model=model, optimizers=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **arguments)


def give(target: State, content: Any, **options: Any) -> Any:
    return restore(target, Engine(target).logger, content, **options)


def saved(source: State, tmp_path: Any) -> str:
    path = save_checkpoint(source, str(tmp_path / "a.pt"))
    assert path is not None
    return path


# --------------------------------------------------------------------------------------------------- reading


def test_every_format_is_loaded_as_a_checkpoint(tmp_path) -> None:
    weights = dict(Regression().state_dict())
    forms = {
        "whole.pt": {"state": {"model": weights}, "rng": []},
        "bare.pt": weights,
        "lightning.ckpt": {"state_dict": weights, "epoch": 3},
    }
    for name, content in forms.items():
        torch.save(content, tmp_path / name)
    write_safetensors(weights, tmp_path / "weights.safetensors")
    for name in [*forms, "weights.safetensors"]:
        model = read_checkpoint(tmp_path / name)["state"]["model"]
        assert model.keys() == weights.keys(), name
        assert all(torch.equal(model[key], value) for key, value in weights.items())
    # A parameter may have the name of a part.
    torch.save({"state": torch.ones(1)}, tmp_path / "named.pt")
    assert list(read_checkpoint(tmp_path / "named.pt")["state"]["model"]) == ["state"]


def test_safe_torch_load(tmp_path, monkeypatch) -> None:
    weight = torch.ones(2)
    file_format.write({"a": weight, "b": weight}, tmp_path / "a.pt")
    read = safe_torch_load(tmp_path / "a.pt")
    assert read["a"].data_ptr() == read["b"].data_ptr()
    assert safe_torch_load(tmp_path / "a.pt", "meta")["a"].is_meta
    monkeypatch.setattr(dist, "get_global_rank", lambda: 1)
    assert safe_torch_load(tmp_path / "a.pt", load_monolith_rank0_only=True) == {}


# --------------------------------------------------------------------------------------------------- weights


def test_weights_and_other_entries(tmp_path) -> None:
    source, target = state(max_duration="5ba"), state()
    source.timestamp = Timestamp(batch=3)
    numbers = load_checkpoint(saved(source, tmp_path), target, Engine(target).logger)
    assert torch.equal(weights_of(target.model), weights_of(source.model))
    assert target.timestamp.batch == 3
    assert numbers is not None
    assert len(numbers) == 1
    loaded = give(state(), collect(source))
    assert (loaded.max_duration, loaded.metadata["world_size"]) == ("5ba", 1)


def test_weights_only(tmp_path) -> None:
    source, target = state(), state()
    source.timestamp = Timestamp(batch=3)
    assert load_checkpoint(saved(source, tmp_path), target, Engine(target).logger, load_weights_only=True) is None
    assert torch.equal(weights_of(target.model), weights_of(source.model))
    assert target.timestamp.batch == 0


def test_path_may_contain_placeholders(tmp_path) -> None:
    source, target = state(), state(run_name="night")
    save_checkpoint(source, str(tmp_path / "night-0.pt"))
    load_checkpoint(str(tmp_path / "{run_name}-{rank}.pt"), target, Engine(target).logger)
    assert torch.equal(weights_of(target.model), weights_of(source.model))


def test_all_mismatched_names_are_reported_together() -> None:
    content = collect(state())
    weights = content["state"]["model"]
    weights["extra"] = weights.pop("linear.bias")
    said = r"^Error\(s\) in loading .* lacks linear.bias; the model lacks extra.*load_strict_model_weights=False"
    with pytest.raises(RuntimeError, match=said):
        give(state(), dict(content))
    with pytest.warns(ComposerWarning, match="Not all weights were loaded"):
        give(target := state(), content, strict=False)
    assert torch.equal(target.model.linear.weight, weights["linear.weight"])


@pytest.mark.parametrize("strict", [True, False])
def test_mismatched_shapes(strict) -> None:
    content = collect(state())
    content["state"]["model"]["linear.bias"] = torch.ones(7)
    with pytest.raises(
        RuntimeError, match=r"size mismatch for linear.bias: \(7,\) in the checkpoint and \(1,\) in the model"
    ):
        give(state(), content, strict=strict)


def test_the_prefix_of_a_wrapped_model() -> None:
    source, target = state(), state()
    weights = {f"module.{name}": value for name, value in source.model.state_dict().items()}
    give(target, {"state": {"model": weights, "_is_model_ddp_wrapped": True}})
    assert torch.equal(weights_of(target.model), weights_of(source.model))


def test_lazy_layers() -> None:
    class Lazy(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.LazyLinear(1)

    source = state()
    target = State(model=Lazy())
    give(target, {"state": {"model": dict(source.model.state_dict())}})
    assert torch.equal(target.model.linear.weight, source.model.linear.weight)


def test_tied_weights_stay_tied(tmp_path) -> None:
    class Tied(Regression):
        def __init__(self) -> None:
            super().__init__()
            self.head = self.linear

    source, target = state(Tied()), state(Tied())
    load_checkpoint(saved(source, tmp_path), target, Engine(target).logger)
    assert target.model.head.weight is target.model.linear.weight
    assert torch.equal(weights_of(target.model), weights_of(source.model))


def without_bias(content: dict[str, Any]) -> None:
    content["state"]["model"].pop("linear.bias")


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("ignore", [["state/model/*bias"], without_bias])
def test_ignored_weights_may_be_missing(ignore, strict, weights_only, wrapped) -> None:
    """No error and no warning: the user has asked for it."""
    source, target = state(), state()
    source.timestamp = Timestamp(batch=3)
    before = target.model.linear.bias.clone()
    content = collect(source)
    if wrapped and ignore is not without_bias:
        content["state"]["model"] = {f"module.{name}": value for name, value in content["state"]["model"].items()}
        content["state"]["_is_model_ddp_wrapped"] = True
    give(target, content, ignore_keys=ignore, strict=strict, weights_only=weights_only)
    assert torch.equal(target.model.linear.bias, before)
    assert torch.equal(target.model.linear.weight, source.model.linear.weight)
    assert target.timestamp.batch == (0 if weights_only else 3)


def test_names_changed_by_a_function_are_compared() -> None:
    def rename(content: dict[str, Any]) -> None:
        content["state"]["model"] = {f"old.{name}": value for name, value in content["state"]["model"].items()}

    with pytest.raises(RuntimeError, match=r"the model lacks old.linear.weight"):
        give(state(), collect(state()), ignore_keys=rename)


def test_weights_not_in_the_checkpoint_are_still_missing() -> None:
    content = collect(state())
    del content["state"]["model"]["linear.weight"]
    with pytest.raises(RuntimeError, match=r"the checkpoint lacks linear.weight\. Load"):
        give(state(), content, ignore_keys=["state/model/*bias"])


# --------------------------------------------------------------------------------------------------- methods


class Convolutions(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Sequential(nn.Conv2d(16, 16, 3, stride=2), nn.Flatten(), nn.Linear(16, 1))


def blurred() -> State:
    source = state(Convolutions())
    engine = Engine(source, algorithms=[LabelSmoothing(0.1), BlurPool(replace_convs=True)])
    engine.run_event("init")
    return source


def test_required_algorithms_are_recreated() -> None:
    source, target = blurred(), state(Convolutions())
    with pytest.warns(
        ComposerWarning,
        match="^Automatically adding required_on_load algorithm BlurPool.*load_exclude_algorithms=..BlurPool",
    ):
        give(target, collect(source))
    assert [type(one) for one in target.algorithms] == [BlurPool]  # and not LabelSmoothing, which changes no weights
    assert target.model.state_dict().keys() == source.model.state_dict().keys()
    assert torch.equal(weights_of(target.model), weights_of(source.model))


def test_algorithms_are_excluded_by_name() -> None:
    target = state(Convolutions())
    with pytest.raises(RuntimeError, match="of another model"):
        give(target, collect(blurred()), exclude_algorithms=["BlurPool"])
    with pytest.raises(ValueError, match="Did you mean 'BlurPool'"):
        give(target, collect(blurred()), exclude_algorithms=["BlurPol"])


def test_algorithm_with_other_settings_is_reported() -> None:
    source, target = blurred(), state(Convolutions())
    engine = Engine(target, algorithms=[BlurPool(replace_convs=True, min_channels=15)])
    engine.run_event("init")
    with pytest.warns(ComposerWarning, match="min_channels=16.* and is loaded with .*min_channels=15"):
        give(target, collect(source))


def test_algorithm_without_a_description_is_not_required() -> None:
    class Silent(Algorithm):
        def state_dict(self):
            return {}

    source, target = state(), state()
    source.algorithms = [Silent()]
    give(target, collect(source))
    assert torch.equal(weights_of(target.model), weights_of(source.model))


# ---------------------------------------------------------------------------------------- what is not there


def test_checkpoint_without_weights_is_an_error() -> None:
    with pytest.warns(ComposerWarning, match="has no weights: the model keeps its current ones"):
        give(state(), {"state": {"timestamp": {"Timestamp": Timestamp(epoch=1).state_dict()}}})


def test_non_tensor_weights_are_named() -> None:
    weights = Regression().state_dict()
    name = next(iter(weights))
    with pytest.raises(RuntimeError, match=f"{name} is str in the checkpoint, but a tensor in the model"):
        give(state(), {"state": {"model": {**weights, name: "text"}}})
