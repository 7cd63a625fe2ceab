"""MosaicML Composer beside this package is told, with what to remove."""

from __future__ import annotations

import re
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

from composer._compat import predecessor_installed
from composer._compat.predecessor_installed import predecessors, warn_of_predecessors
from composer._version import DISTRIBUTION
from tests import after_torch
from tests.design import ROOT

THEIRS = "Metadata-Version: 2.4\nName: composer\nVersion: 0.32.1\nAuthor: MosaicML\n\nText.\n"
OURS = "Metadata-Version: 2.4\nName: composer\nVersion: 1.0.0\n\nAuthor: MosaicML\n"


def installed(folder: Path, *packages: str, metadata: str = THEIRS) -> Path:
    for package in packages:
        (folder / f"{package}").mkdir(parents=True)
        (folder / f"{package}" / "METADATA").write_text(metadata)
    return folder


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(sys, "path", [])


def test_the_name_is_that_of_the_project() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"] == DISTRIBUTION


def test_no_page_names_the_predecessor_to_install() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "composer").rglob("*.py")]
    assert not [page for page in pages if re.search(r"['`\"]composer\[", page.read_text())]


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("mosaicml-0.32.1.dist-info", "0.32.1"),
        ("mosaicml-0.9.0-py3.11.egg-info", "0.9.0"),
        ("composer-0.32.1.dist-info", "0.32.1"),
        ("MosaicML-0.20.0rc1.dist-info", "0.20.0rc1"),
    ],
)
def test_found(tmp_path: Path, package: str, version: str) -> None:
    installed(tmp_path, package)
    assert list(predecessors([str(tmp_path), str(tmp_path)])) == [
        (str(tmp_path), package.partition("-")[0].lower(), version)
    ]


@pytest.mark.parametrize(
    "package",
    [
        "mosaicml_streaming-0.13.0.dist-info",
        "mosaicml_cli-0.7.dist-info",
        "composer_torch-1.0.dist-info",
        "composer",
        "mosaicml",
    ],
)
def test_others_are_not(tmp_path: Path, package: str) -> None:
    assert list(predecessors([str(installed(tmp_path, package)), "", str(tmp_path / "missing")])) == []


def test_another_project_called_composer_is_not(tmp_path: Path) -> None:
    installed(tmp_path, "composer-1.0.0.dist-info", metadata=OURS)
    (tmp_path / "composer-2.0.dist-info").mkdir()
    assert list(predecessors([str(tmp_path)])) == []


def test_told_with_what_to_remove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = installed(tmp_path / "site-packages", "mosaicml-0.32.1.dist-info", "composer-0.32.1.dist-info")
    sys.path += [str(packages), b"/tmp", ["odd"]]
    with pytest.warns(UserWarning, match=r"mosaicml 0\.32\.1.* Remove it: pip uninstall composer mosaicml$"):
        warn_of_predecessors()
    monkeypatch.setattr(predecessor_installed, "__file__", str(packages / "composer" / "_predecessor.py"))
    with pytest.warns(
        UserWarning,
        match=r"pip uninstall composer mosaicml composer-torch, and install composer-torch again$",
    ):
        warn_of_predecessors()


def test_one_process_of_a_machine_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sys.path.append(str(installed(tmp_path / "dist-packages", "mosaicml-0.32.1.dist-info")))
    monkeypatch.setenv("LOCAL_RANK", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_predecessors()
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.warns(UserWarning, match="MosaicML Composer"):
        warn_of_predecessors()


def test_the_first_import_tells_once(tmp_path: Path) -> None:
    packages = installed(tmp_path / "site-packages", "mosaicml-0.32.1.dist-info")
    program = (
        f"import sys; sys.path[:0] = {[str(ROOT), str(packages)]!r}; import composer, composer.core; import composer"
    )
    done = after_torch.run(program)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is installed alongside composer-torch") == 1


def test_other_folders_are_not_listed(tmp_path: Path) -> None:
    """One with data may have a hundred thousand files."""
    sys.path.append(str(installed(tmp_path / "data", "mosaicml-0.32.1.dist-info")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_predecessors()
