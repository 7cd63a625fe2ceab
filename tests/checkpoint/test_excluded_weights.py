"""Weights excluded on purpose when a checkpoint is saved or loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import State, Trainer
from composer.checkpoint.file_format import DamagedCheckpointError
from composer.checkpoint.load import open_checkpoint, restore
from composer.checkpoint.save import collect, save_checkpoint
from composer.core.checkpoint_folders import CheckpointFolders
from composer.core.logger import Logger
from composer.models import ComposerClassifier
from composer.warnings import ComposerWarning


class Net(nn.Module):
    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 5)
        self.fc2 = nn.Linear(5, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(x).relu())


def loader(classes: int = 3) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(8, 4, generator=generator), torch.randint(0, classes, (8,), generator=generator)
    return DataLoader(TensorDataset(*data), 4)


def trainer(tmp_path: Path, module: nn.Module | None = None, classes: int = 3, **options: Any) -> Trainer:
    module = Net(classes) if module is None else module
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return Trainer(
        **{
            "model": ComposerClassifier(module, num_classes=classes),
            "train_dataloader": loader(classes),
            "optimizers": torch.optim.AdamW(trained, lr=0.01),
            "max_duration": "2ep",
            "device": "cpu",
            **options,
        }
    )


def saved(tmp_path: Path, **options: Any) -> str:
    first = trainer(tmp_path, save_folder=str(tmp_path / "a"), max_duration="1ep", **options)
    first.fit()
    return first.saved_checkpoints[-1]


def moments(run: Trainer) -> dict[str, torch.Tensor]:
    names = {parameter: name for name, parameter in run.state.model.named_parameters()}
    return {names[parameter]: state["exp_avg"] for parameter, state in run.state.optimizers[0].state.items()}


@pytest.mark.parametrize("ignore", [["state/model/module.fc2*"], "function"])
def test_head_with_another_size_trains(tmp_path, ignore) -> None:
    def edit(content: dict[str, Any]) -> None:
        for name in ("weight", "bias"):
            content["state"]["model"].pop(f"module.fc2.{name}")

    path = saved(tmp_path)
    with pytest.warns(ComposerWarning, match=r"of AdamW .* not loaded for module.fc2.bias, module.fc2.weight, whose"):
        run = trainer(tmp_path, classes=7, load_path=path, load_ignore_keys=edit if ignore == "function" else ignore)
    assert sorted(moments(run)) == ["module.fc1.bias", "module.fc1.weight"]
    run.fit()
    assert run.state.timestamp.epoch == 2


def test_optimizer_state_of_reinitialized_weights_is_skipped(tmp_path) -> None:
    path = saved(tmp_path)
    with pytest.warns(ComposerWarning, match="not loaded for module.fc2"):
        run = trainer(tmp_path, load_path=path, load_ignore_keys=["state/model/module.fc2*"])
    assert sorted(moments(run)) == ["module.fc1.bias", "module.fc1.weight"]


def test_optimizer_state_is_kept_if_all_weights_are_loaded_elsewhere(tmp_path) -> None:
    path = saved(tmp_path)
    run = trainer(tmp_path, load_path=path, load_ignore_keys=["state/model/*"])
    assert len(moments(run)) == 4
    with pytest.warns(ComposerWarning, match="not loaded for module.fc2"):
        run = trainer(tmp_path, classes=7, load_path=path, load_ignore_keys=["state/model"])
    assert sorted(moments(run)) == ["module.fc1.bias", "module.fc1.weight"]


def test_ignored_weights_that_the_model_no_longer_has(tmp_path) -> None:
    class Smaller(Net):
        def __init__(self) -> None:
            super().__init__()
            del self.fc2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc1(x)[:, :3]

    path = saved(tmp_path)
    run = trainer(tmp_path, Smaller(), load_path=path, load_ignore_keys=["state/model/module.fc2*"])
    assert sorted(moments(run)) == ["module.fc1.bias", "module.fc1.weight"]
    run.fit()


def test_layers_frozen_after_saving(tmp_path) -> None:
    path = saved(tmp_path)
    module = Net()
    module.fc1.requires_grad_(False)
    with pytest.warns(ComposerWarning, match=r"that the given optimizer does not have: module.fc1.bias, module.fc1.w"):
        run = trainer(tmp_path, module, load_path=path)
    assert sorted(moments(run)) == ["module.fc2.bias", "module.fc2.weight"]
    run.fit()


@pytest.mark.parametrize("ignore", [["state/model/module.fc1*"], ["*"], ["state/model/*"], ["state"], ["state/*"]])
def test_weights_excluded_on_save_are_not_required(tmp_path, ignore) -> None:
    path = saved(tmp_path, save_ignore_keys=ignore)
    run = trainer(tmp_path, load_path=path)
    run.fit()
    if ignore == ["state/model/module.fc1*"]:
        assert len(moments(run)) == 4
        with pytest.raises(RuntimeError, match=r"size mismatch for module\.fc2"):
            trainer(tmp_path, classes=7, load_path=path)


def test_weights_excluded_on_save_may_change_shape(tmp_path) -> None:
    path = saved(tmp_path, save_ignore_keys=["state/model/module.fc2*"])
    with pytest.warns(ComposerWarning, match="not loaded for module.fc2"):
        run = trainer(tmp_path, classes=7, load_path=path)
    run.fit()


def test_missing_weight_is_still_an_error(tmp_path) -> None:
    path = saved(tmp_path, save_ignore_keys=["state/model/module.fc1*"])

    class Larger(Net):
        def __init__(self) -> None:
            super().__init__()
            self.extra = nn.Linear(1, 1)

    with pytest.raises(RuntimeError, match=r"the checkpoint lacks module.extra.weight, module.extra.bias\. "):
        trainer(tmp_path, Larger(), load_path=path)


def test_an_empty_file_has_no_weights(tmp_path) -> None:
    torch.save({}, tmp_path / "empty.pt")
    with pytest.warns(ComposerWarning, match="has no weights"):
        trainer(tmp_path, load_path=str(tmp_path / "empty.pt"))


def test_folders(tmp_path) -> None:
    module, other = Net(), Net(7)
    optimizer = torch.optim.AdamW(module.parameters())
    module(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    state = State(model=module, optimizers=optimizer)
    state.checkpoint_folders = CheckpointFolders("ep{epoch}")
    path = save_checkpoint(state, str(tmp_path / "one.pt"), ignore_keys=["state/model/fc1*"])
    assert path is not None and Path(path).is_dir()
    assert open_checkpoint(path)["left_out"] == {"fc1.weight": [5, 4], "fc1.bias": [5]}
    fresh = State(model=other, optimizers=torch.optim.AdamW(other.parameters()))
    with pytest.warns(ComposerWarning, match=r"not loaded for fc2\.bias, fc2\.weight"):
        restore(fresh, Logger(fresh), open_checkpoint(path), ignore_keys=["state/model/fc2*"])
    held = fresh.optimizers[0].state
    assert set(held) == set(other.fc1.parameters())


def test_nothing_is_recorded_if_no_weights_are_excluded() -> None:
    state = State(model=Net())
    assert "left_out" not in collect(state, ignore_keys=["rng"])
    assert "left_out" not in collect(state)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("state/timestamp/*", "timestamp"),
        ("state/optimizers/*/param_groups", "optimizers"),
        ("state/optimizers/AdamW/state", "optimizers"),
    ],
)
def test_pattern_that_excludes_a_required_entry(tmp_path, pattern, part) -> None:
    path = saved(tmp_path)
    with pytest.raises(ValueError, match=f"Use 'state/{part}[*]' to exclude the entire entry") as raised:
        trainer(tmp_path, load_path=path, load_ignore_keys=["rng", pattern])
    assert f"load_ignore_keys: {pattern!r} excludes a value of 'state/{part}'" in str(raised.value)
    assert not isinstance(raised.value, DamagedCheckpointError)
    trainer(tmp_path, load_path=path, load_ignore_keys=[f"state/{part}*"])


def test_random_state_is_restored_when_training_starts(tmp_path) -> None:
    path = saved(tmp_path)
    assert trainer(tmp_path)._rng_state is None
    run = trainer(tmp_path, load_path=path)
    assert run._rng_state is not None and len(run._rng_state) == 1
    assert trainer(tmp_path, load_path=path, load_ignore_keys=["rng"])._rng_state is None
