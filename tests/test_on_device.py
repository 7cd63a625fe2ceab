"""Selection of tests for ``--device``, and the device that they use."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
import torch

from composer._lazy import MissingConditionalImportError
from tests import on_device
from tests.design import ROOT

RUNS = """
import sys, pytest
for arguments in sys.argv[1:]:
    code = pytest.main(["-q", "-p", "no:cacheprovider", *arguments.split("\\n")])
    print(f"\\nended with {int(code)}\\f", flush=True)
"""
FILES = ["algorithms/test_contract.py", "callbacks/test_contract.py", "loggers/test_contract.py"]
FILES += ["optim/test_muon.py", "trainer/test_predict.py", "trainer/test_copies.py", "gpu/mixing.py"]
SOME = "mixing or EMA and not PostHoc or LRMonitor or csvlogger or TwoOptimizers or test_outputs or test_transforms"


def outputs_of(*runs: list[str]) -> list[str]:
    """What pytest prints with arguments, and last the code that it ends with; in one process, which imports once."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", RUNS, *("\n".join(run) for run in runs)],
        cwd=ROOT,
        env={**variables, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\f\n")[:-1]


@pytest.fixture(scope="module")
def outputs() -> list[str]:
    """Of what lacks things on the CPU, of what there is for the fake device, and of some of it."""
    return outputs_of(
        ["--device", "cpu", "tests/gpu/mixing.py"],
        ["--device", "pretend", "--collect-only"],
        ["--device", "pretend", *(f"tests/{file}" for file in FILES), "-k", SOME],
    )


@pytest.mark.skipif(on_device.device().type != "cpu", reason="of the suite by default")
def test_by_default_no_gpu_is_seen() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == os.environ["HIP_VISIBLE_DEVICES"] == ""
    assert not torch.cuda.is_available()
    value = (torch.ones(1), {"a": 2})
    assert on_device.place(value) is value


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_an_error(monkeypatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # which is set where it is not
    with pytest.raises(pytest.UsageError, match="--device cuda: PyTorch sees no GPU here"):
        on_device.choose("cuda")
    assert on_device.device().type != "cuda"


@pytest.mark.slow
def test_rules_match_tests_and_groups_are_collected(outputs: list[str]) -> None:
    """A rule that meets no test is old; a file of a group from which nothing is collected, too."""
    _, text, _ = outputs
    assert text.endswith("ended with 0"), text[-2000:]
    names = [line for line in text.splitlines() if "::" in line]
    assert len(names) > 1000
    for pattern in (*on_device.NOT_THERE, *on_device.NOT_PRETENDED):
        assert any(re.search(pattern, name) for name in names), pattern
    for path in on_device.paths(on_device.GROUPS):
        assert any(name.startswith(str(path.relative_to(ROOT))) for name in names), path
    # What is marked is for a GPU, and pretending is none.
    assert not any("test_beside" in name or "test_fp8" in name for name in names)


@pytest.mark.slow
def test_some_of_each_group_on_the_fake_device(outputs: list[str]) -> None:
    """Those that hold pass, one that mixes devices fails, and one that lacks a package is skipped."""
    _, _, text = outputs
    assert text.endswith("ended with 1"), text[-3000:]
    assert re.search(r"\b2 failed, [1-9]\d+ passed", text), text[-3000:]
    assert re.search(r"^FAILED tests/gpu/mixing\.py", text, re.MULTILINE)
    assert "at least two devices" in text
    assert "No module named 'a_module_of_ours_that_is_not_there'" in text
    assert "not installed: transformer_engine" in text


@pytest.mark.slow
def test_missing_package_fails_in_ci(outputs: list[str]) -> None:
    text, _, _ = outputs
    assert "2 failed, 1 passed" in text, text


def test_missing_package_detection() -> None:
    error = ModuleNotFoundError(name="transformer_engine.pytorch")
    assert on_device.missing(error) == "not installed: transformer_engine.pytorch"
    assert "mlflow" in (on_device.missing(MissingConditionalImportError("mlflow", "mlflow")) or "")
    # Our own modules, others that nobody said to be optional, a part that an installed package lacks, no name at all.
    for name in ("composer.thing", "tests.x", "a_typing_error", "yaml.thing", None):
        assert on_device.missing(ModuleNotFoundError("no module", name=name)) is None
    assert on_device.missing(ImportError("x")) is None
