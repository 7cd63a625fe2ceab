"""Quantized optimizer states of torchao in checkpoints: plain tensors, which resume bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from composer import ComposerModel
from composer.checkpoint.optimizer_states import optimizer_state, set_optimizer_state
from composer.checkpoint.quantized_states import dequantized_parts, quantized_from_parts
from composer.surgery import replace_module_classes
from tests.common import regression_data, trainer_of

optim: Any = pytest.importorskip("torchao.optim")

CLASSES = {
    "Adam8bit": "OptimState8bit",
    "AdamW8bit": "OptimState8bit",
    "AdamW4bit": "OptimState4bit",
    "AdamWFp8": "OptimStateFp8",
}
WIDTH = 64  # 64 * 128 values: torchao quantizes from 4096 on, in whole blocks


@pytest.fixture(autouse=True)
def _not_compiled() -> Iterator[None]:
    """torchao compiles the step; what it computes is the same without, and begins at once."""
    with torch.compiler.set_stance("force_eager"):
        yield


class Wide(ComposerModel):
    """A regression of batches (x, y) with matrices that are quantized, vectors that are not, and a weight "scale"."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.up, self.down = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 128), nn.Linear(128, WIDTH)
            self.last, self.scale = nn.Linear(WIDTH, 1), nn.Parameter(torch.ones(64, 1))

    def forward(self, batch):
        return self.last(self.down(torch.relu(self.up(self.first(batch[0])))) * self.scale.mean())

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs, batch[1])


def run(name: str, folder: Path | None = None, **arguments: Any) -> Any:
    model = Wide()
    optimizer = getattr(optim, name)(model.parameters(), lr=1e-4)
    trainer = trainer_of(model, regression_data(4, 8), optimizers=optimizer, seed=5, save_folder=folder, **arguments)
    trainer.fit()
    trainer.close()
    return trainer


def values(trainer: Any) -> list[torch.Tensor]:
    """All weights and the parts of all optimizer states, of this rank."""
    state = optimizer_state(trainer.state.model, trainer.state.optimizers[0])["state"]
    parts = [part for each in state.values() for value in each.values() for part in _leaves(value)]
    tensors = [*trainer.state.model.parameters(), *parts]
    return [(one.to_local() if hasattr(one, "to_local") else one).detach().clone() for one in tensors]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("shape", "is_quantized"), [((64, 64), True), ((64, 63), False), ((65, 80), False), ((65, 80, 16), True)]
)
def test_which_moments_are_quantized(name: str, shape: tuple[int, ...], is_quantized: bool) -> None:
    """As docs/guides/numerics.md says."""
    weight = nn.Parameter(torch.ones(shape))
    optimizer = getattr(optim, name)([weight], lr=1e-4)
    assert optimizer.block_size == (128 if "4bit" in name else 256)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    moment = optimizer.state[weight]["exp_avg"]
    assert type(moment).__name__ == (CLASSES[name] if is_quantized else "Tensor")


def _leaves(value: Any) -> list[torch.Tensor]:
    return [part for part in value.values() if isinstance(part, torch.Tensor)] if isinstance(value, dict) else [value]


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return [one.dtype for one in a] == [one.dtype for one in b] and all(
        torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
        for one, other in zip((x.reshape(-1) for x in a), (x.reshape(-1) for x in b), strict=True)
    )


@pytest.mark.parametrize(("name", "kind"), CLASSES.items())
def test_resumes_bit_for_bit_and_holds_only_plain_tensors(name: str, kind: str, tmp_path: Path) -> None:
    expected = run(name, max_duration="2ep")
    run(name, tmp_path, max_duration="6ba", save_interval="6ba")
    file = tmp_path / "latest-rank0.pt"
    content = torch.load(file, weights_only=True)
    state = content["state"]["optimizers"][name]["state"]["up.weight"]
    assert state["exp_avg"]["torchao_codes"].element_size() == 1
    found = run(name, max_duration="2ep", load_path=file)
    assert same(values(found), values(expected))
    kinds = {type(one).__name__ for one in found.state.optimizers[0].state[found.state.model.up.weight].values()}
    assert kinds == {"Tensor", kind}


def test_the_class_in_a_checkpoint_selects_nothing_else() -> None:
    parameter = nn.Parameter(torch.ones(WIDTH, WIDTH))
    wrong = {"exp_avg": {"torchao_class": "OptimState9bit", "torchao_context": []}}
    with pytest.raises(ValueError, match=r"'OptimState9bit'.*Did you mean"):
        quantized_from_parts(wrong, parameter, "weight")
    made = optim.AdamW8bit([parameter])
    parameter.grad = torch.ones_like(parameter)
    made.step()
    parts = dequantized_parts(made.state[parameter], "weight")
    with pytest.raises(ValueError, match=r"optimizer state of weight has shape \(64, 64\), but .* \(32, 64\)"):
        quantized_from_parts(parts, torch.ones(32, WIDTH), "weight")


def test_surgery_keeps_the_states_of_other_layers() -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False))
    optimizer = optim.AdamW8bit(model.parameters(), lr=1e-4)
    model(torch.ones(2, WIDTH)).sum().backward()
    optimizer.step()
    kept, removed = model[0].weight, model[2].weight
    before = copy.deepcopy(dequantized_parts(optimizer.state[kept], ""))
    made = nn.Linear(WIDTH, WIDTH, bias=False)
    old = model[2]
    replace_module_classes(model, {nn.Linear: lambda module, index: made if module is old else None}, optimizer)
    assert removed not in optimizer.state
    after = dequantized_parts(optimizer.state[kept], "")
    assert torch.equal(before["exp_avg"]["torchao_codes"], after["exp_avg"]["torchao_codes"])
    model(torch.ones(2, WIDTH)).sum().backward()
    optimizer.step()
    assert type(optimizer.state[made.weight]["exp_avg"]).__name__ == "OptimState8bit"


def test_groups_in_another_order() -> None:
    model = Wide()
    optimizer = optim.AdamW8bit([{"params": [model.up.weight]}, {"params": [model.down.weight], "lr": 0.5}])
    for parameter in (model.up.weight, model.down.weight):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = copy.deepcopy(optimizer_state(model, optimizer))
    other = optim.AdamW8bit([{"params": [model.down.weight]}, {"params": [model.up.weight]}])
    set_optimizer_state(model, other, saved)
    assert [float(group["lr"]) for group in other.param_groups] == [0.5, pytest.approx(0.001)]
    assert all(isinstance(group["lr"], torch.Tensor) for group in other.param_groups)  # as torchao needs it


def _sharded(name: str, folder: Path, kind: str) -> bool:
    with torch.compiler.set_stance("force_eager"):
        config = {"fsdp": {"state_dict_type": kind}}
        expected = run(name, max_duration="2ep", parallelism_config=config)
        run(name, folder, max_duration="6ba", save_interval="6ba", parallelism_config=config)
        pattern = "latest-rank0.pt" if kind == "full" else "ep*ba6"
        [path] = folder.glob(pattern)
        found = run(name, max_duration="2ep", parallelism_config=config, load_path=path)
        exp_avg = found.state.optimizers[0].state[found.state.model.up.weight]["exp_avg"]
        assert type(exp_avg.to_local()).__name__.startswith("OptimState")
        return same(values(found), values(expected))


@pytest.mark.parametrize("kind", ["full", "sharded"])
@pytest.mark.parametrize("name", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_sharded_runs_resume_bit_for_bit(two_ranks: Any, name: str, kind: str, tmp_path: Path) -> None:
    assert two_ranks.run(_sharded, name, tmp_path, kind) == [True, True]


@pytest.mark.filterwarnings("ignore:The random state was saved with 2 ranks")
def test_a_sharded_checkpoint_goes_on_in_one_process(two_ranks: Any, tmp_path: Path) -> None:
    two_ranks.run(_sharded, "AdamW8bit", tmp_path, "full")
    found = run("AdamW8bit", max_duration="2ep", load_path=tmp_path / "latest-rank0.pt", spin_dataloaders=False)
    assert all(value.isfinite().all() for value in values(found))
