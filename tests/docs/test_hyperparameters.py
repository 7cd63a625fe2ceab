"""The blocks of the page on hyperparameters run, one after the other, with the file that it shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from composer.hparams.build import check
from composer.hparams.config_tree import expanded, parse_value
from tests.docs.blocks import DOCS, blocks
from tests.hparams import configured

PAGE = (DOCS / "hyperparameters.md").read_text()


def texts(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.M | re.S)


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "mydata", configured)
    whole, optimizers = texts("yaml")
    without_data = re.sub(r"^train_dataloader:\n(?:  .*\n)*", "", whole, flags=re.M)
    assert without_data != whole
    (tmp_path / "run.yaml").write_text(without_data)  # the script gives the data
    check(expanded(parse_value(whole)), {})
    check(expanded(parse_value(optimizers)), {"model": None})
    names: dict[str, Any] = {}
    for block in blocks("hyperparameters.md"):
        block.run(names)
    assert capsys.readouterr().out.splitlines() == ["4", "0.4"]


def test_options_of_the_page_exist() -> None:
    commands = [line for block in texts("bash") for line in block.splitlines() if "--" in line]
    names = {name for line in commands for name in re.findall(r"--(\w+)", line)}
    assert {"max_duration", "algorithms", "optimizers", "save_folder"} <= names
    for name in names - {"print_config", "help"}:
        check({}, {name: None, "model": None})


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            {"algorithms": [{"MixUp": {"alpah": 1}}]},
            "algorithms.0.alpah: MixUp has no such argument. Did you mean 'alpha'?",
        ),
        ({"seed": "x"}, "seed: 'x' (str) is not of the type int | None."),
    ],
)
def test_mistakes_read_as_on_the_page(config: dict[str, object], line: str) -> None:
    assert f"composer train: error: {line}\n" in PAGE
    with pytest.raises(ValueError, match=re.escape(line)):
        check(expanded(config), {"model": None})
