"""``composer env`` and ``composer_collect_env``."""

from __future__ import annotations

import json

import pytest
import torch

from composer.cli import env
from composer.cli.main import main
from composer.environment import collect_env, format_env


@pytest.mark.parametrize("run", [lambda *more: main(["env", *more]), lambda *more: env.main(list(more))])
def test_text_and_json(run, capsys) -> None:
    assert run() == 0
    assert capsys.readouterr().out == format_env(collect_env()) + "\n"
    assert run("--json") == 0
    assert json.loads(capsys.readouterr().out)["versions"]["torch"] == torch.__version__


def test_mistakes(capsys) -> None:
    with pytest.raises(SystemExit) as left:
        env.main(["--jsn"])
    assert left.value.code == 2
    assert "usage: composer_collect_env" in capsys.readouterr().err
