"""The report of the environment."""

from __future__ import annotations

import importlib
import io
import json
import os
import platform
import subprocess
import sys
import types

import pytest
import torch

from composer import __version__, environment
from composer.environment import (
    collect_env,
    format_env,
    get_composer_env_dict,
    is_hpu_installed,
    is_notebook,
    is_xla_installed,
    print_env,
)
from tests.design import ROOT


def test_sections() -> None:
    report = collect_env()
    assert list(report) == ["versions", "accelerators", "machine", "launcher", "extras"]
    assert report["versions"]["composer"] == __version__
    assert report["versions"]["torch"] == torch.__version__
    assert report["versions"]["python"].startswith(platform.python_version())
    assert report["machine"]["cores"] == os.cpu_count()
    assert json.loads(json.dumps(report)) == report


def test_launcher_variables_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "RANK": "0",
        "MASTER_ADDR": "host",
        "NCCL_DEBUG": "INFO",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "SLURM_STEP_NUM_TASKS": "2",
        "OMPI_COMM_WORLD_RANK": "1",
    }
    silent = {"HF_TOKEN": "secret", "WANDB_API_KEY": "secret", "PATH": "x", "MYRANK": "1", "SLURM_JWT": "secret"}
    for name, value in {**told, **silent}.items():
        monkeypatch.setenv(name, value)
    found = collect_env()["launcher"]
    assert told.items() <= found.items()
    assert not silent.keys() & found.keys()


def test_only_known_variables_have_their_values_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "cAn4ry-Hunter2"
    names = [
        "NCCL_SECRET_KEY",
        "NCCL_OTHER",
        "TORCH_NCCL_X",
        "GLOO_TOKEN",
        "UCX_ANY",
        "TORCHELASTIC_RUN_ID",
        "PMI_X",
        "PMI_ID",
    ]
    names += ["OMPI_COMM_WORLD_KEY", "MV2_COMM_WORLD_X", "SLURM_STEP_KEY", "MPI_LOCAL_X", "HF_TOKEN", "COMPOSER_TOKEN"]
    for name in names:
        monkeypatch.setenv(name, secret)
    monkeypatch.setenv("NCCL_CONF_FILE", f"https://me:{secret}@host/nccl.conf")
    assert secret not in format_env(collect_env())
    assert collect_env()["launcher"]["NCCL_OTHER"] == "***"
    assert collect_env()["launcher"]["NCCL_CONF_FILE"] == "https://me:***@host/nccl.conf"
    command = [sys.executable, "-m", "composer.cli.main", "env"]
    for more in ([], ["--json"]):
        done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, check=True)
        assert "NCCL_OTHER" in done.stdout
        assert secret not in done.stdout + done.stderr


def test_the_hook_masks_the_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append(str(error)))
    environment.configure_excepthook()
    sys.excepthook(ValueError, ValueError("cannot read sftp://me:cAn4ry@host"), None)
    assert seen == ["cannot read sftp://me:***@host"]


def test_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    assert collect_env()["accelerators"] == {"xpu:0": "xpu", "xpu:1": "xpu"}
    assert get_composer_env_dict()["accelerator_model_name"] == "xpu"


@pytest.mark.gpu
def test_accelerators_of_this_host() -> None:
    found = collect_env()
    assert torch.cuda.get_device_name(0) in found["accelerators"]["cuda:0"]
    assert found["versions"]["cuda"] == torch.version.cuda


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        "torch>=2",
        "numpy>=1; extra == 'one'",
        'no-such-package[x]<2,>=1; python_version > "3" and extra == "one"',
        "numpy>=1; extra == 'dev'",
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: wanted)
    import numpy

    assert collect_env()["extras"] == {"one": f"numpy {numpy.__version__}, no-such-package missing"}


def test_as_text() -> None:
    text = format_env({"first": {"a": 1, "long": None}, "second": {}})
    assert text == "first\n  a     1\n  long  none\nsecond\n  nothing"
    file = io.StringIO()
    print_env(file)
    assert file.getvalue() == format_env(collect_env()) + "\n"


def test_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    found = get_composer_env_dict()
    assert (found["node_world_size"], found["local_world_size"]) == (2, 4)
    assert found["composer_version"] == __version__
    assert json.loads(json.dumps(found)) == found


def test_hook(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    seen: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, error, trace: seen.append(kind))
    environment.configure_excepthook()
    hook = sys.excepthook
    environment.configure_excepthook()
    assert sys.excepthook is hook
    hook(ValueError, ValueError(), None)
    assert capsys.readouterr().err.startswith("versions\n  composer")
    hook(KeyboardInterrupt, KeyboardInterrupt(), None)
    environment.disable_env_report()
    hook(ValueError, ValueError(), None)
    assert capsys.readouterr().err == ""
    environment.enable_env_report()
    hook(ValueError, ValueError(), None)
    assert "torch" in capsys.readouterr().err
    assert seen == [ValueError, KeyboardInterrupt, ValueError, ValueError]


def test_hook_in_a_program() -> None:
    program = "from composer.utils import configure_excepthook; configure_excepthook(); raise ValueError('the reason')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.index("ValueError: the reason") < done.stderr.index("versions\n  composer")


class ZMQInteractiveShell:
    """Goes by the name of the shell that a notebook's kernel runs."""


class Shell(ZMQInteractiveShell):
    """Goes by the name of the shell of Colab, which is a subclass."""


@pytest.mark.parametrize(
    ("shell", "expected"), [(ZMQInteractiveShell(), True), (Shell(), True), (object(), False), (None, False)]
)
def test_notebooks(shell, expected, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert is_notebook() is expected


@pytest.mark.parametrize(
    ("package", "is_installed"), [("torch_xla", is_xla_installed), ("habana_frameworks", is_hpu_installed)]
)
def test_packages_of_accelerators(package, is_installed, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert not is_installed()
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise RuntimeError('asking does not import')")
    importlib.invalidate_caches()
    assert is_installed()
