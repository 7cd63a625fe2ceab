"""The wheel contains all that users need, and nothing else."""

from __future__ import annotations

import email
import email.message
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from composer import __version__
from tests.design import ROOT, modules

pytest.importorskip("hatchling")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built by the build backend itself, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    program = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, str(folder)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def test_wheel_name_has_version_and_pure_python_tag(wheel: Path) -> None:
    assert wheel.name == f"composer_torch-{__version__}-py3-none-any.whl"
    assert wheel.stat().st_size < 3_000_000


def test_contains_every_module_and_stub(names: set[str]) -> None:
    sources = {path.relative_to(ROOT).as_posix() for path in modules().values()}
    stubs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "composer").rglob("*.pyi")}
    assert stubs
    assert names >= sources | stubs | {"composer/py.typed", "composer/_html/page.css", "composer/_html/page.js"}


def test_contains_nothing_else(names: set[str]) -> None:
    folders = {name.partition("/")[0] for name in names}
    assert folders == {"composer", f"composer_torch-{__version__}.dist-info"}
    assert {Path(name).suffix for name in names if name.startswith("composer/")} <= {
        ".py",
        ".pyi",
        ".typed",
        ".css",
        ".js",
    }


def test_the_commands(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"composer_torch-{__version__}.dist-info/entry_points.txt").decode()
    for command, target in PROJECT["scripts"].items():
        assert f"{command} = {target}\n" in f"{text}\n"


def test_metadata(metadata: email.message.Message) -> None:
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == PROJECT["license"]
    assert set(metadata.get_all("Provides-Extra", [])) == {
        name.replace("_", "-") for name in PROJECT["optional-dependencies"]
    }
    needed = {line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert {line.partition(">=")[0] for line in needed} == {line.partition(">=")[0] for line in PROJECT["dependencies"]}
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])


def test_works_from_the_archive(wheel: Path, tmp_path: Path) -> None:
    """From outside of the tree, with nothing of it on the path."""
    program = (
        "import composer, composer.functional, composer.algorithms as a\n"
        "from composer.cli.main import main\n"
        "assert '.whl' in composer.__file__, composer.__file__\n"
        "[getattr(a, name) for name in a.__all__]\n"
        "main(['--version'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"composer {__version__}\n"
