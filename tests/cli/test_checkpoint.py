"""``composer checkpoint``."""

from __future__ import annotations

import pytest
import torch

from composer.checkpoint.load import read_checkpoint
from composer.cli.main import main
from tests.checkpoint.content import same
from tests.checkpoint.test_legacy_formats import FOLDER
from tests.trainer.resuming import build, shuffled


@pytest.fixture
def path(tmp_path) -> str:
    trainer = build(shuffled(), max_duration="3ba", schedulers=None)
    trainer.fit()
    return trainer.save_checkpoint(str(tmp_path / "a.pt"))


def rows(text: str) -> dict[str, list[str]]:
    """The first word of each line, and the others."""
    return {words[0]: words[1:] for line in text.splitlines() if (words := line.split())}


def test_inspect(path, capsys) -> None:
    assert main(["checkpoint", "inspect", path]) == 0
    text = capsys.readouterr().out
    found = rows(text)
    assert found["optimizers"] == ["AdamW", "18", "688", "B"]  # 83 numbers twice, and a step for each of 6 parameters
    assert found["callbacks"] == []
    assert found["rank_zero_seed"] == ["7"]
    assert "timestamp: epoch 0, batch 3, sample 12" in text
    assert f"torch {torch.__version__}" in text


def test_inspect_the_weights(path, capsys) -> None:
    assert main(["checkpoint", "inspect", path, "--weights"]) == 0
    assert rows(capsys.readouterr().out)["module.0.weight"] == ["(8,", "4)", "float32"]


@pytest.mark.parametrize("name", ["sgd_momentum", "adamw_ema", "blurpool"])
def test_inspect_composer_0_32_checkpoint(name, capsys) -> None:
    assert main(["checkpoint", "inspect", str(FOLDER / f"{name}.pt")]) == 0
    assert "saved by: composer 0.32.1" in capsys.readouterr().out


def test_convert(path, tmp_path, capsys) -> None:
    weights = str(tmp_path / "a.safetensors")
    assert main(["checkpoint", "convert", path, weights]) == 0
    assert main(["checkpoint", "convert", path, weights]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["checkpoint", "convert", path, weights, "--overwrite"]) == 0
    assert main(["checkpoint", "inspect", weights]) == 0
    assert rows(capsys.readouterr().out)["model"][-3:] == ["9", "404", "B"]
    model = read_checkpoint(path)["state"]["model"]
    assert all(torch.equal(model[name], value) for name, value in read_checkpoint(weights)["state"]["model"].items())


def test_sharded_folder(path, tmp_path, capsys) -> None:
    folder, file = str(tmp_path / "a.dcp"), str(tmp_path / "b.pt")
    assert main(["checkpoint", "inspect", path, "--weights"]) == 0
    before = capsys.readouterr().out.splitlines()
    assert main(["checkpoint", "convert", path, folder]) == 0
    assert main(["checkpoint", "inspect", folder, "--weights"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == before[1:]  # all but the name and the size of the files
    assert main(["checkpoint", "convert", folder, file]) == 0
    assert same(read_checkpoint(file), read_checkpoint(path))


def test_HostileFiles_inspect_sends_nothing_to_the_terminal(tmp_path, capsys) -> None:
    content = {"state": {"model": {"a\x1b[2Jb": torch.ones(1)}, "run_name": "night\x1b]0;title\x07"}}
    torch.save(content, tmp_path / "a.pt")
    assert main(["checkpoint", "inspect", str(tmp_path / "a.pt"), "--weights"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "a\\x1b[2Jb" in text
