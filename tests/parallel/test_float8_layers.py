"""Linear layers in float8 with torchao, emulated: which are converted, and what stays."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from composer import ComposerModel
from composer.parallel import restore_linear_layers
from composer.parallel.float8_layers import Float8Settings, convert_to_float8, converted_layers
from composer.warnings import ComposerWarning
from tests.common import regression_data, trainer_of
from tests.parallel.sharded import full_weights

torchao_float8: Any = pytest.importorskip("torchao.float8")

EMULATE = {"emulate": True}
WIDTH = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Blocks(ComposerModel):
    """A regression of batches (x, y)."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first = nn.Linear(4, WIDTH)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.last = nn.Linear(WIDTH, 1)

    def forward(self, batch):
        x = self.first(batch[0])
        for block in self.blocks:
            x = block(x)
        return self.last(x)

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs.float(), batch[1])


def settings(**config: Any) -> Float8Settings:
    return Float8Settings.of({**EMULATE, **config}, "cpu")


def run(precision: str = "amp_fp8", **arguments: Any) -> Any:
    model = Blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if precision == "amp_fp8":
        arguments["precision_config"] = EMULATE
    trainer = trainer_of(model, regression_data(4, 8), optimizers=optimizer, precision=precision, seed=5, **arguments)
    trainer.fit()
    trainer.close()
    return trainer


def names_of(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if type(module).__name__ == "Float8Linear"]


def test_which_layers() -> None:
    class Own(nn.Linear):
        pass

    model = nn.Sequential(
        nn.Linear(16, 32),
        nn.Linear(32, 32),
        nn.Linear(32, 40),  # not divisible
        nn.Linear(40, 32),
        Own(32, 32),
        nn.MultiheadAttention(32, 2),
        nn.Linear(32, 48),
        nn.Linear(48, 16),
    )
    every = copy.deepcopy(model)
    assert convert_to_float8(model, settings()) == ["1", "6"] == names_of(model)
    chosen = settings(module_filter_fn=lambda module, name: True)
    assert convert_to_float8(every, chosen) == ["0", "1", "6", "7"]
    with pytest.raises(ValueError, match=r"converts no layer of Linear: of its 1 linear layers, 0 are .*amp_bf16"):
        convert_to_float8(nn.Linear(3, 3), settings())
    with pytest.raises(ValueError, match=r"of its 1 linear layers, 1 are torch.nn.Linear.*first and the last"):
        convert_to_float8(nn.Sequential(nn.Linear(16, 16)), settings())
    with pytest.raises(ValueError, match="the filter left all"):
        convert_to_float8(nn.Sequential(nn.Linear(16, 16)), settings(module_filter_fn=lambda module, name: False))


def test_a_layer_with_two_names_stays_one_and_keeps_its_mode() -> None:
    shared = nn.Linear(32, 32).eval()
    model = nn.Sequential(nn.Linear(16, 32), shared, nn.ReLU(), shared, nn.Linear(32, 16))
    weight = shared.weight
    assert convert_to_float8(model, settings()) == ["1"]
    assert model[1] is model[3]
    assert model[1].weight is weight
    assert not model[1].training
    restore_linear_layers(model)
    assert type(model[1]) is nn.Linear
    assert model[1] is model[3]
    assert model[1].weight is weight
    assert not model[1].training


def test_a_layer_keeps_its_hooks_and_attributes() -> None:
    model, calls = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 16)), []
    layer: Any = model[1]
    before = set(vars(layer))

    def hook(name: str) -> Any:
        return lambda *args: calls.append(name)

    layer.note = "x"
    layer.register_buffer("scale", torch.ones(1))
    handles = [
        layer.register_forward_pre_hook(hook("forward_pre")),
        layer.register_forward_hook(hook("forward")),
        layer.register_full_backward_pre_hook(hook("backward_pre")),
        layer.register_full_backward_hook(hook("backward")),
        layer.register_state_dict_pre_hook(hook("state_dict_pre")),
        layer.register_state_dict_post_hook(hook("state_dict")),
        layer.register_load_state_dict_pre_hook(hook("load_state_dict_pre")),
        layer.register_load_state_dict_post_hook(hook("load_state_dict")),
    ]

    def names() -> list[str]:
        calls.clear()
        model(torch.randn(16, 16)).sum().backward()
        model.load_state_dict(model.state_dict())
        return sorted(calls)

    expected = names()
    assert len(expected) == len(handles)
    convert_to_float8(model, settings())
    assert names_of(model) == ["1"]
    assert names() == expected
    restore_linear_layers(model)
    assert not names_of(model)
    assert names() == expected
    assert model[1] is layer
    assert set(vars(layer)) == before | {"note"}
    assert list(layer.state_dict()) == ["weight", "bias", "scale"]
    convert_to_float8(model, settings())
    for handle in handles:
        handle.remove()
    assert not names()


def test_layers_with_a_forward_of_their_own_stay() -> None:
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
    model[1].forward = lambda x: x
    assert convert_to_float8(model, settings()) == ["2"]
    restore_linear_layers(model)
    model[2].config = "mine"
    with pytest.raises(ValueError, match=r"the layer 2: it has the attribute 'config', .*module_filter_fn"):
        convert_to_float8(model, settings())
    assert (model[2].config, names_of(model)) == ("mine", [])


def test_a_later_trainer_converts_with_its_own_settings() -> None:
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(4)])
    convert_to_float8(model, settings())
    convert_to_float8(model, settings(recipe="rowwise", module_filter_fn=lambda module, name: name == "2"))
    assert names_of(model) == ["2"]
    assert model[2].config.cast_config_input.scaling_granularity is torchao_float8.config.ScalingGranularity.AXISWISE


def test_another_precision_on_converted_layers_warns() -> None:
    model = Blocks()
    arguments: dict[str, Any] = {"data": regression_data(4, 8)}
    trainer_of(model, precision="amp_fp8", precision_config=EMULATE, **arguments)
    with pytest.warns(ComposerWarning, match=r"4 linear layers .* although the precision is 'fp32'.*restore_linear_la"):
        trainer_of(model, precision="fp32", **arguments)
    restore_linear_layers(model)
    assert not converted_layers(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ComposerWarning)
        trainer_of(model, precision="fp32", **arguments)
        torchao_float8.convert_to_float8_training(model.blocks, config=settings().config)  # as the user wants it
        trainer_of(model, precision="fp32", **arguments)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_values_are_rounded_to_float8(recipe: str) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 16))
    other = copy.deepcopy(model)
    convert_to_float8(other, settings(recipe=recipe))
    x = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    expected, found = model(x), other(x)
    expected.sum().backward()
    found.sum().backward()
    error = float(((found - expected).norm() / expected.norm()).detach())
    assert 1e-3 < error < 0.1  # e4m3 has a relative rounding error of 1/16
    gradient, exact = other[1].weight.grad, model[1].weight.grad
    assert gradient.dtype is torch.float32
    assert 1e-4 < float((gradient - exact).norm() / exact.norm()) < 0.2


def test_settings() -> None:
    with pytest.raises(ValueError, match=r"'emulat'.*Did you mean 'emulate'"):
        Float8Settings.of({"emulat": True}, "cpu")
    with pytest.raises(ValueError, match=r"recipe must be one of .*Did you mean 'rowwise'"):
        settings(recipe="rowwize")
    with pytest.raises(ValueError, match="cannot be emulated on the CPU"):
        settings(recipe="rowwise_with_gw_hp")
    with pytest.raises(ValueError, match="incompatible operand precision"):
        settings(cast_config_input=torchao_float8.CastConfig(torchao_float8.ScalingType.DISABLED))
    with pytest.raises(ValueError, match="enable_fsdp_float8_all_gather=True is not supported"):
        settings(enable_fsdp_float8_all_gather=True)
    with pytest.raises(TypeError, match="module_filter_fn must be a function"):
        settings(module_filter_fn=["output"])
    for value in ("no", 1, None):
        with pytest.raises(TypeError, match=f"precision_config: emulate must be True or False, but is {value!r}"):
            Float8Settings.of({"emulate": value}, "cpu")
    with pytest.raises(TypeError, match="pad_inner_dim must be True or False, but is 'yes'"):
        settings(pad_inner_dim="yes")
    with pytest.raises(ValueError, match="requires an accelerator"):
        Float8Settings.of({}, "cpu")


def test_resumes_bit_for_bit_and_goes_on_in_another_precision(tmp_path: Path) -> None:
    expected = run(max_duration="2ep")
    assert names_of(expected.state.model) == [f"blocks.{i}.{name}" for i in (0, 1) for name in ("up", "down")][0:4]
    run(max_duration="6ba", save_folder=tmp_path, save_interval="6ba")
    file = tmp_path / "latest-rank0.pt"
    found = run(max_duration="2ep", load_path=file)
    assert all(
        torch.equal(a, b)
        for a, b in zip(found.state.model.parameters(), expected.state.model.parameters(), strict=True)
    )
    saved = torch.load(file, weights_only=True)["state"]["model"]
    plain = Blocks().state_dict()
    assert {name: value.dtype for name, value in saved.items()} == {name: one.dtype for name, one in plain.items()}
    other = run("amp_bf16", max_duration="2ep", load_path=file)
    assert not names_of(other.state.model)
    back = run(max_duration="2ep", load_path=file)
    assert not torch.equal(back.state.model.blocks[0].up.weight, other.state.model.blocks[0].up.weight)
    torch.testing.assert_close(
        back.state.model.blocks[0].up.weight, other.state.model.blocks[0].up.weight, rtol=0, atol=0.05
    )


@pytest.mark.parametrize(("before", "after"), [("amp_bf16", "amp_fp8"), ("amp_fp8", "amp_bf16"), ("amp_fp8", "fp32")])
def test_another_precision_needs_another_trainer(before: str, after: str) -> None:
    config = EMULATE if before == "amp_fp8" else None
    trainer = trainer_of(Blocks(), regression_data(4, 8), precision=before, precision_config=config)
    message = (
        f"precision='{after}', but the Trainer was created with precision='{before}': fit cannot change the precision "
        f"to or from amp_fp8, .* Create a Trainer with precision='{after}', and load_path="
    )
    with pytest.raises(ValueError, match=message):
        trainer.fit(precision=after)
    assert trainer.state.precision == before
    trainer.fit(precision=before)


def test_exports_a_linear_layer(tmp_path: Path) -> None:
    trainer = run()
    x, y = regression_data(1, 8)[0]
    path = tmp_path / "model.pt2"
    trainer.export_for_inference("torch_export", path, sample_input=(x, y))
    assert names_of(trainer.state.model)
    plain = Blocks()
    plain.load_state_dict(trainer.state.model.state_dict())
    found = torch.export.load(path).module()((x, y))
    torch.testing.assert_close(found, plain((x, y)))


def _sharded(folder: Path, kind: str) -> tuple[Any, ...]:
    parallel = {"fsdp": {"state_dict_type": kind}}
    expected = run(max_duration="2ep", parallelism_config=parallel)
    run(max_duration="6ba", save_folder=folder, save_interval="6ba", parallelism_config=parallel)
    [path] = folder.glob("latest-rank0.pt" if kind == "full" else "ep*ba6")
    found = run(max_duration="2ep", parallelism_config=parallel, load_path=path)
    a, b = full_weights(found.state.model), full_weights(expected.state.model)
    other = run("amp_bf16", max_duration="2ep", parallelism_config=parallel, load_path=path)
    return all(torch.equal(a[name], b[name]) for name in b), names_of(found.state.model), names_of(other.state.model)


@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_sharded_runs_resume_bit_for_bit(two_ranks: Any, kind: str, tmp_path: Path) -> None:
    for same, converted, others in two_ranks.run(_sharded, tmp_path, kind):
        assert same
        assert len(converted) == 4
        assert not others
