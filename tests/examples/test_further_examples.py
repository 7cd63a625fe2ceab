"""The examples of language models, of resuming and of DeepSpeed, and the notebook, shorter than by default."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.examples.digits import write_package
from tests.examples.test_examples import ROOT, run

EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.slow


SCRIPTS = {
    "char_gpt.py": ["--steps", "24", "--batch-size", "4"],
    "bert_pretraining.py": ["--steps", "24", "--batch-size", "4"],
    "resume_after_kill.py": ["--epochs", "1", "--width", "16", "--kill-at", "60"],
    "distributed/digits.py": ["--strategy", "deepspeed", "--width", "16", "--duration", "20ba"],
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each script prints; all run in one process, which imports once."""
    pytest.importorskip("deepspeed")
    program = (
        "import runpy, sys\n"
        f"for name, arguments in {SCRIPTS}.items():\n"
        "    print(f'== {name}', flush=True)\n"
        "    sys.argv = [name, *arguments]\n"
        f"    runpy.run_path(f'{EXAMPLES}/{{name}}', run_name='__main__')\n"
        "    sys.stdout.flush()\n"
    )
    parts = run("-c", program, cwd=tmp_path_factory.mktemp("scripts"), timeout=900).split("== ")[1:]
    return {part.partition("\n")[0]: part for part in parts}


def test_char_gpt(printed: dict[str, str]) -> None:
    text = printed["char_gpt.py"]
    found = re.search(r"^bits per character: (\d\.\d\d); with character frequencies only: (\d\.\d\d)$", text, re.M)
    # A model that has learnt nothing is at 7 bits.
    assert found is not None, text
    assert float(found[1]) < 6.5


def test_bert_pretraining(printed: dict[str, str]) -> None:
    text = printed["bert_pretraining.py"]
    assert re.findall(r"^rows of (\d+) tokens: \d+\.\d% of the masked tokens are right$", text, re.M) == ["32", "64"]


def test_resume_after_kill(printed: dict[str, str]) -> None:
    text = printed["resume_after_kill.py"]
    assert text.count("killed; running the same command again") == 1
    # The two trainings, and what was left of the one that was killed after 60 batches.
    assert re.findall(r"^  trained batches (\d+) to 100$", text, re.M) == ["0", "50"]
    assert text.endswith("equal, bit for bit.\n"), text


def test_deepspeed(printed: dict[str, str]) -> None:
    assert re.search(r"^0 epochs, 1280 samples: accuracy 0\.\d+$", printed["distributed/digits.py"], re.M)


def test_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The notebook runs from top to bottom, and is kept without outputs."""
    path = EXAMPLES / "tour.ipynb"
    notebook: Any = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    for cell in cells:
        # The whole length shows nothing more about whether the code is right.
        cell.source = cell.source.replace("[:4000]", "[:400]").replace('"2ep"', '"12ep"')
    monkeypatch.setenv("PYTHONPATH", f"{write_package(tmp_path)}{os.pathsep}{ROOT}")
    kernels: list[Any] = []
    client = NotebookClient(notebook, timeout=600, kernel_name="python3")
    client.on_notebook_start = lambda notebook: kernels.append(client.km.provisioner.process)  # type: ignore[union-attr]
    client.execute(cwd=str(tmp_path))
    kernels[0].wait(60)  # the client does not where it takes long, and another test would get the warning
    printed = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert "BlurMaxPool2d" in printed
    assert "equal bit for bit: True" in printed
    assert json.loads(path.read_text())["metadata"]["kernelspec"]["name"] == "python3"


def test_every_example_is_in_the_table() -> None:
    """And the table has none that is not there."""
    table = (EXAMPLES / "README.md").read_text()
    named = set(re.findall(r"^\| \[`([\w/.]+)`\]\(\1\)", table, re.M))
    scripts = {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*") if path.suffix in (".py", ".ipynb")}
    assert named == scripts
