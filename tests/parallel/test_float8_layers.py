"""Linear layers in float8 with torchao, emulated: which are converted, and what stays."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from composer import ComposerModel
from composer.parallel.float8_layers import Float8Settings, convert_to_float8, restore_linear_layers
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


def test_another_precision_needs_another_trainer() -> None:
    model = Blocks()
    trainer = trainer_of(model, precision="amp_bf16", data=regression_data(4, 8))
    with pytest.raises(ValueError, match="requires an accelerator"):
        trainer.fit(precision="amp_fp8")
    trainer.fit()
    trainer = run(max_duration="1ep")
    trainer = trainer_of(Blocks(), regression_data(4, 8), precision="amp_fp8", precision_config=EMULATE)
    trainer.state.precision_config = None
    with pytest.raises(ValueError, match=r"prepared the layers of the model for 'amp_fp8'.*load_path="):
        trainer.fit(precision="amp_bf16")
    assert trainer.state.precision == "amp_fp8"
    trainer.fit()


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
