"""Images of runs that are over, and folders that somebody else prepared."""

from __future__ import annotations

import base64
import os
import struct
from pathlib import Path

import numpy as np

from composer._html import document, save_document
from composer.history import History
from composer.reports import ReportImage, run_report
from composer.reports.logged import image_section
from composer.reports.png import png_bytes
from composer.reports.run_images import newest, page_images, run_images
from tests.reports.runs import HOSTILE


def png(value: int, side: int = 2) -> bytes:
    return png_bytes(np.full((side, side, 3), value, np.uint8))


def put(path: Path, content: bytes, age: float = 0.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (1e9 - age, 1e9 - age))


def test_png_files_of_the_run_by_age(tmp_path: Path) -> None:
    put(tmp_path / "samples" / "deep" / "step_0020.png", png(1), age=1)
    put(tmp_path / "images" / "ep1-ba7.PNG", png(2), age=3)
    put(tmp_path / "curve.png", png(3), age=2)
    put(tmp_path / "data" / "train.png", png(4))  # may be a data set
    put(tmp_path / "images" / "a" / "b" / "c" / "far.png", png(5))
    found = run_images(tmp_path)
    assert [(one.name, one.step, one.png) for one in found] == [
        ("images/ep1-ba7", 7, png(2)),
        ("curve", None, png(3)),
        ("samples/deep/step_0020", 20, png(1)),
    ]
    assert [one.name for one in run_images(tmp_path, started=1e9 - 1.5)] == ["samples/deep/step_0020"]
    page = image_section(found)
    assert page is not None
    assert "<figcaption>curve</figcaption>" in page


def test_the_images_of_its_page_stay(tmp_path: Path) -> None:
    images = [ReportImage(HOSTILE, 1234, png(1)), ReportImage("samples/a", None, png(2))]
    page = tmp_path / "report.html"
    save_document(run_report(History("night"), images=images), page)
    assert page_images(page) == images
    put(tmp_path / "samples" / "a.png", png(2))
    assert run_images(tmp_path) == images  # not twice
    os.utime(page, (1e9, 1e9))
    assert run_images(tmp_path, started=2e9) == []


def test_nothing_outside_of_the_folder_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    put(secret / "a.png", png(1))
    save_document(document("x", image_section([ReportImage("secret", 0, png(2))])), secret / "page.html")
    run = tmp_path / "run"
    (run / "images").mkdir(parents=True)
    (run / "a.png").symlink_to(secret / "a.png")
    (run / "images" / "b.png").symlink_to("../../secret/a.png")
    (run / "samples").symlink_to(secret)
    (run / "report.html").symlink_to(secret / "page.html")
    (run / "loop.png").symlink_to("loop.png")
    os.mkfifo(run / "pipe.png")
    assert run_images(run) == []
    put(run / "own.png", png(3))
    (run / "images" / "c.png").symlink_to("../own.png")
    assert {one.png for one in run_images(run)} == {png(3)}


def test_what_no_browser_should_get(tmp_path: Path) -> None:
    bomb = bytearray(png(1))
    bomb[16:24] = struct.pack(">II", 100_000, 100_000)
    for name, content in {
        "bomb": bytes(bomb),
        "script": b"<svg onload=alert(1)>",
        "large": png(1) + bytes(2_000_000),
    }.items():
        put(tmp_path / f"{name}.png", content)
    page = tmp_path / "report.html"
    encoded = base64.b64encode(b"<script>").decode()
    page.write_text(
        f'<figure class="image"><img src="data:image/png;base64,{encoded}" alt="x"><figcaption>x, step 1</figcaption>'
        '<figure class="image"><img src="data:image/png;base64,=A=" alt="x"><figcaption>x</figcaption>'
    )
    assert run_images(tmp_path) == []


def test_they_have_a_megabyte_together(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(8):
        image = png_bytes(random.integers(0, 256, (300, 300, 3)).astype(np.uint8))
        put(tmp_path / f"{number}.png", image, age=-number)
    found = run_images(tmp_path)
    assert [one.name for one in found] == ["5", "6", "7"]
    assert newest([]) == []
