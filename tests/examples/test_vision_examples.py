"""The examples with images run, in this process, and learn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("mlxtend")
pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run an example in a folder of its own; return what it printed."""
    from tests.examples.here import Here

    return Here(tmp_path, monkeypatch, capsys)


def test_mnist(run) -> None:
    (accuracy,) = re.findall(r"^test accuracy (\d+\.\d)%$", run("mnist", "--epochs", "2"), re.MULTILINE)
    assert float(accuracy) > 70


def test_own_algorithm(run) -> None:
    printed = run("own_algorithm", "--digits", "600", "--epochs", "6")
    shares = dict(re.findall(r"^(\w+) +random shifts: (\d+\.\d)% of shifted digits$", printed, re.MULTILINE))
    # Chance is 10 %.
    assert float(shares["with"]) > float(shares["without"]) > 20, printed


def test_segmentation(run) -> None:
    printed = run("segmentation", "--epochs", "2", "--scenes", "80")
    ((overlap, of_nothing),) = re.findall(
        r"union (\d+\.\d) % \(background everywhere: (\d+\.\d) %\)$", printed, re.MULTILINE
    )
    assert float(overlap) > float(of_nothing), printed


def test_gan(run, tmp_path: Path) -> None:
    printed = run("gan", "--epochs", "4", "--digits", "1000", "--output", "made")
    ((before, after),) = re.findall(
        r"distance to real digits: (\d+\.\d) before training, (\d+\.\d) after$", printed, re.MULTILINE
    )
    assert float(after) < float(before), printed
    sheet = (tmp_path / "made" / "gan.pgm").read_bytes()
    assert sheet.startswith(b"P5 224 224 255\n")
    assert len(sheet) == len(b"P5 224 224 255\n") + 224 * 224


def test_resnet_recipe_on_a_folder_of_images(run, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    from PIL import Image

    for part, number in (("train", 20), ("val", 2)):
        for kind, color in (("dark", 40), ("light", 200)):
            folder = tmp_path / "images" / part / kind
            folder.mkdir(parents=True)
            for image in range(number):
                Image.new("RGB", (40, 40), (color + image, color, color - image)).save(folder / f"{image}.png")
    arguments = ["--data", "images", "--size", "32", "--epochs", "2", "--batch-size", "4", "--lr", "0.01"]
    printed = run("resnet_recipe", *arguments)
    lines = re.findall(r"^(\w+) +test accuracy (\d+\.\d)% in \d+\.\d s$", printed, re.MULTILINE)
    assert [name for name, _ in lines] == ["baseline", "recipe"]


def test_resnet_recipe_on_digits(run) -> None:
    printed = run("resnet_recipe", "--epochs", "1")
    lines = re.findall(r"^(\w+) +test accuracy (\d+\.\d)% in \d+\.\d s$", printed, re.MULTILINE)
    assert [name for name, _ in lines] == ["baseline", "recipe"]
    assert float(lines[0][1]) > 20, printed


@pytest.mark.parametrize("name", ["gan", "mnist", "own_algorithm", "resnet_recipe", "segmentation"])
def test_help(name: str, run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        run(name, "--help")
    assert left.value.code == 0
    assert "--seed" in capsys.readouterr().out
